"""Real Ray: workers, nodes and trials that die; what is left has the same bits."""

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

pytestmark = pytest.mark.slow


def test_a_killed_worker_goes_on_from_its_checkpoint_with_the_same_bits(cluster: RayCluster, tmp_path: Path) -> None:
    order = tmp_path / "kill-at"  # the call of the loss at which its process dies, once
    lines = [
        "self.calls = getattr(self, 'calls', 0) + 1",
        f"if os.path.exists({str(order)!r}) and self.calls == int(open({str(order)!r}).read()):",
        f"    os.remove({str(order)!r})",
        "    os.kill(os.getpid(), 9)",
        "return (embeddings - embeddings.mean(0)).square().mean()",
    ]
    deadly = own_loss(tmp_path, "\n".join(lines))
    jobs = jobs_of(experiment(deadly, settings={"epochs": 3}), tmp_path / "ray")
    undisturbed = Record()
    serially(jobs, tmp_path / "serial", undisturbed)
    steps = next(event.steps for event in undisturbed.progress if event.stage == "train")
    assert steps > 2
    order.write_text(str(steps + 2))  # in the second epoch
    record = Record()
    with connected(cluster, tmp_path / "ray") as running:
        running.execute(jobs, record)
    assert not order.exists()
    assert same(record.results, undisturbed.results)
    # the first epoch is not trained again
    assert [event.epoch for event in record.progress if event.stage == "train" and event.closes_epoch] == [1, 2, 3]


def pid_of(trial: Trial, storage: Path) -> int:
    heartbeat = Storage(str(storage)).read_json(names.heartbeat(trial.id))
    assert heartbeat is not None
    return int(heartbeat["pid"])


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


def test_a_trial_that_raises_is_a_failure_at_once_and_stops_nobody(cluster: RayCluster, tmp_path: Path) -> None:
    bad = own_loss(tmp_path, "raise RuntimeError('a bad image')")
    jobs = [*jobs_of(experiment(bad), tmp_path / "ray"), *jobs_of(experiment("triplet"), tmp_path / "ray")]
    record = Record()
    with connected(cluster, tmp_path / "ray") as running:
        running.execute(jobs, record)
    (failure,) = record.failures
    assert failure.error == "RuntimeError: a bad image"
    assert "mine.py" in failure.traceback
    assert Path(failure.log).exists()
    assert [result.trial.loss for result in record.results.values()] == ["triplet"]


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


def test_a_node_that_is_always_low_on_memory_fails_every_trial(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.exceptions import OutOfMemoryError
    from ray.tune import Tuner

    def low(tuner: Tuner) -> None:
        queue = tuner._local_tuner._tune_config.search_alg.queue
        while isinstance(queue.suggest("a trial of Tune"), dict):
            pass
        raise RuntimeError("Caught unexpected exception") from OutOfMemoryError("2 worker(s) were killed")

    monkeypatch.setattr(Tuner, "fit", low)
    record = Record()
    with connected(cluster, tmp_path, max_failures=1) as running:
        running.execute(jobs_of(experiment("triplet", seeds=2), tmp_path), record)
    assert [failure.error.partition(" because")[0] for failure in record.failures] == 2 * [
        "the memory of its node ran low 2 times"
    ]
