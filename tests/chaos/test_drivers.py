"""Drivers that are killed, and two of them in one folder."""

import signal
import subprocess
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster as RayCluster

from tests.processes import bits, command, environment, finish, leftovers, start_until, until, workers_alive

pytestmark = pytest.mark.chaos_long


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, cluster: RayCluster) -> Path:
    results = tmp_path_factory.mktemp("undisturbed")
    done = finish(command(results, "--address", cluster.address))
    assert done.returncode == 0, done.stderr
    assert "[5/5]" in done.stderr  # raw pixels, two untrained networks, two seeds
    assert not leftovers(results)
    return results


@pytest.mark.fault(
    "the driver is killed while it trains",
    "the same command goes on from the last epoch of each trial, with the same bits",
)
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


@pytest.mark.fault(
    "two drivers at once on one Ray cluster, with one results folder",
    "every trial is stored once, and both print the same table",
)
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
