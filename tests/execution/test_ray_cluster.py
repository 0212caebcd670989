"""Real Ray: results equal the serial executor's to the bit, whatever dies in between."""

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster as RayCluster
from ray.util.state import list_actors
from rich.console import Console

from harness import config, plan
from harness import storage as names
from harness.execution import local
from harness.execution.account import Account
from harness.execution.display import Display
from harness.execution.ray_cluster import Cluster
from harness.execution.run import Executor, Run
from harness.spec import (
    Event,
    Experiment,
    Failure,
    Job,
    Listener,
    LossSpec,
    Progress,
    Result,
    Stopped,
    Trial,
    UserError,
)
from harness.storage import Storage
from harness.store import Store
from tests.factories import a_result

pytestmark = pytest.mark.slow

# Emoji seen by a tiny network at 16 px.
TINY = {"backbone": "test_efficientnet", "weights": "none", "dim": 8, "resize": 16, "crop": 16, "fold": "val0"}


def own_loss(tmp_path: Path, body: str) -> LossSpec:
    """A user's file, as --losses ./mine.py:Mine reads it."""
    file = tmp_path / "mine.py"
    lines = ["import os", "import torch", "from losses.base import Loss", "class Mine(Loss):"]
    lines += ["    title, cite = 'Mine', 'me'", "    def forward(self, embeddings, labels):"]
    file.write_text("\n".join(lines + [f"        {line}" for line in body.splitlines()]) + "\n")
    return config.loss(f"{file}:Mine")


def experiment(*losses: str | LossSpec, **changes: Any) -> Experiment:
    specs = tuple(config.loss(one) if isinstance(one, str) else one for one in losses)
    settings = {**TINY, "epochs": 2, **changes.pop("settings", {})}
    protocol = changes.pop("protocol", config.protocol("quick"))
    return Experiment(config.dataset("emoji"), protocol, specs, settings=settings, **changes)


def jobs_of(asked: Experiment, storage: Path) -> list[Job]:
    source = asked.losses[0].source if asked.losses else ""
    return [Job(trial, asked.dataset, str(storage), source=source) for trial in plan.final(asked, {})]


class Record:
    """Keeps what was told, and lets a test interfere."""

    def __init__(self, interfere: Callable[[Trial, Event], None] = lambda trial, event: None) -> None:
        self.events: list[tuple[Trial, Event]] = []
        self.interfere = interfere

    def __call__(self, trial: Trial, event: Event) -> None:
        self.events.append((trial, event))
        self.interfere(trial, event)

    @property
    def results(self) -> dict[str, Result]:
        ended = [event for _, event in self.events if isinstance(event, Result)]
        assert len({one.id for one in ended}) == len(ended), "a trial ended twice"
        return {one.id: one for one in ended}

    @property
    def progress(self) -> list[Progress]:
        return [event for _, event in self.events if isinstance(event, Progress)]

    @property
    def failures(self) -> list[Failure]:
        return [event for _, event in self.events if isinstance(event, Failure)]


def serially(jobs: list[Job], storage: Path, record: Record | None = None) -> dict[str, Result]:
    """The undisturbed results: one thread, one process."""
    record = record or Record()
    local.execute([dataclasses.replace(job, storage=str(storage), threads=1) for job in jobs], record)
    return record.results


def same(found: dict[str, Result], expected: dict[str, Result]) -> bool:
    def bits(results: dict[str, Result]) -> dict[str, Any]:
        return {id: (one.metrics, [row["loss"] for row in one.curve]) for id, one in results.items()}

    return bits(found) == bits(expected)


def connected(cluster: RayCluster, storage: Path, **options: Any) -> contextlib.AbstractContextManager[Cluster]:
    return Cluster(address=cluster.address, **options).connected(Storage(str(storage)), lambda line: None)


def pid_of(trial: Trial, storage: Path) -> int:
    sign = Storage(str(storage)).read_json(names.heartbeat(trial.id))
    assert sign is not None
    return int(sign["pid"])


