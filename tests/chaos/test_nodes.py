"""Nodes and workers of Ray that go away; what is left has the same bits."""

from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster as RayCluster
from ray.util.state import list_actors

from harness import storage as names
from harness.execution import ray_deaths
from harness.spec import Event, Progress, Result, Trial
from harness.storage import Storage
from tests.execution.ray_runs import Record, connected, experiment, jobs_of, own_loss, same, serially

pytestmark = pytest.mark.chaos_long


def pid_of(trial: Trial, storage: Path) -> int:
    heartbeat = Storage(str(storage)).read_json(names.heartbeat(trial.id))
    assert heartbeat is not None
    return int(heartbeat["pid"])


@pytest.mark.fault(
    "a node dies while it trains",
    "its trials go on elsewhere, with the same bits",
)
def test_trials_of_a_lost_node_go_on_elsewhere(cluster: RayCluster, tmp_path: Path) -> None:
    doomed = cluster.add_node(num_cpus=1, num_gpus=2, resources={"doomed": 1})
    address = next(n for n in ray_nodes(cluster) if "doomed" in n["Resources"])["NodeID"]
    jobs = jobs_of(experiment("triplet", seeds=3, settings={"epochs": 3}), tmp_path / "ray")
    gone: list[str] = []

    def interfere(trial: Trial, event: Event) -> None:
        if gone or not isinstance(event, Progress) or event.stage != "train" or event.epoch < 2:
            return
        actors = list_actors(cluster.address, filters=[("state", "=", "ALIVE")])
        if any(actor.node_id == address and actor.pid == pid_of(trial, tmp_path / "ray") for actor in actors):
            gone.append(trial.id)
            cluster.remove_node(doomed)

    record = Record(interfere)
    # a trial takes all GPUs of a node, so that one runs on each
    with connected(cluster, tmp_path / "ray", gpus_per_trial=2.0) as running:
        running.execute(jobs, record)
    assert gone
    assert same(record.results, serially(jobs, tmp_path / "serial"))


def ray_nodes(cluster: RayCluster) -> list[dict[str, Any]]:
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        return [node for node in ray.nodes() if node["Alive"]]
    finally:
        ray.shutdown()


@pytest.mark.fault(
    "a worker that dies each time",
    "its trial is given up after --max-failures, and the others are done",
)
def test_a_worker_that_dies_each_time_is_given_up_after_max_failures(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_deaths, "VERDICT", 2.0)
    deadly = own_loss(tmp_path, "os._exit(1)")
    jobs = [*jobs_of(experiment(deadly), tmp_path / "ray"), *jobs_of(experiment("triplet"), tmp_path / "ray")]
    record = Record()
    with connected(cluster, tmp_path / "ray", max_failures=1) as running:
        running.execute(jobs, record)
    (failure,) = record.failures
    assert failure.error == "its worker died 2 times (--max-failures)"
    assert failure.work.loss == "mine.Mine"
    assert len(record.results) == 1


@pytest.mark.fault(
    "Ray kills workers for lack of memory, and Tune falls",
    "what has ended does not run again, and the others are done with the same bits",
)
def test_a_node_low_on_memory_stops_nothing(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tune falls once a trial has ended, as it does where Ray kills workers; what has ended does not run again."""
    from ray.exceptions import OutOfMemoryError
    from ray.tune import TuneError, Tuner

    jobs = jobs_of(experiment("triplet", seeds=4), tmp_path / "ray")
    real, fallen = Tuner.fit, []

    def fall(trial: Trial, event: Event) -> None:
        if isinstance(event, Result) and not fallen:
            fallen.append(trial.id)
            raise RuntimeError("Tune falls")

    def fit(self: Tuner) -> Any:
        try:
            return real(self)
        except TuneError:
            raise RuntimeError("Caught unexpected exception") from OutOfMemoryError("2 worker(s) were killed")

    monkeypatch.setattr(Tuner, "fit", fit)
    record = Record(fall)
    with connected(cluster, tmp_path / "ray", gpus_per_trial=1.0) as running:
        running.execute(jobs, record)
    assert fallen
    assert same(record.results, serially(jobs, tmp_path / "serial"))
    assert not record.failures
