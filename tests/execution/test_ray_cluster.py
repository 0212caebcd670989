"""Real Ray: results equal the serial executor's to the bit, whatever dies in between."""

import contextlib
import dataclasses
import json
import os
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster as RayCluster
from ray.util.state import list_actors

from harness import config, plan
from harness import storage as names
from harness.execution import local
from harness.execution.display import Display
from harness.execution.ray_cluster import Cluster
from harness.execution.run import Run
from harness.spec import Event, Experiment, Failure, Job, LossSpec, Progress, Result, Stopped, Trial, UserError
from harness.storage import Storage
from harness.store import Store

pytestmark = pytest.mark.slow

# Emoji seen by a tiny network at 16 px: about a second an epoch.
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
    def failures(self) -> list[Failure]:
        return [event for _, event in self.events if isinstance(event, Failure)]


def serially(jobs: list[Job], storage: Path) -> dict[str, Result]:
    """The undisturbed results: one thread, one process."""
    record = Record()
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
    # 32 px: an epoch is longer than the second between two signs of life
    size = {"resize": 32, "crop": 32}
    jobs = jobs_of(experiment("group", "triplet", settings={"epochs": 3, **size}), tmp_path / "ray")
    killed: list[str] = []
    mid_epoch: list[bool] = []

    def interfere(trial: Trial, event: Event) -> None:
        if isinstance(event, Progress) and (event.stage, event.epoch) == ("train", 2) and not killed:
            killed.append(trial.id)
            mid_epoch.append(event.step < event.steps)
            os.kill(pid_of(trial, tmp_path / "ray"), signal.SIGKILL)

    record = Record(interfere)
    with connected(cluster, tmp_path / "ray") as running:
        running.execute(jobs, record)
    assert same(record.results, serially(jobs, tmp_path / "serial"))
    assert mid_epoch == [True]
    victim = [event for trial, event in record.events if trial.id == killed[0] and isinstance(event, Progress)]
    death = next(i for i, event in enumerate(victim) if event.epoch == 2)
    assert all(event.epoch >= 2 or event.stage == "evaluate" for event in victim[death:])


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


@pytest.mark.parametrize(("share", "most", "least"), [(1.0, 2, 2), (0.5, 4, 3)])
def test_gpus_are_shared_as_asked(cluster: RayCluster, tmp_path: Path, share: float, most: int, least: int) -> None:
    jobs = jobs_of(experiment("triplet", seeds=6, settings={"epochs": 3}), tmp_path / "ray")
    at_work: set[str] = set()
    seen: list[int] = []

    def watch(trial: Trial, event: Event) -> None:
        (at_work.add if isinstance(event, Progress) else at_work.discard)(trial.id)
        seen.append(len(at_work))

    with connected(cluster, tmp_path / "ray", gpus_per_trial=share) as running:
        running.execute(jobs, Record(watch))
    assert least <= max(seen) <= most


def test_what_can_never_run_is_told_at_once(cluster: RayCluster, tmp_path: Path) -> None:
    with (
        connected(cluster, tmp_path, gpus_per_trial=3.0, cpus_per_trial=2.0) as running,
        pytest.raises(UserError, match=r"asks for 2 CPUs and 3 GPUs .* no node has them: 8 CPUs and 2 GPUs"),
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


def test_the_dashboard_shows_our_trials_by_name(cluster: RayCluster, tmp_path: Path) -> None:
    jobs = jobs_of(experiment("triplet"), tmp_path / "ray")
    shown: list[dict[str, Any]] = []

    def look(trial: Trial, event: Event) -> None:
        if isinstance(event, Progress) and not shown:
            url = f"http://{dashboard()}/api/v0/actors?detail=1"
            with urllib.request.urlopen(authorized(url), timeout=30) as answer:
                shown.extend(json.load(answer)["data"]["result"]["result"])

    with connected(cluster, tmp_path / "ray") as running:
        running.execute(jobs, Record(look))
    alive = [actor for actor in shown if actor["state"] == "ALIVE"]
    assert any(actor["class_name"] == "TrialWorker" for actor in alive)
    assert any(jobs[0].trial.name in (actor["repr_name"] or "") for actor in alive)


def dashboard() -> str:
    return str(ray._private.worker.get_dashboard_url())


def authorized(url: str) -> urllib.request.Request:
    from ray._raylet import AuthenticationTokenLoader

    token = AuthenticationTokenLoader.instance().get_raw_token()
    return urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})