def test_results_equal_the_serial_executors_and_workers_are_reused(cluster: RayCluster, tmp_path: Path) -> None:
    jobs = jobs_of(experiment("group", "triplet", seeds=3), tmp_path / "ray")
    record = Record()
    with connected(cluster, tmp_path / "ray", gpus_per_trial=1.0) as running:
        running.execute(jobs, record)
    assert same(record.results, serially(jobs, tmp_path / "serial"))
    assert len(record.results) == 6
    assert len({one.provenance["pid"] for one in record.results.values()}) == 2
    assert {one.provenance["threads"] for one in record.results.values()} == {1}
    assert not Storage(str(tmp_path / "ray")).names("tune")  # Tune's own state is thrown away


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


def test_trials_of_a_lost_node_go_on_elsewhere(cluster: RayCluster, tmp_path: Path) -> None:
    doomed = cluster.add_node(num_cpus=1, num_gpus=2, resources={"doomed": 1})
    address = next(n for n in ray_nodes(cluster) if "doomed" in n["Resources"])["NodeID"]
    jobs = jobs_of(experiment("triplet", seeds=3, settings={"epochs": 3}), tmp_path / "ray")
    gone: list[str] = []

    def interfere(trial: Trial, event: Event) -> None:
        if gone or not isinstance(event, Progress) or event.stage != "train" or event.epoch < 2:
            return
        actors = list_actors(filters=[("state", "=", "ALIVE")])
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
    assert [one.trial.loss for one in record.results.values()] == ["triplet"]


def test_a_worker_that_dies_each_time_is_given_up_after_max_failures(cluster: RayCluster, tmp_path: Path) -> None:
    deadly = own_loss(tmp_path, "os._exit(1)")
    jobs = [*jobs_of(experiment(deadly), tmp_path / "ray"), *jobs_of(experiment("triplet"), tmp_path / "ray")]
    record = Record()
    with connected(cluster, tmp_path / "ray", max_failures=1) as running:
        running.execute(jobs, record)
    (failure,) = record.failures
    assert failure.error == "its worker died 2 times (--max-failures)"
    assert failure.trial.loss == "mine.Mine"
    assert len(record.results) == 1


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


def test_ray_names_our_trials(cluster: RayCluster, tmp_path: Path) -> None:
    """Its dashboard and its `ray list actors` show which trial a worker is at."""
    jobs = jobs_of(experiment("triplet"), tmp_path / "ray")
    actors: list[Any] = []

    def look(trial: Trial, event: Event) -> None:
        if isinstance(event, Progress) and not actors:
            actors.extend(list_actors(filters=[("state", "=", "ALIVE")], detail=True))

    with connected(cluster, tmp_path / "ray") as running:
        running.execute(jobs, Record(look))
    assert any(actor.class_name == "TrialWorker" for actor in actors)
    assert any(jobs[0].trial.name in (actor.repr_name or "") for actor in actors)


# --- the whole run ---


def run_of(experiment: Experiment, folder: Path, executor: Executor) -> Run:
    console = Console(file=(folder / "log").open("a"), width=200)
    store = Store(folder / "results")
    store.prepare()
    storage = Storage(str(folder / "storage"))
    return Run(Account(experiment, store), storage, executor, Display(console, experiment.protocol))


