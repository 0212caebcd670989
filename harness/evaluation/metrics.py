"""Recall@K, MAP@R, R-precision and NMI of a set of embeddings: exact, in bounded memory, on the embeddings' device.

Neighbours are ranked by Euclidean distance in float64, equal ones by their index, so no number depends on chunk sizes,
device or threads. Next to nothing is computed in float64: float32 matrix products rank all but the few rows in which a
right and a wrong neighbour are closer to each other than a product's rounding error, and only those are ranked again.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from harness.evaluation.clustering import OURS, Recipe, kmeans, mutual_information, nmi
from harness.evaluation.neighbours import Tiles, rank, rank_all

__all__ = [
    "OURS",
    "Recipe",
    "kmeans",
    "map_at_r",
    "metrics",
    "mutual_information",
    "nmi",
    "precision_at_1",
    "r_precision",
    "recall_at_k",
    "retrieval",
]

SPARE = 8  # neighbours looked at beyond those that count, so that a near tie at the edge is seen whole


def metrics(
    embeddings: Tensor,
    labels: Tensor,
    ks: Sequence[int],
    seed: int,
    queries: Tensor | None = None,
    recipe: Recipe = OURS,
) -> dict[str, float]:
    """All of them: R@K for each K, MAP@R, RP, NMI. `queries` (n,) bool, where queries and gallery are apart; NMI is of
    all."""
    found = retrieval(embeddings, labels, ks, queries)
    found["NMI"] = nmi(embeddings, labels, seed, recipe)
    return found


def recall_at_k(embeddings: Tensor, labels: Tensor, ks: Sequence[int]) -> dict[int, float]:
    """Share of queries with at least one image of their class among the K nearest. A query alone in its class is a
    miss."""
    found = retrieval(embeddings, labels, ks)
    return {k: found[f"R@{k}"] for k in ks}


def precision_at_1(embeddings: Tensor, labels: Tensor) -> float:
    """Share of queries whose nearest neighbour is of their class: the same as Recall@1."""
    return retrieval(embeddings, labels, (1,))["R@1"]


def map_at_r(embeddings: Tensor, labels: Tensor) -> float:
    """Mean over queries of (1/R) sum over i <= R of precision@i where the i-th neighbour is right (Musgrave et al.), R
    the number of others in the class. A query alone in its class, R = 0, is no query here."""
    return retrieval(embeddings, labels, ())["MAP@R"]


def r_precision(embeddings: Tensor, labels: Tensor) -> float:
    """Mean over queries with R > 0 of the share of right ones among the R nearest."""
    return retrieval(embeddings, labels, ())["RP"]


def retrieval(embeddings: Tensor, labels: Tensor, ks: Sequence[int], queries: Tensor | None = None) -> dict[str, float]:
    """Every retrieval metric from one pass over the neighbours. Without `queries` each image is searched for among all
    others; with them, only queries are, and only among the rest."""
    check(embeddings, labels)
    everything = torch.arange(len(labels), device=labels.device)
    asked, shown = (everything, everything) if queries is None else (everything[queries], everything[~queries])
    if not len(asked) or not len(shown):
        raise ValueError(f"{len(asked)} queries and {len(shown)} images in the gallery: both are needed")
    alone = queries is None
    most = len(shown) - int(alone)
    for k in ks:
        if not 1 <= k <= most:
            raise ValueError(f"Recall@{k}: allowed is 1 to {most}, the number of images a query is compared with")
    _, names = labels.unique(return_inverse=True)
    of_class = names[shown].bincount(minlength=int(names.max()) + 1)
    R = of_class[names[asked]] - int(alone)  # (queries,) right ones in the gallery
    depth = min(max([*ks, int(R.max()), 1]), most)
    first = torch.full((len(asked),), depth, device=labels.device)  # rank of the first right neighbour, from 0
    precision = torch.zeros(len(asked), dtype=torch.float64, device=labels.device)
    average = torch.zeros_like(precision)
    ranks = torch.arange(depth, device=labels.device)
    gallery = embeddings if alone else embeddings[shown]
    for rows, right in rankings(embeddings, gallery, asked, names, names[shown], depth, alone=alone):
        first[rows] = torch.where(right, ranks, depth).amin(dim=1)
        counted = right & (ranks < R[rows, None])
        hits = counted.cumsum(dim=1)
        R_rows = R[rows].clamp_min(1)
        precision[rows] = hits[:, -1].double() / R_rows
        average[rows] = (counted * hits.double() / (ranks + 1)).sum(dim=1) / R_rows
    company = R > 0
    found = {f"R@{k}": (first < k).double().mean().item() for k in ks}
    return found | {"MAP@R": mean(average[company]), "RP": mean(precision[company])}


def mean(values: Tensor) -> float:
    return values.mean().item() if len(values) else 0.0


def check(embeddings: Tensor, labels: Tensor) -> None:
    if len(embeddings) != len(labels):
        raise ValueError(f"{len(embeddings)} embeddings but {len(labels)} labels")
    if len(labels) < 2:
        raise ValueError("retrieval needs at least 2 images")
    if (labels == labels[0]).all():
        raise ValueError("all images are of one class: there is nothing to tell apart")
    bad = sum(int((~part.isfinite()).any(dim=1).sum()) for part in embeddings.split(2**14))
    if bad:
        raise FloatingPointError(f"{bad} of {len(embeddings)} embeddings are not finite")
    largest = max(float(part.abs().max()) for part in embeddings.split(2**14))
    if largest and not 1e-15 <= largest <= 1e15:  # their squares must be numbers too
        raise ValueError(f"the largest number in the embeddings is {largest:.3g}: allowed is 1e-15 to 1e15")


def rankings(
    embeddings: Tensor, gallery: Tensor, asked: Tensor, names: Tensor, shown: Tensor, depth: int, *, alone: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """Chunks of queries (their places in `asked`), and which of their `depth` nearest are right, nearest first.

    `names` are the classes of the embeddings, `shown` those of the gallery; `alone`: the gallery is the embeddings
    themselves, and a query is left out of it by its index.
    """
    most = len(gallery) - int(alone)
    wide = min(depth + SPARE, most)
    tiles = Tiles.of(embeddings[asked], gallery) if not alone else Tiles.of(gallery, gallery)
    for rows, values, found in tiles.mutual(wide) if alone else tiles.one_sided(wide):
        queries, doubt = asked[rows], tiles.doubt
        values, order = values.sort(dim=1, descending=True)
        found = found.gather(1, order).long()
        right = shown[found] == names[queries, None]
        near = values[:, :-1] - values[:, 1:] <= doubt
        # a near tie at the edge may go on behind it
        near[:, depth - 1 :] = near[:, depth - 1 :].cumprod(dim=1)
        unclear = (near & (right[:, :-1] != right[:, 1:])).any(dim=1)
        # and beyond what was looked at
        endless = values[:, depth - 1] - values[:, -1] <= doubt if wide < most else torch.zeros_like(unclear)
        for row in (unclear & ~endless).nonzero().flatten().split(8):
            ranked = rank(embeddings[queries[row]], gallery, found[row])[:, :depth]
            right[row, :depth] = shown[ranked] == names[queries[row], None]
        for row in endless.nonzero().flatten().tolist():
            query = int(queries[row])
            ranked = rank_all(embeddings[query], gallery, query if alone else None)[:depth]
            right[row, :depth] = shown[ranked] == names[query]
        yield rows, right[:, :depth]
