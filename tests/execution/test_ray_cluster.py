"""Real Ray: results equal the serial executor's to the bit, and resources are shared."""

import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster as RayCluster
from ray.util.state import list_actors

from harness.execution.ray_cluster import Cluster
from harness.spec import Event, Job, Progress, Trial, UserError
from harness.storage import Storage
from tests.execution.ray_runs import Record, connected, experiment, jobs_of, own_loss, same, serially
from tests.factories import a_result

pytestmark = pytest.mark.slow


def test_results_equal_the_serial_executors_and_workers_are_reused(cluster: RayCluster, tmp_path: Path) -> None:
    jobs = jobs_of(experiment("group", "triplet", seeds=3), tmp_path / "ray")
    record = Record()
    with connected(cluster, tmp_path / "ray", gpus_per_trial=1.0) as running:
        running.execute(jobs, record)
    assert same(record.results, serially(jobs, tmp_path / "serial"))
    assert len(record.results) == 6
    assert len({result.provenance["pid"] for result in record.results.values()}) == 2
    assert {result.provenance["threads"] for result in record.results.values()} == {1}
    # nothing of Tune's; a run removes checkpoints and heartbeats as it hears of the end of their trials
    assert {path.name for path in (tmp_path / "ray").iterdir()} == {"checkpoints", "running"}


def test_a_users_own_loss_reaches_the_workers(cluster: RayCluster, tmp_path: Path) -> None:
    mine = own_loss(tmp_path, "return (embeddings - embeddings.mean(0)).square().mean()")
    jobs = jobs_of(experiment(mine), tmp_path / "ray")
    record = Record()
    with connected(cluster, tmp_path / "ray") as running:
        running.execute(jobs, record)
    (result,) = record.results.values()
    assert (result.title, result.trial.loss) == ("Mine", "mine.Mine")


@pytest.mark.parametrize(("share", "at_once"), [(1.0, 2), (0.5, 4)])
def test_gpus_are_shared_as_asked(cluster: RayCluster, tmp_path: Path, share: float, at_once: int) -> None:
    """Each trial waits for as many as the two GPUs have room for: fewer at once would wait in vain."""
    jobs = jobs_of(experiment("triplet", seeds=2 * at_once), tmp_path / "ray")
    results = {job.trial.id: a_result(job.trial) for job in jobs}
    begun, ended, counts = tmp_path / "begun", tmp_path / "ended", tmp_path / "counts"
    for folder in (begun, ended, counts):
        folder.mkdir()

    def meet(job: Job) -> Iterator[Event]:
        (begun / job.trial.id).touch()
        deadline = time.monotonic() + 120
        while len(list(begun.iterdir())) < at_once and time.monotonic() < deadline:
            time.sleep(0.05)
        present = len(list(begun.iterdir())) - len(list(ended.iterdir()))
        (counts / f"{present}-{job.trial.id}").touch()
        (ended / job.trial.id).touch()
        yield results[job.trial.id]

    record = Record()
    with connected(cluster, tmp_path / "ray", gpus_per_trial=share, events=meet) as running:
        running.execute(jobs, record)
    assert len(record.results) == 2 * at_once
    assert max(int(file.name.partition("-")[0]) for file in counts.iterdir()) == at_once


def test_what_can_never_run_is_told_at_once(cluster: RayCluster, tmp_path: Path) -> None:
    with (
        connected(cluster, tmp_path, gpus_per_trial=3.0, cpus_per_trial=2.0) as running,
        pytest.raises(UserError, match="--gpus-per-trial 3: no node has as many; the nodes have 8 CPUs and 2 GPUs"),
    ):
        running.execute(jobs_of(experiment("triplet"), tmp_path), Record())


def test_a_storage_that_a_node_does_not_see_is_told_with_the_nodes_name(cluster: RayCluster) -> None:
    """memory:// is each process's own: the driver writes, the node sees nothing."""
    with pytest.raises(UserError, match=r"--storage memory://x is not seen by \d+\.\d+\.\d+\.\d+"):
        Cluster(address=cluster.address).connected(Storage("memory://x"), print).__enter__()
    ray.shutdown()


def test_no_cluster_at_the_address_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no Ray cluster at"):
        Cluster(address="127.0.0.1:1").connected(Storage(str(tmp_path)), print).__enter__()


def test_a_ray_that_does_not_start_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: object) -> None:
        raise Exception("The current node timed out\nduring startup.")  # as Ray raises it

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(UserError) as caught, Cluster().connected(Storage(str(tmp_path)), print):
        pass
    assert str(caught.value) == (
        "Ray does not start: The current node timed out during startup; on a busy machine, try the same command again"
    )


def test_a_worker_is_named_after_the_trial_that_it_is_at(cluster: RayCluster, tmp_path: Path) -> None:
    """By its process, which the dashboard lists; the name of an actor is taken once, so it names none."""
    jobs = jobs_of(experiment("triplet", seeds=2), tmp_path / "ray")
    actors: list[Any] = []

    def named(job: Job) -> Iterator[Event]:
        yield Progress.idle("train", note=Path("/proc/self/cmdline").read_text().rstrip("\0 "))
        yield a_result(job.trial)

    def look(trial: Trial, event: Event) -> None:
        if isinstance(event, Progress):
            assert event.note == f"ray::{trial.name}"
            actors.extend(list_actors(cluster.address, filters=[("state", "=", "ALIVE")], detail=True))

    record = Record(look)
    with connected(cluster, tmp_path / "ray", cpus_per_trial=8.0, events=named) as running:  # one worker, two trials
        running.execute(jobs, record)
    assert len(record.progress) == 2
    names = {actor.repr_name for actor in actors if actor.class_name == "TrialWorker"}
    assert names == {f"TrialWorker({platform.node()})"}


def test_a_folder_of_the_users_named_as_ours_stands_in_no_ones_way(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("losses", "harness"):
        (tmp_path / "project" / name).mkdir(parents=True)
        (tmp_path / "project" / name / "__init__.py").write_text("raise RuntimeError('the wrong package')")
    monkeypatch.chdir(tmp_path / "project")
    jobs = jobs_of(experiment("triplet"), tmp_path / "ray")
    record = Record()
    with connected(cluster, tmp_path / "ray") as running:
        assert Path.cwd() == tmp_path / "project"
        running.execute(jobs, record)
    assert not record.failures
    assert len(record.results) == 1
