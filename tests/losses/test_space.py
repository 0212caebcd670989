"""What random search draws, and the limits of a knob."""

import math
import random
from typing import Annotated

import pytest

import losses
from harness import config
from harness.spec import Field, UserError
from losses.base import Choice, Count, Limit, Positive, Range, Rates


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
    assert str(Choice("class", None, 3)) == "class | none | 3"
    assert str(Rates(1e-4, 1.0)) == "0.0001 to 1 (log), divided by the head's rate"


# Best values of Musgrave et al., ECCV 2020 (CUB, Cars, SOP, CUB with batches of 256), for the knobs that mean the same
# here: powerful-benchmarker, docs/papers/mlrc.md. Its gamma of SoftTriple is 1 / gamma, its angles are in degrees.
PUBLISHED = {
    "arcface": {
        "scale": (100.0, 49.5, 220.3, 78.86),
        "margin": tuple(math.radians(angle) for angle in (23.22, 20.52, 18.63, 23.14)),
    },
    "margin": {"margin": (0.0878, 0.0781, 0.0915, 0.0674, 0.0518), "beta": (0.7838, 1.3164, 1.1072, 0.9762, 0.8424)},
    "multi_similarity": {
        "alpha": (0.01, 14.35, 8.49, 17.97, 7.49, 15.94, 11.63),
        "beta": (50.6, 75.83, 57.38, 46.85, 75.66, 47.99, 156.61, 55.2),
        "base": (0.56, 0.66, 0.41, 0.82, 0.77, 0.63, 0.72, 0.85),
        "epsilon": (0.39, 0.72, 0.34, 0.42),
    },
    "normalized_softmax": {"temperature": (0.1087, 0.0886, 0.063, 0.0707)},
    "soft_triple": {
        "scale": (78.02, 17.69, 100.0, 72.12),
        "gamma": tuple(1 / multiplier for multiplier in (58.95, 19.18, 47.9, 51.07)),
        "margin": (0.4307, 0.3588, 0.3145, 0.6959),
        "tau": (0.3754, 0.0669, 0.443),
    },
}
RATES = {
    "a_bier": (1e-5,),
    "arcface": (5.13e-3, 7.39e-6, 2.01e-3, 3.95e-2),
    "margin": (1.31e-3, 1.11e-4, 1.82e-3, 1e-6, 2.65e-4, 4.76e-5, 7.1e-5, 1.32e-2),
    "normalized_softmax": (4.46e-3, 1.1e-2, 5.46e-4, 7.2e-2),
    "proxy_nca": (6.04e-3, 4.43e-3, 5.28e-4, 2.16e-1),
    "soft_triple": (5.37e-5, 1.4e-4, 8.68e-5, 1.06e-4),
}


@pytest.mark.parametrize("loss", PUBLISHED)
def test_the_ranges_contain_what_is_published(loss: str) -> None:
    for knob, values in PUBLISHED[loss].items():
        space = losses.get(loss).space[knob]
        assert isinstance(space, Range)
        assert all(space.low <= value <= space.high for value in values), knob


@pytest.mark.parametrize("loss", RATES)
def test_the_rates_contain_what_is_published_under_fair_and_where_a_loss_states_them(loss: str) -> None:
    spaces = [losses.get(loss).space["lr_factor"], config.protocol("fair").search["lr_factor"]]
    for space in spaces:
        if isinstance(space, Rates):
            assert all(space.low <= rate <= space.high for rate in RATES[loss])
    assert isinstance(spaces[1], Rates)


@pytest.mark.parametrize("name", losses.shipped())
def test_every_loss_that_owns_parameters_has_a_rate_of_its_own(name: str) -> None:
    spec, loss = config.loss(name), losses.get(name)(4, 16)
    assert ("lr_factor" in spec.knobs) == any(owned.requires_grad for owned in loss.parameters())
    if "lr_factor" in spec.knobs:
        assert losses.get(name)(4, 16, lr_factor=7.0).lr_factor == 7.0
        assert "lr_factor" in losses.get(name).space or name == "group"  # stored searches of it were drawn without


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
