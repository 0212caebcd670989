"""Recall@K, MAP@R, R-precision and NMI of a set of embeddings: exact, in bounded memory, on the embeddings' device.

Neighbours are ranked by Euclidean distance in float64, equal ones by their index, so no number depends on chunk sizes,
device or threads. Next to nothing is computed in float64: float32 matrix products rank all but the few rows in which a
right and a wrong neighbour are closer to each other than a product's rounding error, and only those are ranked again.

Why it is as it is. The time is that of the matrix product; the rest must not add to it. Sorting a row of 60,502, even
partly, costs as much as computing it, so a row is first reduced to the maxima of its groups of GROUP entries, a pass
at memory speed: the k largest entries can only lie in the k groups with the largest maxima, and what is ranked is those
few. benchmarks/evaluation.py measures what is left beside the product.
"""

import math
import os
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from harness.clustering import OURS, Recipe, kmeans, mutual_information, nmi

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

CHUNK = 2**26  # entries of a block of similarities at most: 256 MB
GROUP = 16
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


def rankings(
    embeddings: Tensor, gallery: Tensor, asked: Tensor, names: Tensor, shown: Tensor, depth: int, *, alone: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """Chunks of queries (their places in `asked`), and which of their `depth` nearest are right, nearest first.

    `names` are the classes of the embeddings, `shown` those of the gallery; `alone`: the gallery is the embeddings
    themselves, and a query is left out of it by its index.
    """
    half = torch.linalg.vector_norm(gallery, dim=1).square() / 2
    largest = torch.linalg.vector_norm(embeddings, dim=1).max()
    most = len(gallery) - int(alone)
    wide = min(depth + SPARE, most)
    # twice the usual error of a product of rows that long, and of the halved squares
    doubt = 6 * largest.square() * math.sqrt(embeddings.shape[1]) * torch.finfo(embeddings.dtype).eps
    for rows in torch.arange(len(asked), device=asked.device).split(chunk(len(gallery), embeddings)):
        queries = asked[rows]
        # |q - g|^2 / 2 = |q|^2 / 2 - (q.g - |g|^2 / 2): the query's own norm does not change its ranking
        closeness = torch.addmm(-half, embeddings[queries], gallery.T)
        if alone:
            closeness[torch.arange(len(rows), device=rows.device), queries] = -math.inf
        values, found = largest_of(closeness, wide)
        right = shown[found] == names[queries, None]
        near = values[:, :-1] - values[:, 1:] <= doubt
        unclear = (near & (right[:, :-1] != right[:, 1:]))[:, :depth].any(dim=1)
        # a near tie may go on beyond what was looked at
        endless = values[:, depth - 1] - values[:, -1] <= doubt if wide < most else torch.zeros_like(unclear)
        for row in (unclear & ~endless).nonzero().flatten().split(64):
            ranked = rank(embeddings[queries[row]], gallery, found[row])[:, :depth]
            right[row, :depth] = shown[ranked] == names[queries[row], None]
        for row in endless.nonzero().flatten().tolist():
            query = int(queries[row])
            ranked = rank_all(embeddings[query], gallery, query if alone else None)[:depth]
            right[row, :depth] = shown[ranked] == names[query]
        yield rows, right[:, :depth]


def chunk(gallery: int, embeddings: Tensor) -> int:
    """Queries at once: a block of CHUNK entries, or an eighth of the memory there is."""
    if embeddings.is_cuda:
        free = torch.cuda.mem_get_info(embeddings.device)[0]
    elif hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        free = 2**32
    return max(1, min(CHUNK, free // 8 // embeddings.element_size()) // gallery)


def largest_of(block: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row, largest first, and their columns: of the groups of columns j, j + m, j + 2m, ... only
    the k with the largest maxima are looked into."""
    n = block.shape[1]
    m = -(-n // GROUP)
    if 2 * k >= m:
        return block.topk(k, dim=1)
    maxima = block[:, :m].clone()
    for begin in range(m, n, m):
        part = block[:, begin : begin + m]
        torch.maximum(maxima[:, : part.shape[1]], part, out=maxima[:, : part.shape[1]])
    columns = maxima.topk(k, dim=1, sorted=False).indices[:, :, None] + torch.arange(0, n, m, device=block.device)
    columns = columns.flatten(1)
    values = block.gather(1, columns.clamp_max(n - 1)).masked_fill_(columns >= n, -math.inf)
    values, places = values.topk(k, dim=1)
    return values, columns.gather(1, places)


def rank(queries: Tensor, gallery: Tensor, candidates: Tensor) -> Tensor:
    """Candidates (r, c), columns of the gallery, of queries (r, d): nearest first in float64, equal ones by index."""
    candidates = candidates.sort(dim=1).values
    distances = (gallery[candidates].double() - queries.double()[:, None]).square().sum(dim=2)
    return candidates.gather(1, distances.argsort(dim=1, stable=True))


def rank_all(query: Tensor, gallery: Tensor, itself: int | None) -> Tensor:
    """The whole gallery, nearest first in float64, equal ones by index; the query itself last."""
    distances = torch.cat([(part.double() - query.double()).square().sum(dim=1) for part in gallery.split(2**14)])
    if itself is not None:
        distances[itself] = math.inf
    return distances.argsort(stable=True)
