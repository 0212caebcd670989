"""The metrics of a trial's network: after each epoch where they are wanted, and at the end."""

import math
import time
from collections.abc import Generator
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from harness import provenance
from harness.evaluation import ensembles, metrics
from harness.evaluation.step import Step
from harness.spec import Job, Measurement, Progress, Result
from harness.spec.recipes import LLOYD
from harness.storage import Storage
from harness.training import feeding
from harness.training.loop import Validate
from harness.training.setup import Stage, TrialSetup, device_of, half_precision

REPORT_SECONDS = 0.5  # between two reports of a computation whose steps may be short

Value = TypeVar("Value")


def validation(job: Job, setup: TrialSetup, stage: Stage) -> Validate | None:
    """What to measure after each epoch, if anything."""
    if job.curves:
        return lambda: curve_metrics(setup)
    watched = job.validate or job.select_epochs
    if watched or stage.best:
        return lambda: measure(setup, job.dataset.recall_at, nmi=watched and job.nmi)
    return None


def measure(setup: TrialSetup, ks: tuple[int, ...], *, nmi: bool) -> Generator[Progress, None, dict[str, float]]:
    """Every metric on the held-out classes; NMI only if it is wanted, because k-means may take longer than the epoch
    did."""
    embeddings = yield from embed_images(setup, setup.fold.test)
    return (yield from score(setup, embeddings, ks, nmi=nmi)).metrics


def curve_metrics(setup: TrialSetup) -> Generator[Progress, None, dict[str, float]]:
    """One point of a curve: retrieval on the held-out classes as at the end, and retrieval of each training image among
    the training images. No NMI."""
    labels, queries = held_out(setup)
    train_labels = setup.fold.train_labels.to(setup.device)
    embeddings = yield from embed_images(setup, setup.fold.test)
    on_held_out = yield from report(metrics.measure(embeddings, labels, (1,), queries, recipe=None))
    embeddings = yield from embed_images(setup, setup.fold.train)
    on_training = yield from report(metrics.measure(embeddings, train_labels, (1,), recipe=None))
    return on_held_out.metrics | {f"train {name}": value for name, value in on_training.metrics.items()}


def score(
    setup: TrialSetup, embeddings: Tensor, ks: tuple[int, ...], *, nmi: bool, depth: int = 1
) -> Generator[Progress, None, metrics.Measured]:
    """Every metric of the held-out images, given their embeddings. `depth`: neighbours to rank, at least."""
    labels, queries = held_out(setup)
    ks = metrics.fitting(ks, labels, queries)
    steps = metrics.measure(embeddings, labels, ks, queries, LLOYD if nmi else None, depth=depth)
    return (yield from report(steps))


def measure_stored(job: Job, measurement: Measurement) -> Generator[Progress, None, Result]:
    """What a measurement makes of stored embeddings, on this worker's device. Its provenance is that of its first run,
    but for when it ended."""
    storage, device = Storage(job.storage), device_of(job)
    steps = ensembles.measure(measurement, job.needs, job.dataset.recall_at, storage, job.class_names, device)
    result = yield from report(steps)
    return replace(result, provenance={**result.provenance, "finished": provenance.now()})


def report(steps: Generator[Step, None, Value]) -> Generator[Progress, None, Value]:
    """The steps of a computation as Progress, now and then. Returns what the computation returns."""
    started = begun = reported = time.perf_counter()
    stage = ""
    while True:
        try:
            step = next(steps)
        except StopIteration as end:
            return end.value
        now = time.perf_counter()
        if step.stage != stage:
            stage, begun = step.stage, now
        elif now - reported < REPORT_SECONDS:
            continue
        reported = now
        left = (now - begun) / step.done * (step.total - step.done) if step.stage == "rank" else 0.0
        if step.subset > 1:
            left = (now - started) / (step.subset - 1) * (step.subsets - step.subset + 1)
        subset = f"{step.subset}/{step.subsets}" if step.subsets > 1 else ""
        yield Progress(step.stage, step.part, step.parts, step.done, step.total, math.nan, 0.0, left, subset=subset)


def held_out(setup: TrialSetup) -> tuple[Tensor, Tensor | None]:
    """Labels of the held-out images and which of them are queries, on the device."""
    labels, queries = setup.fold.test_labels, setup.fold.queries
    return labels.to(setup.device), None if queries is None else queries.to(setup.device)


def embed_images(setup: TrialSetup, indices: Tensor) -> Generator[Progress, None, Tensor]:
    """The embeddings (n, dim) of these images, on the device."""
    parts: list[Tensor] = []
    count = len(indices)
    steps = -(-count // feeding.EMBED_BATCH)
    setup.model.eval()
    begun = time.perf_counter()
    for number, (images, _) in enumerate(feeding.feed(setup.device, feeding.plain(setup, indices)), start=1):
        parts.append(embed(setup, images))
        elapsed = time.perf_counter() - begun
        speed = min(number * feeding.EMBED_BATCH, count) / elapsed
        yield Progress("evaluate", 1, 1, number, steps, math.nan, speed, elapsed / number * (steps - number))
    return torch.cat(parts)


def embed(setup: TrialSetup, images: Tensor) -> Tensor:
    """The embeddings of a batch as they are compared at test time."""
    amp = half_precision(setup.trial.precision, setup.device)
    with torch.inference_mode(), torch.autocast(setup.device.type, enabled=amp):
        return setup.model.embed(images)
