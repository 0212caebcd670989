"""ExperimentRecord: its id, what survives JSON, and what is not a record."""

import json
from dataclasses import replace
from typing import Any

import pytest

from harness.spec import ExperimentRecord
from tests.factories import an_experiment

A, B, C = "a" * 12, "b" * 12, "c" * 12


def test_a_record_survives_json() -> None:
    record = an_experiment(search=(A,), final=(B,), chosen={"triplet": {"margin": 0.1}}, settings={"epochs": 4})
    assert ExperimentRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_the_same_request_has_the_same_record_before_and_after_its_search() -> None:
    start = an_experiment(search=(A, B), baseline=(C,))
    end = replace(start, final=("d" * 12,), chosen={"triplet": {"margin": 0.1}}, command="another spelling", made="now")
    assert start.id == end.id
    others: list[dict[str, Any]] = [
        {"search": (A,)},
        {"seeds": 2},
        {"select": "NMI"},
        {"folds": 2},
        {"scheduler": "asha"},
        {"select_epochs": True},
    ]
    for other in others:
        assert replace(start, **other).id != start.id
    assert an_experiment(final=(A,)).id != an_experiment(final=(B,)).id  # without a search these are what is asked for
    assert an_experiment(final=(A,)).id != an_experiment(grid=(A,)).id


def test_a_record_from_before_epochs_could_be_chosen_keeps_its_id() -> None:
    data = json.loads(json.dumps(an_experiment(search=(A,)).to_json()))
    del data["select_epochs"]
    assert ExperimentRecord.from_json(data) == an_experiment(search=(A,))


def test_a_later_record_adds_and_takes_nothing_away() -> None:
    first = an_experiment(search=(A, B), final=(C,), chosen={"triplet": {"margin": 0.1}, "group": {"anchors": 1}})
    later = replace(first, final=("0" * 12,), chosen={"triplet": {"margin": 0.2}}, command="later")
    joined = first.joined(later)
    assert joined.final == ("0" * 12, C)
    assert joined.chosen == {"triplet": {"margin": 0.2}, "group": {"anchors": 1}}
    assert joined.command == first.command


def test_a_trial_may_have_several_roles() -> None:
    record = an_experiment(search=(A, B), final=(C,))
    assert record.roles(A) == ["search"]
    assert record.roles("0" * 12) == []
    assert replace(record, final=(A,)).roles(A) == ["search", "final"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"schema": 2}, "schema 2, this version reads up to 1"),
        ({"id": C}, "its trials hash to "),
        ({"search": [B]}, "its trials hash to "),
        ({"final": ["../x"]}, "final='../x' must be an id of 12 hexadecimal digits"),
        ({"final": 3}, "final=3 must be a list"),
        ({"command": None}, "command=None must be text"),
        ({"folds": "1"}, "folds='1' must be an integer"),
        ({"folds": 10**9}, "folds=1000000000 must be an integer from 1 to 100"),
        ({"select_epochs": 1}, "select_epochs=1 must be true or false"),
        ({"seeds": True}, "seeds=True must be an integer"),
        ({"seeds": -1}, "seeds=-1 must be an integer"),
        ({"chosen": {"triplet": 1}}, "chosen.triplet=1 must be a table"),
        ({"space": []}, r"space=\[\] must be a table"),
        ({"settings": None}, "settings=None must be a table"),
    ],
    ids=str,
)
def test_what_is_not_a_record_says_why(change: dict[str, Any], complaint: str) -> None:
    data = json.loads(json.dumps(an_experiment(search=(A,), final=(B,)).to_json()))
    with pytest.raises(ValueError, match=complaint):
        ExperimentRecord.from_json({**data, **change})


@pytest.mark.parametrize("data", [[], "x", 3, None, {}, {"schema": 1}, {"schema": "1"}])
def test_foreign_json_is_not_a_record(data: Any) -> None:
    with pytest.raises(ValueError, match="not an experiment of this harness"):
        ExperimentRecord.from_json(data)
