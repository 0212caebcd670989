"""`harness` as a process of its own: to be interrupted, killed and run again."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.storage import alive
from tests.conftest import heed_ctrl_c

SETTINGS = ("backbone=test_efficientnet", "dim=8", "resize=16", "crop=16", "fold=val0", "epochs=4")
HARNESS = [sys.executable, "-m", "harness"]


def command(results: Path, *more: str, losses: str = "triplet", seeds: int = 2) -> list[str]:
    words = [
        *HARNESS,
        "run",
        "--losses",
        losses,
        "--seeds",
        str(seeds),
        "--results",
        str(results),
        "--weights",
        "none",
        *more,
    ]
    return words + [word for setting in SETTINGS for word in ("--set", setting)]


def environment() -> dict[str, str]:
    return {**{k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}, "OMP_NUM_THREADS": "1"}


def finish(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=240)


def start(words: list[str], **options: Any) -> subprocess.Popen[str]:
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(words, **pipes, text=True, env=environment(), preexec_fn=heed_ctrl_c, **options)


def start_until(words: list[str], sign: str, **options: Any) -> tuple[subprocess.Popen[str], str]:
    """The command running, stopped reading at the first line that holds `sign`."""
    running = start(words, **options)
    assert running.stderr is not None
    seen = ""
    while sign not in seen:
        line = running.stderr.readline()
        assert line, f"ended before {sign!r}:\n{seen}"
        seen += line
    return running, seen


def records(results: Path) -> dict[str, dict]:
    files = list(results.glob("runs/*/*/*.json"))
    found = {file.stem: json.loads(file.read_text()) for file in files}
    assert len(found) == len(files)
    return found


def bits(results: Path) -> dict[str, object]:
    return {id: (one["metrics"], [row["loss"] for row in one["curve"]]) for id, one in records(results).items()}


def leftovers(results: Path) -> list[str]:
    artifacts = results / "artifacts"
    folders = ("checkpoints", "running", "plans", "tune")
    return [str(file) for folder in folders for file in (artifacts / folder).rglob("*") if file.is_file()]


def workers_alive(results: Path) -> list[int]:
    """Processes that have left a heartbeat."""
    records = [json.loads(file.read_text()) for file in (results / "artifacts" / "running").glob("*.json")]
    return [record["pid"] for record in records if alive(record["node"], record["pid"])]


def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.1)


def processes(session: int) -> dict[int, str]:
    """The processes of a session and their command lines."""
    words = ["ps", "-ww", "-o", "pid=,args=", "-s", str(session)]  # in full, whatever COLUMNS says
    lines = subprocess.run(words, capture_output=True, text=True).stdout.splitlines()
    return {int(line.split()[0]): line.partition(" ")[2] for line in map(str.strip, lines)}
