"""`harness run` with Ray, as a user has it: killed drivers, two drivers, Ctrl-C, jobs, status."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster as RayCluster

from harness.storage import alive
from tests.conftest import heed_ctrl_c

pytestmark = pytest.mark.slow

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


def start_until(words: list[str], sign: str) -> tuple[subprocess.Popen[str], str]:
    """The command running, stopped reading at the first line that holds `sign`."""
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE}
    running = subprocess.Popen(words, **pipes, text=True, env=environment(), preexec_fn=heed_ctrl_c)
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


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, cluster: RayCluster) -> Path:
    results = tmp_path_factory.mktemp("undisturbed")
    done = finish(command(results, "--address", cluster.address))
    assert done.returncode == 0, done.stderr
    assert "[5/5]" in done.stderr  # raw pixels, two untrained networks, two seeds
    assert not leftovers(results)
    return results


def test_a_killed_driver_costs_at_most_an_epoch_of_each_running_trial(tmp_path: Path, undisturbed: Path) -> None:
    running, _ = start_until(command(tmp_path), "epoch 2/4")
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert list((tmp_path / "artifacts" / "checkpoints").glob("*.pt"))
    until(lambda: not workers_alive(tmp_path))  # its Ray follows it
    again = finish(command(tmp_path))
    assert again.returncode == 0, again.stderr
    resumed = {line.split()[0] for line in again.stderr.splitlines() if "epoch 3/4" in line}
    begun = {line.split()[0] for line in again.stderr.splitlines() if "epoch 1/4" in line}
    assert resumed - begun, again.stderr
    assert bits(tmp_path) == bits(undisturbed)
    assert not leftovers(tmp_path)


def test_two_drivers_at_once_store_every_trial_once(tmp_path: Path, undisturbed: Path, cluster: RayCluster) -> None:
    words = command(tmp_path, "--address", cluster.address)
    both = [
        subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
        for _ in range(2)
    ]
    ends = [(one.communicate(timeout=300), one.returncode) for one in both]
    assert [code for _, code in ends] == [0, 0], ends
    assert bits(tmp_path) == bits(undisturbed)
    assert ends[0][0][0] == ends[1][0][0]  # both print the same table


def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    running, _ = start_until(command(tmp_path, losses="triplet,group"), "] triplet-")
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    assert "interrupted; finished trials are stored" in err
    assert "Traceback" not in err
    assert records(tmp_path)


def test_status_tells_what_runs_while_it_runs_and_afterwards(tmp_path: Path, cluster: RayCluster) -> None:
    running, _ = start_until(command(tmp_path, "--address", cluster.address), "triplet")
    running.send_signal(signal.SIGSTOP)  # no trial begins or ends meanwhile
    try:
        status = finish([*HARNESS, "status", "--results", str(tmp_path)]).stdout
    finally:
        running.send_signal(signal.SIGCONT)
    running.communicate(timeout=240)
    first, *rest = status.splitlines()
    assert not first.startswith("5 done, 0 running")
    assert any("triplet-emoji-val0-" in line for line in rest), status
    after = finish([*HARNESS, "status", "--results", str(tmp_path)]).stdout
    assert after.splitlines()[0] == "5 done, 0 running, 0 waiting, 0 failed"
    assert "best validation R@1: triplet " in after  # its final runs are on val0 here


def test_a_ray_job_runs_it_and_refuses_a_relative_results_folder(
    tmp_path: Path, undisturbed: Path, cluster: RayCluster
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    submit = [shutil.which("ray", path=str(Path(sys.executable).parent)) or "ray", "job", "submit"]
    submit += ["--address", f"http://{cluster.head_node.webui_url}"]
    submit += ["--working-dir", str(folder), "--"]
    refused = finish([*submit, *command(Path("relative"))])
    assert refused.returncode != 0
    assert "give an absolute path" in refused.stdout + refused.stderr
    done = finish([*submit, *command(tmp_path / "results")])
    assert done.returncode == 0, done.stdout + done.stderr
    assert bits(tmp_path / "results") == bits(undisturbed)
