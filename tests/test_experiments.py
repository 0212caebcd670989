"""The records of experiments: written when a request starts, completed when its search has chosen, carried along."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.spec import ExperimentRecord, Failure, Job, Listener, UserError
from harness.store import Store
from tests.cli.records import stored
from tests.conftest import Harness
from tests.execution import test_run
from tests.execution.test_run import a_run
from tests.factories import a_result, an_experiment

A, B = "a" * 12, "b" * 12


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


def only(store: Store) -> ExperimentRecord:
    (record,), problems = store.experiments()
    assert not problems
    return record


def test_what_a_request_asks_for_is_recorded_before_it_runs_and_completed_when_its_search_has_chosen(
    tmp_path: Path, store: Store
) -> None:
    seen: list[ExperimentRecord] = []

    def watched(jobs: Iterable[Job | None], listener: Listener) -> None:
        seen.append(only(store))
        for number, job in enumerate(jobs):
            assert job is not None
            listener(job.trial, a_result(job.trial, **{"R@1": number / 10}))
        seen.append(only(store))

    knobs = {"triplet": {"margin": 0.3}}
    planned = test_run.experiment("triplet", "group", trials=2, seeds=2, settings={"epochs": 1}, knobs=knobs)
    run = a_run(tmp_path, planned, watched)
    run()
    start, searched = seen
    account = run.account
    assert (start.final, start.chosen) == ((), {})
    assert set(start.search) == {trial.id for trial in account.search}
    assert set(start.baseline) == {trial.id for trial in account.baselines}
    assert set(searched.final) == {trial.id for trial in account.final}
    assert searched == only(store)
    assert searched == replace(start, final=searched.final, chosen=searched.chosen)
    assert searched.chosen["group"] == next(trial for trial in account.final if trial.loss == "group").searched
    assert (start.select, start.folds, start.trials, start.seeds) == ("R@1", 1, 2, 2)
    assert start.settings == {"epochs": 1, "triplet.margin": 0.3}
    assert start.space["triplet"] == {"lr": "0.0001 to 0.001 (log)", "weight_decay": "1e-07 to 0.001 (log)"}
    assert "anchors" in start.space["group"]


def test_the_same_request_again_is_the_same_record_whatever_ran_before(tmp_path: Path, store: Store) -> None:
    a_run(tmp_path, test_run.experiment("triplet", "group", trials=2))()
    first = only(store)
    a_run(tmp_path, test_run.experiment("group", "triplet", trials=2))()
    assert only(store) == first
    a_run(tmp_path, test_run.experiment("group", "triplet", trials=1))()
    assert len(store.experiments()[0]) == 2


def test_a_request_whose_trials_are_all_stored_is_recorded_too(tmp_path: Path, store: Store) -> None:
    """A cell of a grid that a search draws is a trial of both."""
    drawn = a_run(tmp_path, test_run.experiment("triplet", trials=1)).account.search[0]
    grid = {"lr": (drawn.lr,), "weight_decay": (drawn.weight_decay,), "triplet.margin": (drawn.knobs["margin"],)}
    a_run(tmp_path, test_run.experiment("triplet", grid=grid))()
    assert only(store).grid == (drawn.id,)
    a_run(tmp_path, test_run.experiment("triplet", trials=1))()
    assert {role for record in store.experiments()[0] for role in record.roles(drawn.id)} == {"grid", "search"}


def test_a_search_that_chooses_again_keeps_what_it_chose_before(tmp_path: Path, store: Store) -> None:
    """The trial that failed in the first run is the best of the second."""
    best = a_run(tmp_path, test_run.experiment("triplet", trials=2)).account.search[1]

    def broken(jobs: Iterable[Job | None], listener: Listener) -> None:
        for job in jobs:
            assert job is not None
            listener(job.trial, Failure(job.trial, "no", "") if job.trial == best else a_result(job.trial))

    def whole(jobs: Iterable[Job | None], listener: Listener) -> None:
        for job in jobs:
            assert job is not None
            listener(job.trial, a_result(job.trial, **{"R@1": 0.9}))

    a_run(tmp_path, test_run.experiment("triplet", trials=2), broken)()
    first = only(store)
    a_run(tmp_path, test_run.experiment("triplet", trials=2), whole)()
    second = only(store)
    assert len(first.final) == 1
    assert set(first.final) < set(second.final)
    assert second.chosen["triplet"] == best.searched


def test_two_drivers_that_begin_and_end_in_any_order_leave_one_whole_record(store: Store) -> None:
    start = an_experiment(search=(A,), command="first")
    end = replace(start, final=(B,), chosen={"triplet": {"margin": 0.1}})
    for record in (start, end, replace(start, command="second"), replace(end, command="second")):
        store.put_experiment(record)
    assert only(store) == end
    assert [file.name for file in store.root.rglob("*") if file.is_file()] == [f"{end.id}.json"]


def test_a_damaged_record_is_one_line_and_the_others_are_read(store: Store) -> None:
    good = an_experiment(final=(A,))
    store.put_experiment(good)
    folder = store.root / "experiments"
    (folder / f"{B}.json").write_text('{"schema": 1, "id"')
    (folder / "copy.json").write_text(json.dumps(good.to_json()))
    records, problems = store.experiments()
    assert records == [good]
    assert sorted(problem.partition(": ")[2] for problem in problems) == [
        f"a copy of {good.id}.json; skipped",
        "not JSON (Expecting ':' delimiter: line 1 column 19 (char 18)), perhaps cut short; skipped",
    ]
    (folder / f"{good.id}.json").write_text("{}")
    with pytest.raises(UserError, match="not an experiment of this harness; remove it: the same command writes it"):
        store.put_experiment(good)


def test_show_says_which_experiments_a_trial_belongs_to_and_for_what(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    words = ("run", "--losses", "triplet", "--dataset", "blobs")
    harness(*words, "--trials", "1", "--seeds", "2", "--ensemble", "2")
    records = [json.loads(file.read_text()) for file in stored(tmp_path / "results")]
    experiment = only(Store(tmp_path / "results"))
    for record in records:
        trial = record["trial"]
        final = "a baseline" if trial["loss"] == "none" else "a final run"
        role = "a search trial" if trial["fold"] == "val0" else final
        assert (
            f"Made as {role} in experiment {experiment.id} ({experiment.made}):\n  harness {' '.join(words)} --trials 1"
            in harness("show", record["id"]).out
        )
    (file,) = (tmp_path / "results" / "experiments").glob("*.json")
    file.write_text("{")
    said = harness("show", records[0]["id"])
    assert said.code == 1
    assert said.err.startswith(f"harness: {file}: not JSON")


def test_import_carries_experiments(small: Path, harness: Harness, tmp_path: Path) -> None:
    other = tmp_path / "other"
    words = ("run", "--losses", "triplet", "--dataset", "blobs")
    harness(*words, "--results", str(other))
    (file,) = (other / "experiments").glob("*.json")
    assert harness("import", str(other)).code == 0
    assert (tmp_path / "results" / "experiments" / file.name).read_bytes() == file.read_bytes()
    file.write_text("[]")
    said = harness("import", str(other))
    assert said.code == 1
    assert f"{file}: not an experiment of this harness; skipped" in said.err


def test_a_record_has_no_password_and_a_dry_run_writes_none(small: Path, harness: Harness, tmp_path: Path) -> None:
    words = ("run", "--losses", "none", "--dataset", "blobs", "--data-root", "http://me:secret@host/data")
    harness(*words, "--dry-run")
    assert not (tmp_path / "results" / "experiments").exists()
    harness(*words)
    (file,) = (tmp_path / "results" / "experiments").glob("*.json")
    assert "http://***@host/data" in file.read_text()
    assert "secret" not in file.read_text()


def test_a_command_with_bytes_that_are_no_text_can_be_read_back(small: Path, harness: Harness, tmp_path: Path) -> None:
    """The name of a folder, as Python gives it to a program."""
    harness("run", "--losses", "none", "--dataset", "blobs", "--data-root", "/tmp/\udcff\x1b[2J")
    assert r"/tmp/\udcff\u001b[2J" in only(Store(tmp_path / "results")).command
    assert harness("tables").code == 0
