"""Recall@K, MAP@R, R-precision and NMI of a set of embeddings: exact, in bounded memory, on the embeddings' device.

Neighbours are ranked by Euclidean distance in float64, equal ones by their index, so no number depends on chunk sizes,
device or threads. Hardly anything is computed in float64: float32 matrix products rank all rows except the few in which
a correct and a wrong neighbour are closer to each other than a product's rounding error. Only those are ranked again.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from harness.evaluation.clustering import cluster, mutual_information
from harness.evaluation.neighbours import Tiles, rank
from harness.evaluation.step import Step
from harness.evaluation.ties import SPARE, TieBreaker
from harness.spec import finish
from harness.spec.queries import PerQuery
from harness.spec.recipes import KMEANS_SEED, LLOYD, Recipe

STORED_DEPTH = 100  # neighbours that are ranked, at least, where the values of queries are stored: R@K up to it follows


@dataclass(frozen=True)
class Scores:
    """How each query did. All tensors are (queries,), in the order of the queries, on the embeddings' device."""

    classes: Tensor  # the query's label
    first_correct: Tensor  # rank of its nearest image of its class, from 1 on; depth + 1 if it is not among the ranked
    R: Tensor  # images of its class in the gallery
    precision: Tensor  # share of its class among the R nearest, float64; 0 if R is 0
    average_precision: Tensor  # (1/R) sum over i <= R of precision@i where the i-th neighbour is correct; 0 if R is 0
    depth: int  # neighbours that were ranked for each query

    @property
    def answerable(self) -> Tensor:
        """Which queries have an image of their class in the gallery."""
        return self.R > 0


@dataclass(frozen=True)
class Measured:
    """The metrics of a set of embeddings, and the queries they are means of."""

    metrics: dict[str, float]
    scores: Scores


@dataclass(frozen=True)
class Task:
    """Queries, and the gallery that their neighbours are searched in."""

    queries: Tensor  # (q, d)
    query_classes: Tensor  # (q,)
    gallery: Tensor  # (g, d)
    gallery_classes: Tensor  # (g,)
    mutual: bool  # the gallery is the queries, and no query is compared with itself

    @classmethod
    def of(cls, embeddings: Tensor, labels: Tensor, queries: Tensor | None = None) -> "Task":
        """`queries` (n,) bool: they are searched among the other images. Without it, each image is searched among all
        others."""
        check(embeddings, labels)
        if queries is None:
            return cls(embeddings, labels, embeddings, labels, mutual=True)
        task = cls(embeddings[queries], labels[queries], embeddings[~queries], labels[~queries], mutual=False)
        if not len(task.queries) or not len(task.gallery):
            raise ValueError(
                f"{len(task.queries)} queries and {len(task.gallery)} images in the gallery: both are needed"
            )
        return task

    @property
    def candidates(self) -> int:
        """Images that a query is compared with."""
        return len(self.gallery) - int(self.mutual)

    def correct(self, rows: Tensor, neighbours: Tensor) -> Tensor:
        """Which of the neighbours (r, k), columns of the gallery, are of the classes of the queries (r,)."""
        return self.gallery_classes[neighbours] == self.query_classes[rows, None]


def fitting(ks: Iterable[int], labels: Tensor, queries: Tensor | None = None) -> tuple[int, ...]:
    """The K's of Recall@K that there are enough images for: a small dataset has fewer neighbours than the largest K."""
    candidates = len(labels) - 1 if queries is None else int((~queries).sum())
    return tuple(k for k in ks if k <= candidates)


def measure(
    embeddings: Tensor,
    labels: Tensor,
    ks: Sequence[int],
    queries: Tensor | None = None,
    recipe: Recipe | None = LLOYD,
    seed: int = KMEANS_SEED,
    depth: int = 1,
) -> Generator[Step, None, Measured]:
    """Every metric: R@K for each K, MAP@R, RP and, if there is a recipe for it, NMI. `queries` (n,) bool, where queries
    and gallery are apart; NMI is of all images. `depth`: neighbours to rank, at least."""
    scores = yield from score(embeddings, labels, ks, queries, depth)
    metrics = summarise(scores, ks)
    if recipe is not None:
        clusters = yield from cluster(embeddings, len(labels.unique()), seed, recipe)
        metrics["NMI"] = mutual_information(labels, clusters)
    return Measured(metrics, scores)


def retrieval(embeddings: Tensor, labels: Tensor, ks: Sequence[int], queries: Tensor | None = None) -> dict[str, float]:
    """Every retrieval metric: R@K for each K, MAP@R, RP."""
    return finish(measure(embeddings, labels, ks, queries, recipe=None)).metrics


def per_query(embeddings: Tensor, labels: Tensor, ks: Sequence[int], queries: Tensor | None = None) -> Scores:
    """How each query did, from one pass over the neighbours; deep enough for Recall@K at each K."""
    return finish(score(embeddings, labels, ks, queries))


