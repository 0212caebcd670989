"""Recall@K, MAP@R, R-precision and NMI of a set of embeddings: exact, in bounded memory, on the embeddings' device.

Neighbours are ranked by Euclidean distance in float64, equal ones by their index, so no number depends on chunk sizes,
device or threads. Next to nothing is computed in float64: float32 matrix products rank all but the few rows in which a
right and a wrong neighbour are closer to each other than a product's rounding error, and only those are ranked again.

Why it is as it is. The time is that of the matrix product; the rest must not add to it. So similarities are computed
in tiles that stay in the cache, and never sorted: each query keeps its best so far, and of a tile only what beats the
worst of them is looked at. To find it, a tile is reduced to the maxima of groups of GROUP columns, one pass; after the
first tiles hardly a group has anything to offer. What is kept besides is a tile and the best of its queries: tens of
megabytes, whatever the gallery. benchmarks/evaluation.py measures what is left beside the product.
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

TILE = {"cpu": 2**22, "cuda": 2**27}  # similarities at once: what stays in a cache; what keeps a GPU busy
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
    middle = gallery.mean(dim=0)
    half = torch.cat([(part - middle).square().sum(dim=1) / 2 for part in gallery.split(2**12)])
    most = len(gallery) - int(alone)
    wide = min(depth + SPARE, most)
    longest = max(float(torch.linalg.vector_norm(part, dim=1).max()) for part in (embeddings, gallery))
    rows_at_once, columns_at_once = tile(embeddings)
    room = embeddings.new_empty(min(rows_at_once, len(asked)) * min(columns_at_once, len(gallery)))
    for rows in torch.arange(len(asked), device=asked.device).split(rows_at_once):
        queries = asked[rows]
        # |q - g|^2 / 2 is, but for what all g share, |g - m|^2 / 2 - (q - m).g. Around the middle m of the gallery
        # the products are small where a network has put everything in one place, and so is their rounding error.
        centred = embeddings[queries] - middle
        reach = max(float(torch.linalg.vector_norm(centred, dim=1).max()), math.sqrt(2 * float(half.max())))
        # several times what rounding does to a product of rows that long and to the halved squares
        doubt = 2 * reach * longest * math.sqrt(embeddings.shape[1]) * torch.finfo(embeddings.dtype).eps
        values, found = embeddings.new_empty(len(rows), 0), queries.new_empty(len(rows), 0)
        for begin in range(0, len(gallery), columns_at_once):
            part = gallery[begin : begin + columns_at_once]
            closeness = room[: len(rows) * len(part)].view(len(rows), len(part))
            torch.addmm(-half[begin : begin + len(part)], centred, part.T, out=closeness)
            if alone:
                here = ((queries >= begin) & (queries < begin + len(part))).nonzero().flatten()
                closeness[here, queries[here] - begin] = -math.inf
            values, found = merge(values, found, closeness, begin, wide)
        values, order = values.sort(dim=1, descending=True)
        found = found.gather(1, order)
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


def tile(embeddings: Tensor) -> tuple[int, int]:
    """Queries and gallery images at once: a quarter as many queries, within an eighth of the memory there is."""
    if embeddings.is_cuda:
        free = torch.cuda.mem_get_info(embeddings.device)[0]
    elif hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        free = 2**32
    entries = max(4, min(TILE.get(embeddings.device.type, TILE["cpu"]), free // 8 // embeddings.element_size()))
    rows = math.isqrt(entries // 4)
    return rows, entries // rows


def merge(values: Tensor, columns: Tensor, block: Tensor, begin: int, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of `values` (n, <= k) and of the rows of a block whose first column is number `begin`, and their
    columns; in no order."""
    n, width = block.shape
    m = -(-width // GROUP)
    first = not values.shape[1]
    if k > m or (values.shape[1] < k and not first):
        best, places = block.topk(min(k, width), dim=1, sorted=False)
        return largest(torch.cat([values, best], dim=1), torch.cat([columns, places + begin], dim=1), k)
    if m * GROUP > width:
        block = torch.nn.functional.pad(block, (0, m * GROUP - width), value=-math.inf)
    groups = block.view(n, GROUP, m)  # group j is the columns j, j + m, j + 2m, ...
    maxima = groups.amax(dim=1)
    if first:  # the k-th largest maximum: at least k entries are no smaller
        worst = maxima.topk(k, dim=1).values[:, -1].nextafter(maxima.new_tensor(-math.inf))
    else:
        worst = values.amin(dim=1)
    row, group = (maxima > worst[:, None]).nonzero(as_tuple=True)
    offered = groups[row, :, group]
    which, member = (offered > worst[row, None]).nonzero(as_tuple=True)
    offers = torch.bincount(row[which], minlength=n)
    most = int(offers.max())
    if not most:
        return values, columns
    # every row's offers, which come row by row, in a row of their own
    place = torch.arange(len(which), device=which.device) - (offers.cumsum(dim=0) - offers)[row[which]]
    new = values.new_full((n, most), -math.inf)
    new[row[which], place] = offered[which, member]
    at = columns.new_zeros(n, most)
    at[row[which], place] = member * m + group[which] + begin
    return largest(torch.cat([values, new], dim=1), torch.cat([columns, at], dim=1), k)


def largest(values: Tensor, columns: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values, places = values.topk(min(k, values.shape[1]), dim=1, sorted=False)
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
