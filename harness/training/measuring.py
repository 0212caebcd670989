"""The metrics of a network on the images of a fold."""

import math
import time
from collections.abc import Generator, Iterator

import torch
from torch import Tensor, nn

from harness.backbones import network
from harness.data import transforms
from harness.evaluation import metrics as evaluate
from harness.evaluation.clustering import KMEANS_SEED
from harness.spec import Job, Progress
from harness.training.feeding import feed
from harness.training.loop import Validate
from harness.training.setup import Bench, Stage

EMBED_BATCH = 256


def validation(job: Job, bench: Bench, stage: Stage) -> Validate | None:
    """What is measured after each epoch, if anybody wants it."""
    if job.curves:
        return lambda: point(bench)
    if job.validate or stage.best:
        return lambda: measure(bench, job.dataset.recall_at)
    return None


def measure(bench: Bench, ks: tuple[int, ...]) -> Generator[Progress, None, dict[str, float]]:
    """Every metric on the held-out classes."""
    embedded = yield from embed_images(bench, bench.fold.test)
    return score(bench, embedded, ks)


def point(bench: Bench) -> Generator[Progress, None, dict[str, float]]:
    """Of a curve: retrieval on the held-out classes as in the end, and of each training image among the training
    images. Without NMI: k-means may take longer than the epoch did."""
    labels, queries = held_out(bench)
    train_labels = bench.fold.train_labels.to(bench.device)
    embedded = yield from embed_images(bench, bench.fold.test)
    found = evaluate.retrieval(embedded, labels, (1,), queries)
    embedded = yield from embed_images(bench, bench.fold.train)
    seen = evaluate.retrieval(embedded, train_labels, (1,))
    return found | {f"train {name}": value for name, value in seen.items()}


def score(bench: Bench, embedded: Tensor, ks: tuple[int, ...]) -> dict[str, float]:
    labels, queries = held_out(bench)
    gallery = len(labels) - 1 if queries is None else int((~queries).sum())
    ks = tuple(k for k in ks if k <= gallery)  # of a small dataset some are not to be had
    return evaluate.metrics(embedded, labels, ks, KMEANS_SEED, queries)


def held_out(bench: Bench) -> tuple[Tensor, Tensor | None]:
    """Labels of the held-out images and which of them are queries, on the device."""
    labels, queries = bench.fold.test_labels, bench.fold.queries
    return labels.to(bench.device), None if queries is None else queries.to(bench.device)


def embed_images(bench: Bench, which: Tensor) -> Generator[Progress, None, Tensor]:
    """The embeddings of these images, on the device."""
    parts: list[Tensor] = []
    count = len(which)
    chunks = -(-count // EMBED_BATCH)
    bench.model.eval()
    begun = time.perf_counter()
    for number, (batch, _) in enumerate(feed(bench.device, batches(bench, which)), start=1):
        parts.append(embed(bench, batch))
        elapsed = time.perf_counter() - begun
        speed = min(number * EMBED_BATCH, count) / elapsed
        yield Progress("evaluate", 1, 1, number, chunks, math.nan, speed, elapsed / number * (chunks - number))
    return torch.cat(parts)


def batches(bench: Bench, which: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """These images as they are evaluated, with their indices."""
    for chosen in which.split(EMBED_BATCH):
        yield transforms.plain(bench.images, chosen, bench.trial), chosen


def embed(bench: Bench, batch: Tensor) -> Tensor:
    """What is compared at test time: unit-length embeddings, as in the paper; raw pixels stay raw."""
    with torch.inference_mode(), torch.autocast(bench.device.type, enabled=bench.amp):
        embeddings = bench.model(batch).float()
    return embeddings if isinstance(bench.model, network.Pixels) else nn.functional.normalize(embeddings)


def distance(bench: Bench) -> str:
    raw = isinstance(bench.model, network.Pixels)
    return "Euclidean on raw pixels" if raw else "Euclidean on unit-length embeddings"