def score(
    embeddings: Tensor, labels: Tensor, ks: Sequence[int], queries: Tensor | None = None, depth: int = 1
) -> Generator[Step, None, Scores]:
    """The same, step by step."""
    task = Task.of(embeddings, labels, queries)
    for k in ks:
        if not 1 <= k <= task.candidates:
            raise ValueError(
                f"Recall@{k}: K must be 1 to {task.candidates}, the number of images a query is compared with"
            )
    R = same_class(task)
    depth = min(max([*ks, int(R.max()), depth]), task.candidates)
    first = torch.full((len(R),), depth + 1, device=R.device)
    precision = torch.zeros(len(R), dtype=torch.float64, device=R.device)
    average = torch.zeros_like(precision)
    ranks = torch.arange(1, depth + 1, device=R.device)
    done = 0
    for rows, correct in rankings(task, depth):
        first[rows] = torch.where(correct, ranks, depth + 1).amin(dim=1)
        counted = correct & (ranks <= R[rows, None])
        hits = counted.cumsum(dim=1)
        R_rows = R[rows].clamp_min(1)
        precision[rows] = hits[:, -1].double() / R_rows
        average[rows] = (counted * hits.double() / ranks).sum(dim=1) / R_rows
        done += len(rows)
        yield Step("rank", done, len(R))
    return Scores(task.query_classes, first, R, precision, average, depth)


def same_class(task: Task) -> Tensor:
    """(q,) how many images of its class each query is compared with."""
    classes, numbers = torch.cat([task.query_classes, task.gallery_classes]).unique(return_inverse=True)
    query_numbers, gallery_numbers = numbers.split([len(task.query_classes), len(task.gallery_classes)])
    return gallery_numbers.bincount(minlength=len(classes))[query_numbers] - int(task.mutual)


def summarise(scores: Scores, ks: Sequence[int]) -> dict[str, float]:
    """Means over the queries that have an image of their class in the gallery; the others cannot be answered, and count
    for nothing. R@K: share with an image of their class among the K nearest. MAP@R: Musgrave et al., ECCV 2020."""
    if max(ks, default=0) > scores.depth:
        raise ValueError(f"Recall@{max(ks)}: only {scores.depth} neighbours were ranked")
    some = scores.answerable
    metrics = {f"R@{k}": mean((scores.first_correct[some] <= k).double()) for k in ks}
    metrics["MAP@R"] = mean(scores.average_precision[some])
    metrics["RP"] = mean(scores.precision[some])
    return metrics


def values_of(scores: Sequence[Scores], names: Sequence[str]) -> PerQuery:
    """The values of each query, to be stored; of an ensemble, from the scores of its subsets. Classes are numbered as
    their names are."""

    def rank(one: Scores) -> np.ndarray:
        return torch.where(one.answerable, one.first_correct, 0).cpu().numpy()

    def average(values: Sequence[Tensor]) -> np.ndarray:
        return torch.stack(tuple(values)).mean(dim=0).cpu().numpy()

    return PerQuery(
        classes=scores[0].classes.cpu().numpy(),
        ranks=np.stack([rank(one) for one in scores]),
        precision=average([one.precision for one in scores]),
        average_precision=average([one.average_precision for one in scores]),
        depth=scores[0].depth,
        names=tuple(names),
    )


def mean(values: Tensor) -> float:
    return values.mean().item() if len(values) else 0.0


def mean_cosine(embeddings: Tensor) -> float:
    """Of any two images: |mean|^2 where embeddings are of unit length, and the same share of their squares where they
    are not. 1 for a network that maps all images to 0."""
    middle = embeddings.double().mean(dim=0)
    squares = sum(float(part.double().square().sum()) for part in embeddings.split(2**12)) / len(embeddings)
    return float(middle.square().sum()) / squares if squares else 1.0


def check(embeddings: Tensor, labels: Tensor) -> None:
    """A ValueError or FloatingPointError for embeddings that have no metrics."""
    if len(embeddings) != len(labels):
        raise ValueError(f"{len(embeddings)} embeddings but {len(labels)} labels")
    if len(labels) < 2:
        raise ValueError("retrieval needs at least 2 images")
    if (labels == labels[0]).all():
        raise ValueError("all images are of one class: retrieval needs at least 2 classes")
    bad = sum(int((~part.isfinite()).any(dim=1).sum()) for part in embeddings.split(2**14))
    if bad:
        raise FloatingPointError(f"{bad} of {len(embeddings)} embeddings are not finite")
    largest = max(float(part.abs().max()) for part in embeddings.split(2**14))
    if largest and not 1e-15 <= largest <= 1e15:  # their squares must be finite and not 0
        raise ValueError(f"the largest number in the embeddings is {largest:.3g}: it must be within 1e-15 and 1e15")


def rankings(task: Task, depth: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Chunks of queries (their rows), and which of their `depth` nearest are correct, nearest first."""
    width = min(depth + SPARE, task.candidates)
    tiles = Tiles.of(task.queries, task.gallery, mutual=task.mutual)
    breaker = TieBreaker(tiles, depth)
    for rows, values, neighbours in tiles.nearest(width):
        values, order = values.sort(dim=1, descending=True)
        neighbours = neighbours.gather(1, order).long()
        correct = task.correct(rows, neighbours)
        doubt = tiles.doubt(rows, values[:, -1], values.dtype)
        near = values[:, :-1] - values[:, 1:] <= doubt
        # a near tie at the edge may go on behind it
        near[:, depth - 1 :] = near[:, depth - 1 :].cumprod(dim=1)
        unclear = (near & (correct[:, :-1] != correct[:, 1:])).any(dim=1)
        # and beyond the neighbours that were ranked
        endless = torch.zeros_like(unclear)
        if width < task.candidates:
            endless = values[:, depth - 1] - values[:, -1] <= doubt[:, 0]
        for some in (unclear & ~endless).nonzero().flatten().split(8):
            ranked = rank(task.queries[rows[some]], task.gallery, neighbours[some])[:, :depth]
            correct[some, :depth] = task.correct(rows[some], ranked)
        if endless.any():
            correct[endless, :depth] = task.correct(rows[endless], breaker.rank(rows[endless]))
        yield rows, correct[:, :depth]
