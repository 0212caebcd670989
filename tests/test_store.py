"""The store: append-only, whole files, honest about what is not a result."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import store as store_module
from harness.spec import Failure, Result, UserError
from harness.spec.queries import PerQuery
from harness.store import Store
from tests.factories import a_result, a_trial


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


def test_a_result_is_found_by_its_trial(store: Store) -> None:
    assert store.get(a_trial()) is None
    assert store.put(a_result())
    assert store.get(a_trial()) == a_result()
    assert store.get(a_trial(seed=1)) is None
    assert store.path(a_trial()).relative_to(store.root) == Path(f"runs/emoji/triplet/{a_trial().id}.json")


def test_what_is_stored_is_never_overwritten_unasked(store: Store) -> None:
    store.put(a_result(**{"R@1": 0.1}))
    assert not store.put(a_result(**{"R@1": 0.9}))
    assert store.get(a_trial()).metrics == {"R@1": 0.1}
    assert store.put(a_result(**{"R@1": 0.9}), replace=True)
    assert store.get(a_trial()).metrics == {"R@1": 0.9}


def test_no_temporary_file_is_left(store: Store) -> None:
    store.put(a_result())
    store.put(a_result())
    store.put(a_result(), replace=True)
    assert [file.name for file in store.root.rglob("*") if file.is_file()] == [f"{a_trial().id}.json"]


def test_a_save_that_fails_is_an_error_and_leaves_nothing_half_written(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"cannot write .*: No space left on device"):
        store.put(a_result())
    assert not [file for file in store.root.rglob("*") if file.is_file()]


def test_a_result_removes_the_failure_of_its_trial(store: Store) -> None:
    path = store.note(Failure(a_trial(), "FloatingPointError: loss is nan", "Traceback ..."))
    assert json.loads(path.read_text())["error"] == "FloatingPointError: loss is nan"
    assert store.get(a_trial()) is None  # a failure is retried
    store.put(a_result())
    assert not path.exists()


@pytest.mark.parametrize("content", ['{"schema": 1, "id"', "[]", "", '{"a": 1}', "\x00\x01", '{"schema": 1}'])
def test_a_truncated_or_foreign_file_is_named_and_the_others_are_read(store: Store, content: str) -> None:
    store.put(a_result())
    bad = store.path(a_trial(seed=1))
    bad.write_text(content)
    results, problems = store.results()
    assert results == [a_result()]
    assert len(problems) == 1
    assert str(bad) in problems[0]


def test_bytes_that_are_not_text_are_a_problem_too(store: Store) -> None:
    store.put(a_result())
    store.path(a_trial(seed=1)).write_bytes(b"\xff\xfe\x00{")
    assert len(store.results()[1]) == 1


def test_a_planned_trial_whose_file_is_broken_says_how_to_remove_it(store: Store) -> None:
    store.put(a_result())
    store.path(a_trial()).write_text("{")
    with pytest.raises(UserError, match=f"harness rm {a_trial().id}"):
        store.get(a_trial())


def test_a_folder_that_cannot_be_written_is_told_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write results to .*file"):
        Store(tmp_path / "file" / "results").prepare()


def test_ids_are_found_by_their_beginning(store: Store) -> None:
    store.put(a_result())
    assert store.find(a_trial().id[:6]) == store.path(a_trial())
    with pytest.raises(UserError, match="no result"):
        store.find("zzz")
    with pytest.raises(UserError, match="no result"):
        store.find("")
    for seed in range(1, 40):
        store.put(a_result(a_trial(seed=seed)))
    with pytest.raises(UserError, match="begins several ids"):
        store.find(next(c for c in "0123456789abcdef" if sum(f.stem[0] == c for f in store.files()) > 1))


def test_reading_says_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        store_module.read(tmp_path / "missing.json")


# --- the values of each query, in a file beside the record ---


def measured(seed: int = 0, rank: int = 1, **changes: Any) -> Result:
    """A result with the values of two queries."""
    values = PerQuery(
        np.array([0, 1]), np.array([[rank, rank]]), np.ones(2), np.ones(2), depth=4, names=("owl", "bear")
    )
    file = values.to_bytes()
    return replace(a_result(a_trial(seed=seed)), queries=values.summary(file), per_query=file, **changes)


def npz(store: Store, result: Result) -> Path:
    return store.path(result.trial, id=result.id).with_suffix(".npz")


def test_the_values_of_queries_lie_beside_the_record(store: Store) -> None:
    store.put(measured())
    record = json.loads(store.path(a_trial()).read_text())
    assert record["queries"]["sha256"] == hashlib.sha256(npz(store, measured()).read_bytes()).hexdigest()
    assert "per_query" not in record
    stored = Store(store.root).get(a_trial())
    assert stored.per_query == b""  # a record is small: its values are read when they are needed
    assert store.per_query(stored).ranks.tolist() == [[1, 1]]
    assert store.class_names(stored) == ("owl", "bear")


def test_of_two_drivers_the_values_are_those_of_the_record_that_is_stored(store: Store) -> None:
    assert store.put(measured(rank=1))
    assert not store.put(measured(rank=2))
    assert store.per_query(store.get(a_trial())).ranks.tolist() == [[1, 1]]
    assert store.put(measured(rank=3), replace=True)
    assert store.per_query(store.get(a_trial())).ranks.tolist() == [[3, 3]]
    assert store.put(a_result(), replace=True)  # without values
    assert not npz(store, measured()).exists()
    assert not list(store.root.rglob("*.part"))


def test_values_go_when_their_record_goes(store: Store) -> None:
    members = (a_trial().id, a_trial(seed=1).id)
    joined = measured(ensemble=2, members=members)
    for result in (measured(), measured(seed=1), joined):
        store.put(result)
    assert npz(store, joined).exists()
    store.remove(store.path(a_trial()))
    assert not npz(store, measured()).exists()
    assert not npz(store, joined).exists()
    assert npz(store, measured(seed=1)).exists()


def test_values_without_a_record_are_swept(store: Store) -> None:
    for seed in range(3):
        store.put(measured(seed=seed))
        if seed < 2:
            os.utime(npz(store, measured(seed=seed)), (0, 0))
    store.path(a_trial()).unlink()
    store.path(a_trial(seed=2)).unlink()  # its values are new: somebody may be at work
    store.remove_parts()
    assert [npz(store, measured(seed=seed)).exists() for seed in range(3)] == [False, True, True]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda file: file.unlink(), "cannot be read: No such file or directory"),
        (lambda file: file.write_bytes(file.read_bytes()[:-9]), "damaged: its checksum is not the record's"),
        (lambda file: (file.unlink(), file.mkdir()), "cannot be read: Is a directory"),
    ],
    ids=["missing", "cut short", "a folder"],
)
def test_damaged_values_are_named(store: Store, damage: Callable[[Path], Any], said: str) -> None:
    store.put(measured())
    damage(npz(store, measured()))
    with pytest.raises(ValueError, match=said) as error:
        store.per_query(store.get(a_trial()))
    assert str(error.value).startswith(f"runs/emoji/triplet/{a_trial().id}.npz: ")
    assert store.class_names(store.get(a_trial())) == ()


def test_an_older_record_has_no_values(store: Store) -> None:
    store.put(a_result())
    with pytest.raises(ValueError, match="not stored"):
        store.per_query(store.get(a_trial()))


def test_a_full_disk_leaves_neither_record_nor_values(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []

    def full(_: int) -> None:
        synced.append(1)
        if len(synced) == 2:  # the values are written, the record is not
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        store.put(measured())
    assert not [file for file in store.root.rglob("*") if file.is_file()]
