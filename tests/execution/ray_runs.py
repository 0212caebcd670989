"""Small runs for the tests of Ray: experiments on emoji, their jobs, and a listener that records."""

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster as RayCluster
from rich.console import Console

from harness import config, plan
from harness.execution import local
from harness.execution.account import Account
from harness.execution.display import Display
from harness.execution.ray_cluster import Cluster
from harness.execution.run import Executor, Run
from harness.spec import Event, Experiment, Failure, Job, LossSpec, Progress, Result, Trial
from harness.storage import Storage
from harness.store import Store

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
    specs = tuple(config.loss(loss) if isinstance(loss, str) else loss for loss in losses)
    settings = {**TINY, "epochs": 2, **changes.pop("settings", {})}
    protocol = changes.pop("protocol", config.protocol("quick"))
    return Experiment(config.dataset("emoji"), protocol, specs, settings=settings, **changes)


def jobs_of(experiment: Experiment, storage: Path) -> list[Job]:
    sources = {loss.name: loss.sources for loss in experiment.losses}
    trials = plan.final(experiment, {})
    return [Job(trial, experiment.dataset, str(storage), sources=sources[trial.loss]) for trial in trials]


class Record:
    """Keeps every event, and lets a test interfere."""

    def __init__(self, interfere: Callable[[Trial, Event], None] = lambda trial, event: None) -> None:
        self.events: list[tuple[Trial, Event]] = []
        self.interfere = interfere

    def __call__(self, trial: Trial, event: Event) -> None:
        self.events.append((trial, event))
        self.interfere(trial, event)

    @property
    def results(self) -> dict[str, Result]:
        ended = [event for _, event in self.events if isinstance(event, Result)]
        assert len({result.id for result in ended}) == len(ended), "a trial ended twice"
        return {result.id: result for result in ended}

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


def same(results: dict[str, Result], expected: dict[str, Result]) -> bool:
    def bits(runs: dict[str, Result]) -> dict[str, Any]:
        return {id: (result.metrics, [row["loss"] for row in result.curve]) for id, result in runs.items()}

    return bits(results) == bits(expected)


def connected(cluster: RayCluster, storage: Path, **options: Any) -> contextlib.AbstractContextManager[Cluster]:
    return Cluster(address=cluster.address, **options).connected(Storage(str(storage)), lambda line: None)


def run_of(experiment: Experiment, folder: Path, executor: Executor) -> Run:
    console = Console(file=(folder / "log").open("a"), width=200)
    store = Store(folder / "results")
    store.prepare()
    storage = Storage(str(folder / "storage"))
    return Run(Account(experiment, store), storage, executor, Display(console))
