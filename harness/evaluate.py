"""Recall@K, MAP@R, R-precision and NMI of a set of embeddings: exact, in chunks, on any device.

Distances are Euclidean; on embeddings of unit length that ranks as the cosine does. Each image is a query against
all others, itself left out by its index. A query alone in its class is a miss for Recall@K, as in the usual code,
and has no R-precision or MAP@R: those leave it out of their mean.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

CHUNK = 2**24  # entries of a similarity block held at once: 64 MB
LLOYD = 100  # iterations at most
RECIPE = f"k-means++ start, Lloyd until the assignments stop or {LLOYD} times, 1 start, arithmetic mean"


def metrics(
    embeddings: Tensor, labels: Tensor, ks: Sequence[int], seed: int, queries: Tensor | None = None
) -> dict[str, float]:
    """All of them: R@K for each K, MAP@R, RP, NMI. `queries` (n,) bool, where queries and gallery are apart; NMI is of
    all."""
    found = retrieval(embeddings, labels, ks, queries)
    found["NMI"] = nmi(embeddings, labels, seed)
    return found


def recall_at_k(embeddings: Tensor, labels: Tensor, ks: Sequence[int]) -> dict[int, float]:
    """Share of queries with at least one image of their class among the K nearest."""
    found = retrieval(embeddings, labels, ks)
    return {k: found[f"R@{k}"] for k in ks}


def map_at_r(embeddings: Tensor, labels: Tensor) -> float:
    """Mean over queries of (1/R) sum over i <= R of precision@i where the i-th neighbour is right (Musgrave et al.)."""
    return retrieval(embeddings, labels, ())["MAP@R"]


def r_precision(embeddings: Tensor, labels: Tensor) -> float:
    """Mean over queries of the share of their class among the R nearest, R the number of others in the class."""
    return retrieval(embeddings, labels, ())["RP"]


def retrieval(embeddings: Tensor, labels: Tensor, ks: Sequence[int], queries: Tensor | None = None) -> dict[str, float]:
    """Every retrieval metric from one pass over the neighbours. Without `queries` each image is searched for among
    all others; with them, only queries are, and only among the rest."""
    check(embeddings, labels)
    everything = torch.arange(len(labels), device=labels.device)
    asked, gallery = (everything, everything) if queries is None else (everything[queries], everything[~queries])
    if not len(asked) or not len(gallery):
        raise ValueError(f"{len(asked)} queries and {len(gallery)} images in the gallery: both are needed")
    itself = int(queries is None)
    _, names = labels.unique(return_inverse=True)
    R = names[gallery].bincount(minlength=int(names.max()) + 1)[names[asked]] - itself  # right ones in the gallery
    n, depth = len(asked), min(max([*ks, int(R.max()), 1]), len(gallery) - itself)
    first = torch.full((n,), depth, device=labels.device)  # rank of the first right neighbour, from 0
    precision = torch.zeros(n, dtype=torch.float64, device=labels.device)
    average = torch.zeros_like(precision)
    ranks = torch.arange(depth, device=labels.device)
    for rows, neighbours in nearest(embeddings[asked], embeddings[gallery], depth, itself=bool(itself)):
        right = labels[gallery[neighbours]] == labels[asked[rows], None]
        first[rows] = torch.where(right, ranks, depth).amin(dim=1)
        counted = right & (ranks < R[rows, None])
        hits = counted.cumsum(dim=1)
        R_rows = R[rows].clamp_min(1)
        precision[rows] = hits[:, -1].double() / R_rows
        average[rows] = (counted * hits.double() / (ranks + 1)).sum(dim=1) / R_rows
    found = {f"R@{k}": (first < k).double().mean().item() if k <= depth else (R > 0).double().mean().item() for k in ks}
    company = R > 0
    return found | {"MAP@R": mean(average[company]), "RP": mean(precision[company])}


def mean(values: Tensor) -> float:
    return values.mean().item() if len(values) else 0.0


def check(embeddings: Tensor, labels: Tensor) -> None:
    if len(embeddings) != len(labels):
        raise ValueError(f"{len(embeddings)} embeddings but {len(labels)} labels")
    if len(labels) < 2:
        raise ValueError("retrieval needs at least 2 images")
    if not embeddings.isfinite().all():
        bad = int((~embeddings.isfinite()).any(dim=1).sum())
        raise FloatingPointError(f"{bad} of {len(embeddings)} embeddings are not finite")


def nearest(queries: Tensor, gallery: Tensor, depth: int, *, itself: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Chunks of queries with the indices of their `depth` nearest in the gallery, nearest first. `itself`: query i is
    image i of the gallery, and left out."""
    # |q - g|^2 / 2 = |q|^2 / 2 - (q.g - |g|^2 / 2): the query's own norm does not change its ranking
    half = gallery.square().sum(dim=1) / 2
    for rows in torch.arange(len(queries), device=gallery.device).split(max(1, CHUNK // len(gallery))):
        closeness = torch.addmm(-half[None, :], queries[rows], gallery.T)
        if itself:
            closeness[torch.arange(len(rows), device=rows.device), rows] = -math.inf
        yield rows, closeness.topk(depth, dim=1).indices


def nmi(embeddings: Tensor, labels: Tensor, seed: int) -> float:
    """NMI of the classes and a k-means clustering into as many clusters as there are classes."""
    return mutual_information(labels, kmeans(embeddings, len(labels.unique()), seed))


def mutual_information(a: Tensor, b: Tensor) -> float:
    """Mutual information of two labelings over the arithmetic mean of their entropies; 1 if both are constant."""
    a, b = (labels.unique(return_inverse=True)[1].cpu() for labels in (a, b))
    n = len(a)
    width = int(b.max()) + 1
    cells, counts = (a * width + b).unique(return_counts=True)
    joint = counts.double() / n
    pa, pb = a.bincount().double() / n, b.bincount().double() / n
    information = (joint * (joint.log() - pa[cells // width].log() - pb[cells % width].log())).sum().item()
    entropies = -(pa * pa.log()).sum().item() - (pb * pb.log()).sum().item()
    return min(max(2 * information / entropies, 0.0), 1.0) if entropies > 0 else 1.0


def kmeans(x: Tensor, k: int, seed: int) -> Tensor:
    """Cluster labels (n,): k-means++, then Lloyd until no assignment changes. A cluster that runs empty restarts
    at the point farthest from its centre."""
    generator = torch.Generator().manual_seed(seed)
    centres = x[plus_plus(x, k, generator)]
    assigned = torch.full((len(x),), -1, device=x.device)
    for _ in range(LLOYD):
        distances, nearest_centre = assign(x, centres)
        sizes = nearest_centre.bincount(minlength=k)
        for empty in (sizes == 0).nonzero().flatten().tolist():
            farthest = int(torch.where(sizes[nearest_centre] > 1, distances, -1).argmax())
            sizes[nearest_centre[farthest]] -= 1
            nearest_centre[farthest], sizes[empty], distances[farthest] = empty, 1, 0
        if torch.equal(nearest_centre, assigned):
            break
        assigned = nearest_centre
        centres = torch.zeros_like(centres).index_add_(0, assigned, x) / sizes[:, None]
    return assigned


def plus_plus(x: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Indices of k starting points: each drawn with probability proportional to its squared distance
    to the nearest one chosen so far."""
    chosen = [int(torch.randint(len(x), (), generator=generator))]
    norms = x.square().sum(dim=1)
    distances = torch.full((len(x),), math.inf, device=x.device)
    for _ in range(k - 1):
        last = chosen[-1]
        distances = torch.minimum(distances, (norms - 2 * (x @ x[last]) + norms[last]).clamp_min(0))
        distances[last] = 0  # exactly, whatever rounding says
        mass = distances.double().cumsum(0)
        # all points coincide with a centre: any will do
        at = torch.rand((), generator=generator, dtype=torch.float64).to(x.device) * mass[-1]
        chosen.append(min(int(torch.searchsorted(mass, at, right=True)), len(x) - 1))
    return torch.tensor(chosen, device=x.device)


def assign(x: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distance to the nearest centre, and which one that is."""
    half = centres.square().sum(dim=1) / 2
    found = [torch.addmm(-half[None, :], rows, centres.T).max(dim=1) for rows in x.split(max(1, CHUNK // len(centres)))]
    closeness, which = torch.cat([one.values for one in found]), torch.cat([one.indices for one in found])
    return (x.square().sum(dim=1) - 2 * closeness).clamp_min(0), which
