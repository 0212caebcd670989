"""Stored runs measured again: dispatched like the trials of a run, each record stored as it ends."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from harness import provenance
from harness.execution.announcement import announced
from harness.execution.census import Census
from harness.execution.display import Display
from harness.execution.run import Executor
from harness.execution.start import cluster_of, local_executor
from harness.request import Request
from harness.spec import Dataset, Event, Failure, Job, Measurement, Progress, Result, Work, recall_k
from harness.storage import Storage, heartbeat
from harness.store import Store

CONDITIONS = ("dataset", "protocol")  # of trials, which `harness status` keeps apart


def measure_again(
    runs: Sequence[Result], recipe: str, request: Request, store: Store, storage: Storage, display: Display
) -> list[Failure]:
    """Measure these final runs by a recipe for NMI, with every other metric. Returns what failed."""
    work = [Measurement(runs=(run.trial,), recipe=recipe) for run in runs]
    failures = []
    census = Census()

    def notify(one: Work, event: Event) -> None:
        if isinstance(event, Result):
            store.put(event, replace=True)
        elif isinstance(event, Failure):
            failures.append(event)
        if not isinstance(event, Progress):
            storage.remove(heartbeat(one.id))
        display.show(one, event)
        census.hear(one, event)

    def job(run: Result, measurement: Measurement, plan: str) -> Job:
        return Job(
            run.trial,
            dataset_of(run),
            storage.uri,
            request.threads,
            plan=plan,
            origin={"purpose": "eval"},
            needs=(run,),
            measurement=measurement,
            class_names=store.class_names(run),
        )

    display.expect(len(work))
    census.expect(len(work), len(work))
    datasets, protocols = (", ".join(sorted({getattr(run.trial, name) for run in runs})) for name in CONDITIONS)
    command = provenance.origin()["command"] or ""

    def wait(text: str) -> None:
        if text:
            display.line(text)
        plan.wait(text)

    def lose(one: Work) -> None:
        display.lose(one)
        census.lose(one)

    def exporting() -> AbstractContextManager[None]:
        from harness.execution.ray_metrics import exported  # imports ray

        return exported(census, datasets)

    with (
        opened_executor(request, storage, display, tell_waiting=wait, tell_lost=lose, exporting=exporting) as executor,
        display,
        announced(storage, command, datasets, protocols) as plan,
    ):
        plan.update(work, 0)
        executor((job(run, one, plan.id) for run, one in zip(runs, work, strict=True)), notify)
    return failures


@contextmanager
def opened_executor(request: Request, storage: Storage, display: Display, **of_cluster: Any) -> Iterator[Executor]:
    if request.executor == "local":
        yield local_executor(request)
        return
    display.line(f"joining the Ray at {request.address} ..." if request.address else "starting Ray ...")
    with replace(cluster_of(request), **of_cluster).connected(storage, display.line) as connected:
        yield connected.execute


def dataset_of(run: Result) -> Dataset:
    """A dataset as far as a stored run tells of it, with the K's of its Recall@K."""
    trial = run.trial
    return Dataset(
        name=trial.dataset,
        title=trial.dataset,
        cite="",
        version=trial.dataset_version,
        layout="",
        recall_at=tuple(sorted(k for k in map(recall_k, run.metrics) if k)),
        protocol=trial.protocol,
        fingerprint=trial.fingerprint,
    )
