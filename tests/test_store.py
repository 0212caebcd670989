"""The store: append-only, whole files, honest about what is not a result."""

import json
import os
from pathlib import Path

import pytest

from harness import store as store_module
from harness.spec import Failure, UserError
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
