"""Workers, nodes and memory of a Ray cluster fail: each trial ends once, and no failure stops the others."""

import itertools
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.cluster_utils import Cluster as RayCluster
from ray.exceptions import OutOfMemoryError
from ray.tune import TuneError, Tuner

from harness.execution import heartbeat, ray_deaths, ray_searcher
from harness.execution.ray_cluster import Cluster
from harness.execution.ray_listener import TuneListener
from harness.execution.ray_searcher import JobQueue
from harness.spec import Event, Job, Progress, Trial
from harness.storage import Storage
from tests.chaos.conftest import SlowRun
from tests.execution.ray_runs import Record, connected, experiment, jobs_of
from tests.factories import a_result
from tests.processes import bits, environment, finish, records

ALONE = {"gpus_per_trial": 2.0}  # of the two GPUs of the cluster: one trial at a time, on a worker that is reused


@pytest.mark.slow
@pytest.mark.fault(
    "a worker dies while Tune resets it for its next trial",
    "one death is one death: the trial starts again up to --max-failures times, the others go on",
)
@pytest.mark.parametrize("max_failures", [0, 1])
def test_a_death_during_a_reset_is_one_death(
    cluster: RayCluster, tmp_path: Path, max_failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_deaths, "VERDICT", 2.0)
    jobs = jobs_of(experiment("triplet", seeds=3), tmp_path / "storage")
    results = {job.trial.id: a_result(job.trial) for job in jobs}
    order = tmp_path / "die"
    order.touch()

    def events(job: Job) -> Iterator[Event]:  # called while the worker is set up, and while it is reset
        if order.exists() and "RUN_BEFORE" in os.environ:
            order.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        os.environ["RUN_BEFORE"] = "1"
        return iter([results[job.trial.id]])

    record = Record()
    with connected(cluster, tmp_path / "storage", events=events, max_failures=max_failures, **ALONE) as running:
        running.execute(jobs, record)
    assert not order.exists()
    if max_failures:
        assert not record.failures
        assert set(record.results) == set(results)
    else:
        (failure,) = record.failures
        assert failure.error == "its worker died once (--max-failures)"
        assert set(record.results) == set(results) - {failure.work.id}


@pytest.mark.fault(
    "a worker dies after its result has arrived, with --max-failures 0",
    "the result counts; no failure is recorded, and the trial does not run again",
)
def test_a_death_after_the_result_takes_nothing_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_searcher.ray, "put", lambda job: job)  # without a cluster
    monkeypatch.setattr(ray_deaths, "alive_nodes", lambda: frozenset({"node"}))
    monkeypatch.setattr(ray_deaths, "place_of", lambda id: id)
    monkeypatch.setattr(ray_deaths, "VERDICT", 0.0)
    jobs = jobs_of(experiment("triplet", seeds=2), tmp_path)
    queue, record, lost = JobQueue(jobs), Record(), []
    names = [(queue.suggest("") or {})["trial"] for _ in jobs]  # type: ignore[index]
    listener = TuneListener(queue, record, max_failures=0)
    listener.tell_lost = lost.append
    done, dead = (SimpleNamespace(config={"trial": name}, evaluated_params={}, last_result={}) for name in names)
    done.error_file = dead.error_file = None
    listener.on_trial_result(1, [], done, {"event": a_result(jobs[0].trial), "node": "node"})
    assert not listener.nodes, "nothing of a trial that has ended is kept"
    for trial in (done, dead):
        listener.on_trial_error(1, [], trial)
    assert queue.suggest("") == "FINISHED"
    assert list(record.results) == [jobs[0].trial.id]
    assert [failure.work.id for failure in record.failures] == [jobs[1].trial.id]
    assert lost == [jobs[1].trial]


