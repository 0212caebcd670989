"""`harness run` with Ray, as a user has it: killed drivers, two drivers, Ctrl-C, jobs, status."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster as RayCluster

from tests.processes import (
    HARNESS,
    bits,
    command,
    environment,
    finish,
    leftovers,
    records,
    start_until,
    until,
    workers_alive,
)

pytestmark = pytest.mark.slow


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
    resumed = {line.split()[1] for line in again.stderr.splitlines() if "epoch 3/4" in line}
    begun = {line.split()[1] for line in again.stderr.splitlines() if "epoch 1/4" in line}
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
    assert first.startswith("emoji · ")
    assert " of 5 done, " in first
    assert any("triplet-emoji-val0-" in line for line in rest), status
    after = finish([*HARNESS, "status", "--results", str(tmp_path)]).stdout
    assert after.splitlines()[0].endswith(": 5 trials stored, none running")
    assert "best validation R@1: triplet " in after  # its final runs are on val0 here


def test_a_ray_job_runs_it_and_refuses_a_relative_results_folder(
    tmp_path: Path, undisturbed: Path, cluster: RayCluster
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    submit = [shutil.which("ray", path=str(Path(sys.executable).parent)) or "ray", "job", "submit"]
    submit += ["--address", f"http://{cluster.head_node.webui_url}"]
    submit += ["--working-dir", str(folder), "--"]
    until(
        lambda: "No available agent" not in finish([*submit, "true"]).stderr
    )  # Ray's, which starts after the dashboard
    refused = finish([*submit, *command(Path("relative"))])
    assert refused.returncode != 0
    assert "give an absolute path" in refused.stdout + refused.stderr
    done = finish([*submit, *command(tmp_path / "results")])
    assert done.returncode == 0, done.stdout + done.stderr
    assert bits(tmp_path / "results") == bits(undisturbed)
