"""`harness status`: what it counts and names."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli.status import fitted
from harness.execution import announcement, start, status
from harness.execution.announcement import announced
from harness.execution.display import Display
from harness.execution.winners import OTHER_CLASSES
from harness.spec import Event, Failure, Trial
from harness.storage import Storage
from harness.store import Store
from tests.conftest import Harness
from tests.execution.plans import dead_process, write_heartbeat, write_plan
from tests.factories import a_result, a_trial, an_experiment


def test_status_counts_and_names_failures_with_their_logs(harness: Harness, tmp_path: Path) -> None:
    where = Store(tmp_path / "results")
    storage = Storage(str(where.artifacts))
    write_heartbeat(storage, "group-emoji-val0-a", "p")
    write_heartbeat(storage, "group-emoji-val0-b", "p", pid=dead_process())
    write_heartbeat(storage, "group-emoji-val0-c", "p", time=0, log="/tmp/ray/other.err")
    letters = [f"group-emoji-val0-{letter}" for letter in "abcd"]
    write_plan(storage, "p", [a_trial().name, a_trial(seed=1).name, *letters], started=time.time() - 60)
    where.put(replace(a_result(), seconds={"total": 60.0}))
    where.note(Failure(a_trial(seed=1), "RuntimeError: x", "Traceback", "/tmp/ray/worker.err"))
    said = harness("status")
    assert said.code == 0
    first, *rest = said.out.splitlines()
    # one of a minute has ended; two more wait for the process of one that is half done
    assert first == "emoji · quick: 1 of 6 done, 1 running, 2 waiting, 1 failed, 1 lost, about 0:02:30 left"
    assert f"  {a_trial(seed=1).name}  failed: RuntimeError: x" in rest
    assert "    /tmp/ray/worker.err" in rest
    assert f"  group-emoji-val0-a  epoch 1/2  on {os.uname().nodename}" in rest
    assert any("group-emoji-val0-b  its process died; it starts again" in line for line in rest)
    assert any("group-emoji-val0-c  no sign of life" in line and "/tmp/ray/other.err" in line for line in rest)


def test_status_says_what_a_run_waits_for(harness: Harness, tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "results" / "artifacts"))
    write_plan(storage, "p", [a_trial().name], waits_for="waiting for a node")
    assert harness("status").out.splitlines() == [
        "emoji · quick: 0 of 1 done, 0 running, 1 waiting, 0 failed",
        "  waiting for a node",
    ]


def test_the_best_validation_scores_are_by_the_protocols_metric_and_leave_out_baselines(
    small: Path, harness: Harness
) -> None:
    file = small / "protocols" / "tiny.toml"
    file.write_text(file.read_text().replace('select = "R@1"', 'select = "MAP@R"'))
    harness("run", "--losses", "triplet", "--dataset", "blobs", "--trials", "2")
    harness("run", "--losses", "none", "--dataset", "blobs", "--set", "fold=val0")
    said = harness("status").out.splitlines()
    assert said[0] == "blobs · tiny: 7 trials stored, none running"
    assert said[1].startswith("  best validation MAP@R: triplet ")
    assert "none" not in said[1]


def test_a_cell_of_a_grid_that_a_search_draws_counts_with_all_its_folds(harness: Harness, tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    folds = [a_result(a_trial(fold=f"val{fold}"), **{"R@1": score}) for fold, score in enumerate((0.9, 0.5))]
    folds[0] = replace(folds[0], provenance={"purpose": "grid"})
    for result in folds:
        store.put(result)
    store.put_experiment(an_experiment(search=tuple(sorted(result.id for result in folds)), folds=2))
    assert "  best validation R@1: triplet 70.0" in harness("status").out.splitlines()


def test_a_trial_that_runs_again_waits_although_it_is_stored(harness: Harness, tmp_path: Path) -> None:
    """--rerun and --curves run what is stored; final runs that the search has yet to name wait too."""
    store = Store(tmp_path / "results")
    store.put(a_result())
    write_plan(Storage(str(store.artifacts)), "p", [a_trial().name], started=time.time() + 60, unnamed=3)
    assert harness("status").out.splitlines()[:2] == [
        "emoji · quick: 0 of 4 done, 0 running, 4 waiting, 0 failed, about 0:00:08 left",  # the stored one took 2 s
        "  3 of the waiting follow the searches, which choose their values",
    ]


def test_a_failed_trial_that_is_tried_again_has_not_failed(harness: Harness, tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    for seed in (0, 1):
        store.note(Failure(a_trial(seed=seed), "RuntimeError: x", "Traceback"))
    write_plan(Storage(str(store.artifacts)), "p", [a_trial().name], started=time.time() + 60)
    said = harness("status").out
    assert said.startswith(
        "emoji · quick: 0 of 1 done, 0 running, 1 waiting, 0 failed\n"
    )  # the other one is an older run's
    assert a_trial(seed=1).name in said


def test_the_serial_executor_is_seen_while_it_trains(
    small: Path, harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    real = Display.show

    def look(self: Display, trial: Trial, event: Event) -> None:
        store = Store(tmp_path / "results")
        seen.append(status.describe(store, Storage(str(store.artifacts)))[0].splitlines()[0])
        real(self, trial, event)

    monkeypatch.setattr(Display, "show", look)
    harness("run", "--losses", "triplet", "--dataset", "blobs")
    assert "blobs · tiny: 2 of 3 done, 1 running, 0 waiting, 0 failed" in [line.split(", about")[0] for line in seen]
    assert not list((tmp_path / "results" / "artifacts" / "running").iterdir())


def test_watching_ends_with_ctrl_c(harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "results")
    store.put(a_result())
    write_plan(Storage(str(store.artifacts)), "p", [a_trial().name])
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", nap)
    said = harness("status", "--watch")
    assert said.code == 0
    assert said.out.count("1 of 1 done, 0 running, 0 waiting, 0 failed") == 2


def test_watching_ends_when_the_run_does(harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "results")
    store.put(a_result())
    storage = Storage(str(store.artifacts))
    write_plan(storage, "p", [])
    monkeypatch.setattr(time, "sleep", lambda seconds: storage.remove("plans/p.json"))
    said = harness("status", "--watch")
    assert said.code == 0
    assert [line.split(": ")[1] for line in said.out.splitlines()] == [
        "0 of 0 done, 0 running, 0 waiting, 0 failed",
        "1 trial stored, none running",
    ]


def test_datasets_and_protocols_are_kept_apart_and_what_runs_comes_first(harness: Harness, tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    cub, running = a_trial(dataset="cub"), a_trial(seed=3, protocol="cpu")
    for trial in (a_trial(), a_trial(seed=1), cub):
        store.put(a_result(trial))
    store.note(Failure(a_trial(dataset="cub", seed=1), "RuntimeError: x", "Traceback"))
    write_plan(Storage(str(store.artifacts)), "p", [running.name], protocol="cpu")
    assert harness("status").out.splitlines() == [
        "emoji · cpu: 0 of 1 done, 0 running, 1 waiting, 0 failed",
        "cub · quick: 1 trial stored, 1 failed, none running",
        f"  {a_trial(dataset='cub', seed=1).name}  failed: RuntimeError: x",
        "emoji · quick: 2 trials stored, none running",
        "`harness show ID` tells why a trial failed, and `harness rm ID` forgets it",
    ]


def test_the_best_scores_of_a_search_are_not_those_of_a_grid(harness: Harness, tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    drawn = a_result(a_trial(fold="val0"), **{"R@1": 0.6})
    cell = replace(a_result(a_trial(fold="val0", epochs=9), **{"R@1": 0.65}), provenance={"purpose": "grid"})
    store.put(drawn)
    store.put(cell)
    store.put_experiment(an_experiment(search=(drawn.id,), folds=1))
    assert harness("status").out.splitlines()[1:] == [
        "  best validation R@1: triplet 60.0",
        "  outside of searches, best validation R@1: triplet 65.0",
        f"  {OTHER_CLASSES}",
    ]


def test_the_total_stands_where_final_runs_turn_out_to_be_stored(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    with announced(storage, "harness run", "emoji", "quick") as plan:
        plan.update([a_trial(fold="val0")], unnamed=2)
        plan.update([a_trial(fold="val0"), a_trial()], unnamed=0)  # one of the two is stored
        (read,) = announcement.read(storage)
        assert (len(read.trials), read.unnamed, read.total) == (2, 0, 3)


def test_a_run_that_prepares_images_is_at_work(
    small: Path, harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, seen = Store(tmp_path / "results"), list[str]()
    storage = Storage(str(store.artifacts))

    def prepare(*_: object) -> None:
        assert status.is_at_work(storage)  # else status --watch would end
        seen.extend(status.describe(store, storage)[0].splitlines())

    monkeypatch.setattr(start, "prepare_images", prepare)
    assert harness("run", "--losses", "none", "--dataset", "blobs").code == 0
    assert seen == [
        "blobs · tiny: 0 of 2 done, 0 running, 2 waiting, 0 failed",
        "  getting ready: no trial has begun yet",
    ]
    assert not announcement.read(storage)


def test_a_folder_that_is_not_there_is_named(harness: Harness, tmp_path: Path) -> None:
    said = harness("status", "--results", str(tmp_path / "nope"))
    assert said.code == 2
    assert "nope: no such folder" in said.err


def test_lines_fit_a_terminal_and_a_command_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    long = "  best validation R@1: " + ", ".join(f"loss-{n} 50.0" for n in range(9))
    command = "  interrupted: 1 trial left; to continue, run: harness run " + "--set a=1 " * 9
    assert fitted(f"{long}\n{command}") == f"{long}\n{command}"  # in a file
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    *lines, last = fitted(f"{long}\n{command}").splitlines()
    assert len(lines) == 2
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("    loss-")
    assert last == command
