"""k-means by Hartigan's criterion, on the embeddings' device: the recipe of this project's first results.

Design notes. Where clusters are small (5 images per class in Stanford Online Products), Lloyd's algorithm stops early:
a point has pulled its own centre towards itself, and stays. Hartigan's criterion (Applied Statistics 1979; Telgarsky
and Vattani, AISTATS 2010) counts what a point's leaving and joining do to the centres. Each of its optima is one of
Lloyd's, few of Lloyd's are one of its own, and it depends little on the start.
- Hartigan's algorithm usually moves point by point. Here one matrix product compares a block of points with all
  centres; of the moves that lower the inertia, those are made, best first, that touch no cluster twice. So each lowers
  the inertia by exactly what was computed.
- A whole sweep over all points costs as much as an iteration of Lloyd. It leaves each point with the NEAR clusters it
  could join best, and the short sweeps between two whole ones look at no others.
- The start draws centres in rounds, each point with probability proportional to its squared distance from the centres
  drawn so far. All rounds together need the products of a single sweep.
benchmarks/evaluation.py compares time and inertia with faiss and scikit-learn.
"""

import math
from collections.abc import Generator, Iterator

import torch
from torch import Tensor

from harness.evaluation.step import Step
from harness.spec.recipes import LLOYD_AFTER_SWEEPS, ROUNDS, SWEEPS, WORTH

NEAR = 8  # clusters that a short sweep compares a point with
SHORT = 8  # short sweeps between two whole ones, at most
BLOCK = 2**22  # entries per block of products: 16 MB


def cluster(x: Tensor, k: int, seed: int) -> Generator[Step, None, Tensor]:
    """Cluster labels (n,) of the rows of x (n, d). A cluster that becomes empty starts again at a point far from its
    centre."""
    # clusters do not depend on the origin, but rounding does: where a network maps all images to nearly the same point,
    # embeddings differ by less than a product's error
    x = x - x.mean(dim=0)
    generator = torch.Generator().manual_seed(seed)
    labels = start(x, k, ROUNDS, generator)
    for number, _ in enumerate(hartigan(x, labels, k, SWEEPS, generator), start=1):
        yield Step("cluster", number, SWEEPS)
    lloyd(x, labels, k, LLOYD_AFTER_SWEEPS)
    return labels


def hartigan(x: Tensor, labels: Tensor, k: int, sweeps: int, generator: torch.Generator) -> Iterator[float]:
    """Whole sweeps with short ones between them, while they lower the inertia enough; yields the inertia before each
    whole one."""
    near = torch.zeros(len(x), min(NEAR, k - 1), dtype=torch.long, device=x.device) if k > 2 * NEAR else None
    for _ in range(sweeps):
        inertia, gained = sweep(x, labels, k, generator, near)
        yield inertia
        if gained <= WORTH * inertia:
            return
        for _ in range(SHORT if near is not None else 0):
            inertia, gained = sweep(x, labels, k, generator, near, short=True)
            if gained <= WORTH * inertia:
                break


def start(x: Tensor, k: int, rounds: int, generator: torch.Generator) -> Tensor:
    """The number (n,) of each point's nearest centre, of k points drawn in rounds: those of a round with probability
    proportional to their squared distance from the centres of earlier rounds (k-means++ if there are k rounds)."""
    n = len(x)
    lengths = torch.linalg.vector_norm(x, dim=1).square()
    labels = torch.zeros(n, dtype=torch.long, device=x.device)
    score = torch.full((n,), -math.inf, dtype=x.dtype, device=x.device)  # of the nearest centre so far
    left = torch.ones(n, dtype=torch.bool, device=x.device)
    drawn = 0
    for size in (len(part) for part in torch.arange(k).tensor_split(min(rounds, k))):
        distances = (lengths - 2 * score).clamp_min(0).double() if drawn else torch.ones_like(lengths).double()
        # the smallest exponential waiting times are a draw without replacement; points that coincide with a centre
        # come after the others, but before the points that are drawn already
        waiting = torch.empty(n, dtype=torch.float64).exponential_(generator=generator).to(x.device)
        waiting = (waiting / distances).nan_to_num(posinf=1e300).clamp_max(1e300).masked_fill_(~left, math.inf)
        chosen = waiting.topk(size, largest=False).indices
        left[chosen] = False
        closest(x, x[chosen], labels, score, first=drawn)
        drawn += size
    return labels


def nearest(x: Tensor, centres: Tensor) -> Tensor:
    """The index (n,) of every point's nearest centre."""
    labels = torch.zeros(len(x), dtype=torch.long, device=x.device)
    closest(x, centres, labels, torch.full((len(x),), -math.inf, dtype=x.dtype, device=x.device))
    return labels


