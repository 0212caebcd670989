"""Result: what survives JSON, and what is not a record."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import harness
from harness.spec import Result, Trial, schema
from tests.factories import a_result, a_trial


def test_trial_and_result_survive_json() -> None:
    trial = a_trial(drops=(3, 5), dim=16)
    assert Trial.from_json(json.loads(json.dumps(trial.to_json()))) == trial
    result = a_result(trial)
    again = Result.from_json(json.loads(json.dumps(result.to_json())))
    assert again == result
    assert again.id == trial.id


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"schema": 99}, "schema 99"),
        ({"id": "000000000000"}, "hashes to"),
        ({"metrics": None}, "not a result"),
        ({"metrics": {"R@1": float("nan")}}, r"metrics.R@1=nan must be a number from 0 to 1"),
        ({"trial": {"loss": "x"}}, "trial: the fields .* are missing or unknown"),
        ({"trial": []}, r"trial=\[\] must be a table"),
        ({"seconds": {}}, "not a result"),
        ({"trial": {**a_trial().to_json(), "knobs": None}}, "not a result"),
    ],
    ids=str,
)
def test_what_is_not_a_result_says_why(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Result.from_json({**a_result().to_json(), **change})


def test_a_curve_may_have_what_a_newer_version_measures_and_cosines_may_be_rounded() -> None:
    point = {"epoch": 1, "loss": -3.5, "cosine": 1.0001, "train R@16": 1.0, "MAP@R": 0.0, "temperature": 24.0}
    assert Result.from_json({**a_result().to_json(), "curve": [point]}).curve == (point,)


@pytest.mark.parametrize("data", [[], "x", 3, None, {}, {"schema": 1}])
def test_foreign_json_is_not_a_result(data: Any) -> None:
    with pytest.raises(ValueError, match="not a result"):
        Result.from_json(data)


@pytest.mark.parametrize(
    "damage",
    [
        {"metrics": {"R@1": 0.5, "R@foo": 0.5}},
        {"metrics": {"NMI": 0.5}},
        {"metrics": {"R@1": "0.5"}},
        {"provenance": None},
        {"provenance": {"threads": "two"}},
        {"conventions": None},
        {"artifacts": []},
        {"title": None},
        {"curve": [{"epoch": 1, "loss": 0.5, "images": None}]},
        {"curve": [{"loss": 0.5}]},
        {"parameters": "many"},
        {"seconds": {"total": "long"}},
    ],
    ids=str,
)
def test_a_damaged_record_is_no_result_rather_than_an_error_later(damage: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a result of this harness"):
        Result.from_json({**json.loads(json.dumps(a_result().to_json())), **damage})


def test_the_schema_knows_every_part_of_the_provenance_that_is_read() -> None:
    """What is read without a schema may be of any type."""
    read = set[str]()
    for file in Path(harness.__file__).parent.rglob("*.py"):
        found = re.findall(r"\b(?:provenance|recorded)(?:\.get\(|\[)[\"'](\w+)[\"']", file.read_text(encoding="utf-8"))
        read |= set(found)
    assert len(read) > 10
    assert read <= set(schema.PROVENANCE.optional)
