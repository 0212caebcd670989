"""Plans of drivers as files, for tests of what is read from them."""

import os
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from harness.storage import Storage


def dead_process() -> int:
    """The pid of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def write_plan(storage: Storage, id: str, trials: Sequence[str], **changes: Any) -> None:
    """The plan of a driver: of this process, at work, unless something else is given."""
    usual = {
        "node": os.uname().nodename,
        "pid": os.getpid(),
        "started": 0.0,
        "time": time.time(),
        "command": "harness run",
        "dataset": "emoji",
        "protocol": "quick",
        "trials": list(trials),
        "unnamed": 0,
        "total": len(trials) + changes.get("unnamed", 0),
        "waits_for": "",
        "interrupted": False,
    }
    storage.write_json(f"plans/{id}.json", {**usual, **changes})


def write_heartbeat(storage: Storage, name: str, plan: str, **changes: Any) -> None:
    """The heartbeat of a trial in this process."""
    usual = {
        "name": name,
        "plan": plan,
        "node": os.uname().nodename,
        "pid": os.getpid(),
        "log": "/tmp/worker.err",
        "time": time.time(),
        "position": "epoch 1/2",
    }
    storage.write_json(f"running/{name.rsplit('-', 1)[-1]}.json", {**usual, **changes})