def closest(x: Tensor, centres: Tensor, labels: Tensor, score: Tensor, first: int = 0) -> None:
    """Give each point to the nearest of these centres, numbered from `first` on, if it is nearer than the point's own.
    A score is x.c - |c|^2 / 2, largest for the nearest centre."""
    half = centres.square().sum(dim=1) / 2
    for rows in blocks(torch.arange(len(x), device=x.device), BLOCK // len(centres)):
        best, which = torch.addmm(-half, x[rows], centres.T).max(dim=1)
        closer = best > score[rows]
        score[rows] = torch.where(closer, best, score[rows])
        labels[rows] = torch.where(closer, which + first, labels[rows])


def sweep(
    x: Tensor, labels: Tensor, k: int, generator: torch.Generator, near: Tensor | None = None, *, short: bool = False
) -> tuple[float, float]:
    """Move each point once, in random order, to the cluster that costs least to join, if that costs less than leaving
    its own saves. Returns the inertia before, and by how much it fell. `near` (n, NEAR) holds the clusters that each
    point could join best: a whole sweep writes it, and a short one looks at no others.

    For a cluster of n members with sum s, joining costs n/(n+1) |x - s/n|^2 and leaving saves n/(n-1) |x - s/n|^2.
    """
    sizes = labels.bincount(minlength=k).to(x.dtype)
    sums = torch.zeros(k, x.shape[1], dtype=x.dtype, device=x.device).index_add_(0, labels, x)
    squares = sums.square().sum(dim=1)
    inertia = float(torch.linalg.vector_norm(x).square() - (squares / sizes.clamp_min(1)).sum())
    joined = sums.div_((sizes + 1)[:, None])
    constant = squares / (sizes * (sizes + 1)).clamp_min(1)  # |s|^2 / n(n+1)
    gained = 0.0
    # few enough points that their moves seldom meet at a cluster
    at_once = min(max(k, 64), BLOCK // (NEAR * x.shape[1] if short else k))
    for rows in blocks(torch.randperm(len(x), generator=generator).to(x.device), at_once):
        points, mine, n = x[rows], labels[rows], sizes[labels[rows]]
        lengths = points.square().sum(dim=1)
        here = constant[mine] + lengths * n / (n + 1) - 2 * (points * joined[mine]).sum(dim=1)
        if short and near is not None:
            others = near[rows]
            costs = constant[others] - 2 * torch.bmm(joined[others], points[:, :, None]).squeeze(2)
            costs += lengths[:, None] * (sizes / (sizes + 1))[others]
            best, place = costs.masked_fill_(others == mine[:, None], math.inf).min(dim=1)
            goal = others.gather(1, place[:, None]).squeeze(1)
        else:
            costs = torch.addmm(constant, points, joined.T, alpha=-2)
            costs.addr_(lengths, sizes / (sizes + 1)).scatter_(1, mine[:, None], math.inf)
            if near is None:
                best, goal = costs.min(dim=1)
            else:
                lowest, near[rows] = costs.topk(near.shape[1], dim=1, largest=False)
                best, goal = lowest[:, 0], near[rows, 0]
        # `here` is the cost of joining the point's own cluster, n/(n+1) |x - s/n|^2
        gain = torch.where(n > 1, here * (n + 1) / (n - 1).clamp_min(1), 0.0) - best
        moves = independent(gain, mine, goal)
        if not len(moves):
            continue
        gained += float(gain[moves].sum())
        for cluster, sign in ((mine[moves], -1), (goal[moves], 1)):
            total = joined[cluster] * (sizes[cluster] + 1)[:, None] + sign * points[moves]
            sizes[cluster] += sign
            joined[cluster] = total / (sizes[cluster] + 1)[:, None]
            constant[cluster] = total.square().sum(dim=1) / (sizes[cluster] * (sizes[cluster] + 1)).clamp_min(1)
        labels[rows[moves]] = goal[moves]
        if near is not None:
            near[rows[moves], -1] = mine[moves]  # the way back
    return inertia, gained


def independent(gain: Tensor, source: Tensor, goal: Tensor) -> Tensor:
    """The moves that lower the inertia, best first, without those that touch a cluster of an earlier one."""
    # rounding: a gain of nothing must not move identical points in circles
    paying = (gain > 1e-6 * gain.abs().max()).nonzero().flatten()
    paying = paying[gain[paying].argsort(descending=True, stable=True)]
    touched: set[int] = set()
    chosen = []
    for move, *clusters in zip(paying.tolist(), source[paying].tolist(), goal[paying].tolist(), strict=True):
        if touched.isdisjoint(clusters):
            touched.update(clusters)
            chosen.append(move)
    return torch.tensor(chosen, dtype=torch.long, device=gain.device)


def lloyd(x: Tensor, labels: Tensor, k: int, iterations: int) -> None:
    """Lloyd's algorithm on these labels, until none of them changes."""
    for _ in range(iterations):
        repair(x, labels, k)
        centres = means(x, labels, k)
        before = labels.clone()
        rows = blocks(torch.arange(len(x), device=x.device), BLOCK // x.shape[1])
        score = torch.cat([(x[some] * centres[labels[some]]).sum(dim=1) for some in rows])
        closest(x, centres, labels, score - (centres.square().sum(dim=1) / 2)[labels])
        if torch.equal(before, labels):
            return
    repair(x, labels, k)


def means(x: Tensor, labels: Tensor, k: int) -> Tensor:
    sums = torch.zeros(k, x.shape[1], dtype=x.dtype, device=x.device).index_add_(0, labels, x)
    return sums / labels.bincount(minlength=k).clamp_min(1)[:, None]


def repair(x: Tensor, labels: Tensor, k: int) -> None:
    """Give each empty cluster the point farthest from its centre, of those that are not alone in their cluster."""
    sizes = labels.bincount(minlength=k)
    empty = (sizes == 0).nonzero().flatten().tolist()
    if not empty:
        return
    centres = means(x, labels, k)
    rows = blocks(torch.arange(len(x), device=x.device), BLOCK // x.shape[1])
    distances = torch.cat([(x[some] - centres[labels[some]]).square().sum(dim=1) for some in rows])
    for cluster in empty:
        farthest = int(torch.where(sizes[labels] > 1, distances, -math.inf).argmax())
        sizes[labels[farthest]] -= 1
        sizes[cluster] = 1
        labels[farthest] = cluster
        distances[farthest] = -math.inf


def blocks(rows: Tensor, size: int) -> Iterator[Tensor]:
    yield from rows.split(max(1, size))
