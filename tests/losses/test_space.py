"""What random search draws, and the limits of a knob."""

import random
from typing import Annotated

import pytest

from harness.spec import Field, UserError
from losses.base import Choice, Count, Limit, Positive, Range


def test_range_and_choice_stay_inside_and_repeat_with_their_seed() -> None:
    for space in (Range(1e-5, 1e-1, log=True), Range(2, 3), Choice(1, "a", None)):
        drawn = [space.sample(random.Random(seed)) for seed in range(50)]
        assert drawn == [space.sample(random.Random(seed)) for seed in range(50)]
        if isinstance(space, Range):
            assert all(space.low <= value <= space.high for value in drawn)
        else:
            assert set(drawn) == set(space.values)
    logs = [Range(1e-4, 1.0, log=True).sample(random.Random(seed)) for seed in range(400)]
    assert 0.4 < sum(value < 1e-2 for value in logs) / 400 < 0.6


def test_ranges_and_choices_read_as_words() -> None:
    assert str(Range(0.02, 0.5, log=True)) == "0.02 to 0.5 (log)"
    assert str(Range(36.0, 55.0)) == "36 to 55"
    assert str(Choice("class", "shared", 3)) == "class | shared | 3"


@pytest.mark.parametrize(
    ("hint", "allowed", "refused"),
    [
        (Positive, "0.001", "0"),
        (Count, "0", "-1"),
        (Annotated[float, Limit(least=0, most=1)], "1", "1.01"),
        (Annotated[Positive, Limit(most=70)], "70", "71"),
        (Annotated[Positive, Limit(most=70)], "1", "0"),
    ],
)
def test_a_limit_is_kept(hint: object, allowed: str, refused: str) -> None:
    knob = Field.of("knob", hint, None)
    assert knob.parse(allowed) == float(allowed)
    with pytest.raises(UserError, match=f"knob={refused}"):
        knob.parse(refused)


def test_other_annotations_of_a_knob_are_ignored() -> None:
    knob = Field.of("angle", Annotated[float, "in radians", Limit(above=0)], 0.5)
    assert knob.parse("1.5") == 1.5
    with pytest.raises(UserError, match="angle=0"):
        knob.parse("0")
