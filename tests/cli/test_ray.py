"""`harness run` with Ray, as a user has it: Ctrl-C, status, jobs."""

import shutil
import signal
import sys
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster as RayCluster

from tests.processes import HARNESS, command, finish, records, start_until, until

pytestmark = pytest.mark.slow


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
    assert first.startswith("emoji · ")
    assert " of 5 done, " in first
    assert any("triplet-emoji-val0-" in line for line in rest), status
    after = finish([*HARNESS, "status", "--results", str(tmp_path)]).stdout
    assert after.splitlines()[0].endswith(": 5 trials stored, none running")
    assert "best validation R@1: triplet " in after  # its final runs are on val0 here


def test_a_ray_job_runs_it_and_refuses_a_relative_results_folder(tmp_path: Path, cluster: RayCluster) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    submit = [shutil.which("ray", path=str(Path(sys.executable).parent)) or "ray", "job", "submit"]
    submit += ["--address", f"http://{cluster.head_node.webui_url}"]
    submit += ["--working-dir", str(folder), "--"]
    until(
        lambda: "No available agent" not in finish([*submit, "true"]).stderr
    )  # Ray's, which starts after the dashboard
    refused = finish([*submit, *command(Path("relative"))])
    # a folder with the contents of an ended job's may be removed by Ray while the next job begins
    (folder / "notes.txt").touch()
    assert refused.returncode != 0
    assert "give an absolute path" in refused.stdout + refused.stderr
    done = finish([*submit, *command(tmp_path / "results")])
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(records(tmp_path / "results")) == 5  # raw pixels, two untrained networks, two seeds
