"""`harness status`: what it counts and names."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from harness.execution import status
from harness.execution.display import Display
from harness.spec import Event, Failure, Trial
from harness.storage import Storage
from harness.store import Store
from tests.conftest import Harness
from tests.factories import a_result, a_trial


def test_status_counts_and_names_failures_with_their_logs(harness: Harness, tmp_path: Path) -> None:
    where = Store(tmp_path / "results")
    where.put(a_result())
    where.note(Failure(a_trial(seed=1), "RuntimeError: x", "Traceback", "/tmp/ray/worker.err"))
    storage = Storage(str(where.artifacts))
    dead = subprocess.Popen(["true"])
    dead.wait()
    sign = {"node": os.uname().nodename, "log": "/tmp/ray/other.err", "time": time.time(), "progress": None}
    storage.write_json("running/a.json", {**sign, "name": "group-emoji-val0-a", "pid": os.getpid()})
    storage.write_json("running/b.json", {**sign, "name": "group-emoji-val0-b", "pid": dead.pid})
    trials = [a_trial().name, a_trial(seed=1).name, "group-emoji-val0-a", "group-emoji-val0-c"]
    storage.write_json("plans/p.json", {"node": sign["node"], "pid": os.getpid(), "started": 0, "trials": trials})
    said = harness("status")
    assert said.code == 0
    first, *rest = said.out.splitlines()
    assert first.startswith("1 done, 1 running, 1 waiting, 1 failed, 1 lost, about ")
    assert f"  {a_trial(seed=1).name}  failed: RuntimeError: x" in rest
    assert "    /tmp/ray/worker.err" in rest
    assert any("group-emoji-val0-a  starting on" in line for line in rest)
    assert any("group-emoji-val0-b  no sign of life" in line and "/tmp/ray/other.err" in line for line in rest)


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


def test_a_trial_that_runs_again_waits_although_it_is_stored(harness: Harness, tmp_path: Path) -> None:
    """--rerun and --curves run what is stored; final runs that the search has yet to name wait too."""
    store = Store(tmp_path / "results")
    store.put(a_result())
    storage = Storage(str(store.artifacts))
    plan = {"node": os.uname().nodename, "pid": os.getpid(), "trials": [a_trial().name]}
    storage.write_json("plans/p.json", {**plan, "started": time.time() + 60, "unnamed": 3})
    assert harness("status").out.startswith("1 done, 0 running, 4 waiting, 0 failed")


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
    Store(tmp_path / "results").put(a_result())
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", nap)
    said = harness("status", "--watch")
    assert said.code == 0
    assert said.out.count("1 done, 0 running, 0 waiting, 0 failed") == 2
