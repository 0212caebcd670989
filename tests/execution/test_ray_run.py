"""Whole runs on real Ray: ASHA, a full disk, ensembles."""

import dataclasses
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from ray.cluster_utils import Cluster as RayCluster
from rich.console import Console

from harness import plan
from harness.execution.display import Display
from harness.execution.measuring import measure_again
from harness.execution.ray_worker import training_events
from harness.request import Request
from harness.spec import Event, Job, Measurement, Progress, Stopped, UserError
from harness.storage import Storage
from harness.store import Store
from tests.execution.ray_runs import Record, connected, experiment, jobs_of, run_of, same, serially
from tests.factories import a_result

pytestmark = pytest.mark.slow


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


def test_a_loss_goes_on_while_another_one_searches(cluster: RayCluster, tmp_path: Path) -> None:
    """The search of softmax lasts until the final run of triplet has begun: a barrier would wait in vain."""
    planned = experiment("softmax", "triplet", trials=1)
    planned = dataclasses.replace(planned, settings={k: v for k, v in planned.settings.items() if k != "fold"})
    begun, template = tmp_path / "begun", a_result()

    def events(job: Job) -> Iterator[Event]:
        if job.trial.loss == "triplet" and job.trial.on_test:
            begun.touch()
        deadline = time.monotonic() + 60
        while job.trial.loss == "softmax" and not begun.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield dataclasses.replace(template, trial=job.trial)

    with connected(cluster, tmp_path / "storage", gpus_per_trial=1.0, events=events) as running:
        run = run_of(planned, tmp_path, running.execute)
        final = run()
    assert not run.failures
    assert {result.trial.loss for result in final} == {"none", "softmax", "triplet"}


def test_asha_and_the_choice_of_epochs_go_together(cluster: RayCluster, tmp_path: Path) -> None:
    """The first trial is best after epoch 2 of 4; the others are hopeless, and what is stopped is no candidate."""
    planned = experiment("triplet", trials=3, scheduler="asha", settings={"epochs": 4})
    protocol = dataclasses.replace(planned.protocol, select_epochs=True)
    settings = {name: value for name, value in planned.settings.items() if name != "fold"}
    planned = dataclasses.replace(planned, protocol=protocol, settings=settings)
    first, *others = plan.search(planned)
    template = a_result()

    def scored(job: Job) -> Iterator[Event]:
        assert job.select_epochs == (not job.trial.on_test)
        scores = (0.5, 0.9, 0.8, 0.7) if job.trial.id == first.id else (0.1,) * 4
        rows = []
        for epoch in range(1, job.trial.last_epoch + 1):
            metrics = {"R@1": scores[epoch - 1]} if job.validate else {}
            rows.append({"epoch": epoch, "loss": 1.0, "images": 1, **metrics})
            yield Progress("train", epoch, job.trial.last_epoch, 1, 1, 1.0, 1.0, 0.0, metrics)
        metrics = {"R@1": scores[job.trial.last_epoch - 1], "NMI": 0.5}
        yield dataclasses.replace(template, trial=job.trial, metrics=metrics, curve=tuple(rows))

    with connected(cluster, tmp_path / "storage", gpus_per_trial=2.0, scheduler="asha", events=scored) as running:
        run = run_of(planned, tmp_path, running.execute)
        final = [result.trial for result in run() if result.trial.is_final]
        assert not run.failures
        assert all(run.account.store.stopped(trial) for trial in others)
        assert [(trial.stop_after, trial.epochs, trial.knobs) for trial in final] == [(2, 4, first.knobs)]
        assert run_of(planned, tmp_path, running.execute).account.is_complete


def test_a_trial_that_the_scheduler_watches_has_the_same_bits(tmp_path: Path) -> None:
    jobs = jobs_of(experiment("triplet"), tmp_path)
    watched = [dataclasses.replace(job, validate=True) for job in jobs]
    assert same(serially(watched, tmp_path / "watched"), serially(jobs, tmp_path / "alone"))


def test_a_disk_that_refuses_stops_the_run_and_leaves_the_store_readable(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = experiment("triplet", seeds=4)
    real, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 3:  # the experiment's record and two results
            raise OSError(28, "No space left on device")
        real(descriptor)

    with connected(cluster, tmp_path / "storage", gpus_per_trial=1.0) as running:
        run = run_of(planned, tmp_path, running.execute)
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match="No space left on device"):
            run()
    monkeypatch.setattr(os, "fsync", real)
    results, problems = run.account.store.results()
    assert len(results) == 2
    assert not problems


