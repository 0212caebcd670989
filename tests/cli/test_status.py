"""`harness status`: what it counts and names."""

import os
import subprocess
import time
from pathlib import Path

from tests.conftest import Harness


def test_status_counts_and_names_failures_with_their_logs(harness: Harness, tmp_path: Path) -> None:
    from harness.spec import Failure
    from harness.storage import Storage
    from harness.store import Store
    from tests.spec.test_spec import a_result, a_trial

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