# --- the whole run ---


def run_of(asked: Experiment, folder: Path, execute: Any, **options: Any) -> Run:
    from rich.console import Console

    console = Console(file=(folder / "log").open("a"), width=200)
    store = Store(folder / "results")
    store.prepare()
    display = Display(console, "R@1")
    return Run(asked, store, Storage(str(folder / "storage")), display, execute=execute, **options)


def test_asha_stops_hopeless_search_trials_of_each_loss_and_never_a_final_run(
    cluster: RayCluster, tmp_path: Path
) -> None:
    asked = experiment("triplet", "softmax", trials=5, scheduler="asha", settings={"epochs": 4})
    asked = dataclasses.replace(asked, settings={k: v for k, v in asked.settings.items() if k != "fold"})
    with connected(cluster, tmp_path / "storage", gpus_per_trial=0.5, scheduler="asha") as running:
        run = run_of(asked, tmp_path, running.execute)
        final = run()
        assert not run.failures
        assert {one.trial.loss for one in final} == {"none", "triplet", "softmax"}
        searched = plan.search(asked)
        stopped = [trial for trial in searched if run.store.stopped(trial)]
        finished = [trial for trial in searched if run.store.get(trial)]
        assert stopped
        assert len(stopped) + len(finished) == 10
        record = json.loads(run.store.path(stopped[0], Stopped).read_text())
        assert 1 <= record["epochs"] < 4
        for loss in ("triplet", "softmax"):
            (winner,) = [one.trial for one in final if one.trial.loss == loss]
            assert winner.searched in [trial.searched for trial in finished if trial.loss == loss]
        assert not run.storage.names("checkpoints")
        again = run_of(asked, tmp_path, running.execute)
        assert not again.anything_to_do()
        without = run_of(dataclasses.replace(asked, scheduler="none"), tmp_path, running.execute)
        assert {trial.id for trial in without.pending(searched)} == {trial.id for trial in stopped}
        without()
        assert all(run.store.get(trial) for trial in searched)
        assert not any(run.store.stopped(trial) for trial in searched)
        # a trial that the scheduler let live has the same bits as one that nobody watched
        undisturbed = serially([Job(finished[0], asked.dataset, "")], tmp_path / "serial")
        assert same({finished[0].id: run.store.get(finished[0])}, undisturbed)


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
    results, problems = run.store.results()
    assert len(results) == 2
    assert not problems


def test_ensembles_join_stored_embeddings_and_train_nothing(cluster: RayCluster, tmp_path: Path) -> None:
    asked = experiment("triplet", seeds=3)
    asked = dataclasses.replace(asked, settings={k: v for k, v in asked.settings.items() if k != "fold"})
    with connected(cluster, tmp_path / "storage", gpus_per_trial=1.0) as running:
        run_of(asked, tmp_path, running.execute)()

    def nobody(jobs: list[Job], tell: Any) -> None:
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
    """Ray's own out-of-memory error, raised where Tune meets it once a trial has ended."""
    from ray.exceptions import OutOfMemoryError
    from ray.tune.execution.tune_controller import TuneController

    jobs = jobs_of(experiment("triplet", seeds=4), tmp_path / "ray")
    record, real, raised = Record(), TuneController.step, []

    def step(self: TuneController) -> None:
        real(self)
        if record.results and not raised:
            raised.append(len(record.results))
            raise RuntimeError("Caught unexpected exception") from OutOfMemoryError("2 worker(s) were killed")

    monkeypatch.setattr(TuneController, "step", step)
    with connected(cluster, tmp_path / "ray", gpus_per_trial=1.0) as running:
        running.execute(jobs, record)
    assert raised
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
