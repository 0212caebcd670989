"""`harness status`: what it counts and names."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness.execution import status
from harness.execution.display import Display
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
    where.put(a_result())
    where.note(Failure(a_trial(seed=1), "RuntimeError: x", "Traceback", "/tmp/ray/worker.err"))
    said = harness("status")
    assert said.code == 0
    first, *rest = said.out.splitlines()
    assert first.startswith("1 done, 1 running, 2 waiting, 1 failed, 1 lost, about 0:02:0")  # two of six took a minute
    assert f"  {a_trial(seed=1).name}  failed: RuntimeError: x" in rest
    assert "    /tmp/ray/worker.err" in rest
    assert f"  group-emoji-val0-a  epoch 1/2  on {os.uname().nodename}" in rest
    assert any("group-emoji-val0-b  its process died; it starts again" in line for line in rest)
    assert any("group-emoji-val0-c  no sign of life" in line and "/tmp/ray/other.err" in line for line in rest)


def test_the_best_validation_scores_are_by_the_protocols_metric_and_leave_out_baselines(
    small: Path, harness: Harness
) -> None:
    file = small / "protocols" / "tiny.toml"
    file.write_text(file.read_text().replace('select = "R@1"', 'select = "MAP@R"'))
    harness("run", "--losses", "triplet", "--dataset", "blobs", "--trials", "2")
    harness("run", "--losses", "none", "--dataset", "blobs", "--set", "fold=val0")
    said = harness("status").out.splitlines()
    assert said[0] == "7 done, 0 running, 0 waiting, 0 failed"
    assert said[1].startswith("  blobs · tiny: best validation MAP@R: triplet ")
    assert "none" not in said[1]


def test_a_cell_of_a_grid_that_a_search_draws_counts_with_all_its_folds(harness: Harness, tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    folds = [a_result(a_trial(fold=f"val{fold}"), **{"R@1": score}) for fold, score in enumerate((0.9, 0.5))]
    folds[0] = replace(folds[0], provenance={"purpose": "grid"})
    for result in folds:
        store.put(result)
    store.put_experiment(an_experiment(search=tuple(sorted(result.id for result in folds)), folds=2))
    assert "  emoji · quick: best validation R@1: triplet 70.0" in harness("status").out.splitlines()


def test_a_trial_that_runs_again_waits_although_it_is_stored(harness: Harness, tmp_path: Path) -> None:
    """--rerun and --curves run what is stored; final runs that the search has yet to name wait too."""
    store = Store(tmp_path / "results")
    store.put(a_result())
    write_plan(Storage(str(store.artifacts)), "p", [a_trial().name], started=time.time() + 60, unnamed=3)
    assert harness("status").out.startswith("1 done, 0 running, 4 waiting, 0 failed")


def test_a_failed_trial_that_is_tried_again_has_not_failed(harness: Harness, tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    for seed in (0, 1):
        store.note(Failure(a_trial(seed=seed), "RuntimeError: x", "Traceback"))
    write_plan(Storage(str(store.artifacts)), "p", [a_trial().name], started=time.time() + 60)
    said = harness("status").out
    assert said.startswith("0 done, 0 running, 1 waiting, 1 failed\n")
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
    assert "2 done, 1 running, 0 waiting, 0 failed" in [line.split(", about")[0] for line in seen]
    assert not list((tmp_path / "results" / "artifacts" / "running").iterdir())


def test_watching_ends_with_ctrl_c(harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "results")
    store.put(a_result())
    write_plan(Storage(str(store.artifacts)), "p", [])
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", nap)
    said = harness("status", "--watch")
    assert said.code == 0
    assert said.out.count("1 done, 0 running, 0 waiting, 0 failed") == 2


def test_watching_ends_when_the_run_does(harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "results")
    store.put(a_result())
    storage = Storage(str(store.artifacts))
    write_plan(storage, "p", [])
    monkeypatch.setattr(time, "sleep", lambda seconds: storage.remove("plans/p.json"))
    said = harness("status", "--watch")
    assert said.code == 0
    assert said.out.count("1 done") == 2  # while it ran, and when it had ended
