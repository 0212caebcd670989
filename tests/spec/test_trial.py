"""Trial: what its name depends on."""

import dataclasses
from typing import Any

import pytest

from harness.spec import Trial
from tests.factories import a_trial

OTHER: dict[str, Any] = {"drops": (3,), "dim": 16, "knobs": {"margin": 0.3}}


@pytest.mark.parametrize("name", [item.name for item in dataclasses.fields(Trial)])
def test_every_field_is_part_of_the_id(name: str) -> None:
    value = getattr(a_trial(), name)
    changed = OTHER.get(name, value + 1 if isinstance(value, int | float) else f"{value}x")
    assert dataclasses.replace(a_trial(), **{name: changed}).id != a_trial().id


def test_the_order_of_knobs_does_not_matter() -> None:
    assert a_trial(knobs={"a": 1, "b": 2}).id == a_trial(knobs={"b": 2, "a": 1}).id


@pytest.mark.parametrize(("part", "value"), [("dataset", "../../x"), ("dataset", ".."), ("loss", "a/b"), ("loss", "")])
def test_a_record_cannot_name_a_folder_outside_the_store(part: str, value: str) -> None:
    with pytest.raises(ValueError, match=rf"trial\.{part}="):
        Trial.from_json({**a_trial().to_json(), part: value})