def test_asha_stops_hopeless_search_trials_of_each_loss_and_never_a_final_run(
    cluster: RayCluster, tmp_path: Path
) -> None:
    """One trial at a time, each worse than the one before; whatever softmax does is worse than any triplet."""
    planned = experiment("triplet", "softmax", trials=3, scheduler="asha", settings={"epochs": 4})
    planned = dataclasses.replace(planned, settings={k: v for k, v in planned.settings.items() if k != "fold"})
    searched = plan.search(planned)
    scores = {trial.id: 0.9 - 0.1 * rank for rank, trial in enumerate(searched)}
    best = {next(trial.id for trial in searched if trial.loss == loss) for loss in ("triplet", "softmax")}
    template = a_result()

    def scored(job: Job) -> Iterator[Event]:
        metrics = {"R@1": scores.get(job.trial.id, 0.0), "NMI": 0.5}
        for epoch in range(1, job.trial.epochs + 1):
            yield Progress("train", epoch, job.trial.epochs, 1, 1, 1.0, 1.0, 0.0, metrics if job.validate else {})
        yield dataclasses.replace(template, trial=job.trial, metrics=metrics)

    with connected(cluster, tmp_path / "storage", gpus_per_trial=2.0, scheduler="asha", events=scored) as running:
        run = run_of(planned, tmp_path, running.execute)
        final = run()
        assert not run.failures
        store = run.account.store
        assert {trial.id for trial in searched if store.get(trial)} == best
        stopped = [trial for trial in searched if store.stopped(trial)]
        assert {trial.id for trial in stopped} == {trial.id for trial in searched} - best
        assert {json.loads(store.path(trial, Stopped).read_text())["epochs"] for trial in stopped} == {1}
        winners = {trial.loss: trial.searched for trial in searched if trial.id in best}
        assert {result.trial.loss: result.trial.searched for result in final if result.trial.is_final} == winners
        assert run_of(planned, tmp_path, running.execute).account.is_complete
        without = run_of(dataclasses.replace(planned, scheduler="none"), tmp_path, running.execute)
        pending = without.account.pending(without.account.search)
        assert {trial.id for trial in pending} == {trial.id for trial in stopped}
        without()
        assert all(store.get(trial) for trial in searched)
        assert not any(store.stopped(trial) for trial in searched)


def test_a_trial_that_the_scheduler_watches_has_the_same_bits(tmp_path: Path) -> None:
    jobs = jobs_of(experiment("triplet"), tmp_path)
    watched = [dataclasses.replace(job, validate=True) for job in jobs]
    assert same(serially(watched, tmp_path / "watched"), serially(jobs, tmp_path / "alone"))


def test_a_disk_that_refuses_stops_the_run_and_leaves_the_store_readable(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = experiment("triplet", seeds=4)
    real, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 2:
            raise OSError(28, "No space left on device")
        real(descriptor)

    with connected(cluster, tmp_path / "storage", gpus_per_trial=1.0) as running:
        run = run_of(asked, tmp_path, running.execute)
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match="No space left on device"):
            run()
    monkeypatch.setattr(os, "fsync", real)
    results, problems = run.account.store.results()
    assert len(results) == 2
    assert not problems


def test_ensembles_join_stored_embeddings_and_train_nothing(cluster: RayCluster, tmp_path: Path) -> None:
    asked = experiment("triplet", seeds=3)
    asked = dataclasses.replace(asked, settings={k: v for k, v in asked.settings.items() if k != "fold"})
    with connected(cluster, tmp_path / "storage", gpus_per_trial=1.0) as running:
        run_of(asked, tmp_path, running.execute)()

    def nobody(jobs: Sequence[Job], listener: Listener) -> None:
        raise AssertionError("nothing is to be trained")

    found = run_of(dataclasses.replace(asked, ensembles=(2, 3)), tmp_path, nobody)()
    pair, triple = [one for one in found if one.ensemble]
    assert (pair.ensemble, triple.ensemble) == (2, 3)
    assert len(pair.members) == len(triple.members) == 3
    assert "mean over 3 subsets" in pair.conventions["ensemble"]
    single = [one.metrics["MAP@R"] for one in found if one.trial.loss == "triplet" and not one.ensemble]
    assert triple.metrics["MAP@R"] > sum(single) / 3
    assert len(Storage(str(tmp_path / "storage")).names("weights")) == 1  # of the best final run


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


def test_a_node_that_is_always_low_on_memory_is_one_line(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.exceptions import OutOfMemoryError
    from ray.tune import Tuner

    def low(_: Tuner) -> None:
        raise RuntimeError("Caught unexpected exception") from OutOfMemoryError("2 worker(s) were killed")

    monkeypatch.setattr(Tuner, "fit", low)
    jobs = jobs_of(experiment("triplet"), tmp_path)
    with (
        connected(cluster, tmp_path, max_failures=1) as running,
        pytest.raises(UserError, match="a node ran low on memory 2 times"),
    ):
        running.execute(jobs, Record())