def embeddings_of(job: Job) -> dict[str, dict[str, str]]:
    """Stored points of 10 classes, in place of those of a trained network."""
    rng = np.random.default_rng(job.trial.seed)
    labels = np.arange(40) // 4
    points = (rng.normal(size=(10, 8))[labels] + 2 * rng.normal(size=(40, 8))).astype(np.float32)
    content = safetensors.numpy.save({"embeddings": points, "labels": labels})
    return {"embeddings": Storage(job.storage).write_artifact("embeddings", job.trial.id, content)}


def test_ensembles_are_measured_on_workers_at_once_as_soon_as_their_runs_are_stored(
    cluster: RayCluster, tmp_path: Path
) -> None:
    """Two losses' ensembles, each of which lasts until the other one has begun: one after another would wait in vain.
    Final runs store points of classes in place of training."""
    planned = experiment("triplet", "softmax", seeds=2, ensembles=(2,))
    planned = dataclasses.replace(planned, settings={k: v for k, v in planned.settings.items() if k != "fold"})
    template, begun = a_result(), tmp_path / "begun"
    begun.mkdir()

    def events(job: Job) -> Iterator[Event]:
        if not job.measurement:
            artifacts = embeddings_of(job) if job.trial.is_final else {}
            yield dataclasses.replace(template, trial=job.trial, artifacts=artifacts)
            return
        assert [need.trial.seed for need in job.needs] == [0, 1]
        (begun / job.work.id).touch()
        deadline = time.monotonic() + 300
        while len(list(begun.iterdir())) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield from training_events(job)

    with connected(cluster, tmp_path / "storage", gpus_per_trial=1.0, events=events) as running:
        run = run_of(planned, tmp_path, running.execute)
        results = run()
    assert not run.failures
    joined = [result for result in results if result.is_ensemble]
    assert {result.trial.loss for result in joined} == {"triplet", "softmax"}
    store = Store(tmp_path / "results")
    for result in joined:
        members = [member for member in results if member.id in result.members]
        assert [member.trial.loss for member in members] == 2 * [result.trial.loss]
        values = store.per_query(result)  # came back from the worker with the result
        assert values.values("R@1")[values.counts].mean() == pytest.approx(result.metrics["R@1"], abs=1e-7)
        assert result.conventions["ensemble"].startswith("2 of 2 networks")
    assert run_of(planned, tmp_path, running.execute).account.is_complete


def test_no_more_trials_run_at_once_than_max_concurrent_says(cluster: RayCluster, tmp_path: Path) -> None:
    """Also where one dies and starts again. Without the bound, two would run on the two GPUs."""
    jobs = jobs_of(experiment("triplet", seeds=5), tmp_path)
    at_work, died = tmp_path / "at_work", tmp_path / "died"
    at_work.mkdir()
    template = a_result()

    def events(job: Job) -> Iterator[Event]:
        mine = at_work / job.trial.id
        mine.touch()
        for _ in range(10):
            assert list(at_work.iterdir()) == [mine]
            time.sleep(0.02)
        mine.unlink()
        if job.trial.id == jobs[1].trial.id and not died.exists():
            died.touch()
            os._exit(1)
        yield dataclasses.replace(template, trial=job.trial)

    record = Record()
    with connected(cluster, tmp_path, gpus_per_trial=1.0, max_concurrent=1, events=events) as running:
        running.execute(jobs, record)
    assert not record.failures
    assert len(record.results) == 5
    assert died.exists()


def test_stored_runs_are_measured_again_on_workers_as_in_this_process(cluster: RayCluster, tmp_path: Path) -> None:
    store, storage = Store(tmp_path / "results"), Storage(str(tmp_path))
    runs = []
    for job in jobs_of(experiment("triplet", seeds=2, settings={"fold": "test"}), tmp_path):
        run = dataclasses.replace(a_result(job.trial), artifacts=embeddings_of(job))
        store.put(run)
        runs.append(run)
    measured = {}
    for request in (Request(executor="local"), Request(address=cluster.address, gpus_per_trial=1.0)):
        display = Display(Console(file=(tmp_path / "log").open("a"), width=200))
        assert not measure_again(runs, "sklearn", request, store, storage, display)
        results = [store.get(Measurement(runs=(run.trial,), recipe="sklearn")) for run in runs]
        measured[request.executor] = [(one.metrics, one.members) for one in results if one]
        for one in results:
            assert one is not None
            store.remove(store.path(one.trial, id=one.id))
    assert len(measured["local"]) == 2
    assert measured["local"] == measured["ray"]
