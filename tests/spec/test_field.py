"""Field: what a user may write, and what is refused."""

from typing import Annotated, Any, Literal

import pytest

from harness.spec import SETTINGS, Field, UserError, unknown
from losses.base import Limit


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (int, "8", 8),
        (float, "2e-4", 2e-4),
        (float, "3", 3.0),
        (bool, "true", True),
        (bool, "False", False),
        (str, "x", "x"),
        (int | None, "none", None),
        (int | None, "4", 4),
        (tuple[int, ...], "30,50", (30, 50)),
        (tuple[int, ...], "", ()),
        (Literal["a", "b"], "b", "b"),
    ],
)
def test_fields_parse_what_a_user_writes(hint: Any, text: str, value: Any) -> None:
    parsed = Field.of("x", hint, None).parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("hint", "text", "allowed"),
    [
        (int, "abc", "an integer"),
        (int, "2.5", "an integer"),
        (int, "none", "an integer"),
        (float, "nan", "a number"),
        (float, "inf", "a number"),
        (bool, "maybe", "true or false"),
        (tuple[int, ...], "3,x", "a list of integers like 30,50"),
        (Literal["a", "b"], "c", "one of a, b"),
        (int | None, "x", "or none"),
    ],
)
def test_fields_refuse_with_what_is_allowed(hint: Any, text: str, allowed: str) -> None:
    with pytest.raises(UserError, match="must be") as refusal:
        Field.of("x", hint, None).parse(text)
    assert allowed in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_several_limits_of_a_knob_are_kept_and_told() -> None:
    field = Field.of("share", Annotated[float, Limit(least=0, most=1)], 0.5)
    assert field.parse("1") == 1.0
    for text in ("-0.1", "1.1"):
        with pytest.raises(UserError, match=f"share={text}: must be a number >= 0 and <= 1"):
            field.parse(text)


def test_limits_are_kept() -> None:
    assert SETTINGS["epochs"].parse("0") == 0
    for name, text in (("epochs", "-1"), ("lr", "0"), ("lr", "-1e-3"), ("dim", "0"), ("weight_decay", "-1")):
        with pytest.raises(UserError, match=name):
            SETTINGS[name].parse(text)


def test_text_in_an_annotation_is_the_meaning() -> None:
    field = Field.of("margin", Annotated[float, Limit(least=0), "of the distance"], 1.0)
    assert (field.meaning, field.allowed) == ("of the distance", "a number >= 0")


def test_an_unknown_name_gets_the_nearest_or_what_is_known() -> None:
    assert str(unknown("loss", "grup", ["group", "triplet"])) == "no loss named 'grup'; did you mean 'group'?"
    assert str(unknown("dataset", "CUB", ["cars", "cub"])) == "no dataset named 'CUB'; did you mean 'cub'?"
    assert str(unknown("loss", "zzz", ["group"])) == "no loss named 'zzz'; known: group"


def test_of_many_names_a_few_are_listed_or_the_command_that_lists_them() -> None:
    many = [f"name{number}" for number in range(30)]
    assert str(unknown("loss", "zzz", many)).endswith("name10, name11 and 18 more")
    assert str(unknown("loss", "zzz", many, see="harness ls losses")).endswith("; see: harness ls losses")


def test_options_are_not_near_because_of_their_dashes() -> None:
    assert "did you mean" not in str(unknown("option", "--wher", ["--rerun", "--help"]))
