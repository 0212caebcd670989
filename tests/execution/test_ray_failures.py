"""Real Ray: workers and trials that die; what is left has the same bits."""

from pathlib import Path

import pytest
from ray.cluster_utils import Cluster as RayCluster

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