def killed(storage: Path, hog: Trial) -> str:
    """Ray's account of workers that it killed because the memory ran low."""
    lines = ["2 worker(s) were killed due to the node running low on memory."]
    for beat in heartbeat.read(Storage(str(storage))):
        size = "10.25" if beat.name == hog.name else "9.50"
        lines.append(f"Selected to kill: (Actor(ab): job ID=01, pid={beat.pid}, actual memory used={size}GB)")
    return "\n".join(lines)


@pytest.mark.chaos_long
@pytest.mark.fault(
    "a trial that eats the memory of its node, whenever it runs",
    "it is the one that is recorded as a failure; the others are done",
)
def test_a_trial_that_eats_the_memory_is_the_failure(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = jobs_of(experiment("triplet", seeds=4), tmp_path)
    hog = jobs[0].trial
    results = {job.trial.id: a_result(job.trial) for job in jobs[1:]}
    real, falls = Tuner.fit, list[str]()

    def events(job: Job) -> Iterator[Event]:
        if job.trial.id == hog.id:
            yield from itertools.repeat(Progress.idle("train", "grows"))
        time.sleep(3)  # so that one runs beside the hog when it falls
        yield results[job.trial.id]

    def fall(trial: Trial, event: Event) -> None:
        if trial.id == hog.id and isinstance(event, Progress):
            raise RuntimeError("Tune falls")

    def fit(self: Tuner) -> Any:
        try:
            return real(self)
        except TuneError:
            falls.append(killed(tmp_path, hog))
            raise RuntimeError("Caught unexpected exception") from OutOfMemoryError(falls[-1])

    monkeypatch.setattr(Tuner, "fit", fit)
    record = Record(fall)
    with connected(cluster, tmp_path, events=events, gpus_per_trial=1.0, max_failures=1) as running:
        running.execute(jobs, record)
    assert len(falls) == 2
    (failure,) = record.failures
    assert failure.work.id == hog.id
    assert failure.error.startswith("the memory of its node ran low 2 times because of it (--max-failures); ")
    assert "actual memory used=10.25GB" in failure.traceback
    assert set(record.results) == set(results)


@pytest.mark.slow
@pytest.mark.fault("a raylet is killed, a second later the command joins its cluster", "it runs on the other nodes")
def test_a_node_that_has_just_died_is_left_out(cluster: RayCluster, tmp_path: Path) -> None:
    jobs = jobs_of(experiment("triplet"), tmp_path / "storage")
    results = {job.trial.id: a_result(job.trial) for job in jobs}
    doomed = cluster.add_node(num_cpus=1)
    doomed.kill_raylet()
    try:
        record = Record()
        with connected(cluster, tmp_path / "storage", events=lambda job: iter([results[job.trial.id]])) as running:
            running.execute(jobs, record)
    finally:
        cluster.remove_node(doomed, allow_graceful=False)
    assert set(record.results) == set(results)


@pytest.mark.chaos_long
@pytest.mark.fault(
    "a spot node is taken away and comes back three times, with --max-failures 1",
    "its trial starts again each time, and is no failure; the machine is named",
)
def test_nodes_that_go_away_are_no_failures(cluster: RayCluster, tmp_path: Path) -> None:
    """Only the spot node has four GPUs, so that the trial waits until it is back."""
    (job,) = jobs_of(experiment("triplet"), tmp_path / "storage")
    result, spot, lost = a_result(job.trial), [cluster.add_node(num_cpus=1, num_gpus=4)], tmp_path / "lost"
    lost.mkdir()

    def events(_: Job) -> Iterator[Event]:
        while not (lost / "named").exists():
            yield Progress.idle("train", "waits for its node to be lost")
            time.sleep(0.2)
        yield result

    attempts: set[int] = set()

    def take_away(trial: Trial, event: Event) -> None:
        beats = heartbeat.read(Storage(str(tmp_path / "storage")))
        new = {beat.pid for beat in beats} - attempts
        if isinstance(event, Progress) and new and len(attempts) < 3:
            attempts.update(new)
            cluster.remove_node(spot.pop(), allow_graceful=False)
            spot.append(cluster.add_node(num_cpus=1, num_gpus=4))

    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if "lost" in line:
            (lost / "named").touch()

    record = Record(take_away)
    spotty = Cluster(address=cluster.address, events=events, gpus_per_trial=4.0, max_failures=1)
    with spotty.connected(Storage(str(tmp_path / "storage")), say) as running:
        running.execute([job], record)
    cluster.remove_node(spot.pop())
    assert len(attempts) == 3
    assert not record.failures
    assert set(record.results) == {job.trial.id}
    (named,) = [line for line in lines if "lost" in line]
    assert named.startswith(f"node {platform.node()} (")
    assert named.endswith(") has lost its trials 3 times; if that goes on, stop Ray there")


HOG = """
import time
import torch
from losses.base import Loss


class Hog(Loss):
    title, cite, family = "Hog", "me", "classification"

    def forward(self, embeddings, labels):
        self.kept = [*getattr(self, "kept", ()), torch.ones(125_000_000)]  # 0.5 GB
        time.sleep(0.2)
        return (embeddings - embeddings.mean(0)).square().mean()
"""


def memory() -> tuple[int, int]:
    """In all, and in use, in bytes."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, available = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    return total, total - available


@pytest.mark.chaos_long
@pytest.mark.fault(
    "a loss that allocates half a gigabyte in each step, beside another or before it",
    "Ray stops it; it is recorded, the other is done, exit 1",
)
@pytest.mark.parametrize("cpus", ["1", "2"], ids=["side by side", "one after another"])
def test_a_real_hog_does_not_stop_the_run(
    slow_run: SlowRun, undisturbed: dict[str, object], tmp_path: Path, cpus: str
) -> None:
    total, used = memory()
    if total - used < 8e9:
        pytest.skip("needs 8 GB of free memory")
    (tmp_path / "hog.py").write_text(HOG)
    losses = f"{tmp_path}/hog.py:Hog,{slow_run.folder}/slow.py:Slow"
    words = slow_run.command(tmp_path / "results", "--max-failures", "1", "--cpus-per-trial", cpus, "--losses", losses)
    words[1:1] = [f"RAY_memory_usage_threshold={(used + 4e9) / total:.3f}", "RAY_memory_monitor_refresh_ms=100"]
    done = finish(words)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "hog.Hog" in done.stderr
    assert "the memory of its node ran low 2 times because of it (--max-failures)" in done.stderr
    (failure,) = (tmp_path / "results" / "failures").rglob("*.json")
    assert failure.parent.name == "hog.Hog"
    assert len(records(tmp_path / "results")) == 3  # two baselines and the other loss
    if cpus == "1":  # two threads give other bits
        assert bits(tmp_path / "results").items() <= undisturbed.items()


@pytest.mark.chaos_long
@pytest.mark.timeout(1800)  # on a busy machine a worker takes long to start, and many are killed
@pytest.mark.fault(
    "1,000 trials that do nothing, a worker killed every 3 s",
    "each is stored once and none fails; trials per second and the driver's memory beside those of an undisturbed run",
)
def test_a_thousand_trials_survive_a_killer(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    measured = {}
    for name, seconds in (("undisturbed", "0"), ("disturbed", "3")):
        words = [sys.executable, "-m", "tests.chaos.idle_trials", str(tmp_path / name), "1000", seconds]
        (tmp_path / name).mkdir()
        done = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=850)
        assert done.returncode == 0, done.stderr
        measured[name] = json.loads(done.stdout.splitlines()[-1])
        assert measured[name]["failures"] == 0
        assert measured[name]["ended"] == 1000
        assert len(records(tmp_path / name / "results")) == 1000
    assert measured["disturbed"]["kills"] >= 3
    texts = [f"{one['rate']:.0f} trials/s, driver + {one['megabytes']:.0f} MB" for one in measured.values()]
    record_property("happened", f"undisturbed {texts[0]}; with {measured['disturbed']['kills']} kills {texts[1]}")
