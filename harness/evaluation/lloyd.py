"""k-means as the literature runs it: what scikit-learn's KMeans does, on the embeddings' device, in bounded memory.

Design notes. The products of points and centres decide the time.
- A centre whose cluster has lost and won nobody stays where it is. A point that is no farther from its own centre than
  before can only have come closer to a centre that moved. Only the others are compared with all centres.
- The starts differ in nothing but their random numbers, and their first centres are found together (seeding.py).
benchmarks/evaluation.py compares inertia, NMI and time with scikit-learn and faiss.
"""

import math
from collections.abc import Generator

import torch
from torch import Tensor

from harness.evaluation.seeding import random_numbers, seeds, trials
from harness.evaluation.step import Step
from harness.spec.recipes import starts

ITERATIONS = 300  # at most; this and the tolerance are scikit-learn's
TOLERANCE = 1e-4  # of the mean variance of a coordinate: centres that move less than this, squared, have converged
BLOCK = 2**22  # entries per block of products: 16 MB
SEEDING = 2**25  # distances of the candidates of all starts that are found together, at most


def cluster(x: Tensor, k: int, seed: int) -> Generator[Step, None, Tensor]:
    """Labels (n,) of the best of all starts."""
    x = x - x.mean(dim=0)  # clusters do not depend on the origin, but rounding does
    count = starts(k)
    tolerance = TOLERANCE * float(x.var(dim=0, correction=0).mean())
    numbers = random_numbers(seed, k, count)
    together = min(count, max(1, SEEDING // (trials(k) * len(x))))
    best, lowest = torch.empty(0), math.inf
    for number in range(count):
        if number % together == 0:
            first = yield from seeds(x, k, numbers[number : number + together])
        labels, inertia = yield from iterate(x, x[first[number % together]], tolerance, (number + 1, count))
        if inertia < lowest:
            best, lowest = labels, inertia
    return best


def iterate(
    x: Tensor, centres: Tensor, tolerance: float, start: tuple[int, int] = (1, 1)
) -> Generator[Step, None, tuple[Tensor, float]]:
    """Lloyd's iterations from these centres (k, d). Returns labels (n,) and inertia."""
    clusters = Clusters(x, centres)
    for iteration in range(1, ITERATIONS + 1):
        before = clusters.labels.clone()
        yield from clusters.assign(Step("cluster", iteration, ITERATIONS, *start))
        if torch.equal(before, clusters.labels):
            break
        if clusters.move(before) <= tolerance:
            yield from clusters.assign(Step("cluster", iteration, ITERATIONS, *start))
            break
    else:
        yield from clusters.assign(Step("cluster", ITERATIONS, ITERATIONS, *start))
    return clusters.labels, float((clusters.squares - 2 * clusters.score).sum(dtype=torch.float64))


class Clusters:
    """Points, centres, and which centre is nearest to each point. A score is x.c - |c|^2 / 2, largest for that one."""

    def __init__(self, x: Tensor, centres: Tensor) -> None:
        self.x = x
        self.squares = x.square().sum(dim=1)
        self.centres = centres.clone()
        self.labels = torch.full((len(x),), -1, device=x.device)
        self.score = x.new_full((len(x),), -math.inf)
        self.moved = torch.ones(len(centres), dtype=torch.bool, device=x.device)  # since the last assignment

    def assign(self, step: Step) -> Generator[Step, None, None]:
        """Give each point to its nearest centre, given the nearest before some centres moved."""
        half = self.centres.square().sum(dim=1) / 2
        lost = torch.ones_like(self.labels, dtype=torch.bool)  # may be closer to any centre now
        if not self.moved.all():
            lost = self.moved[self.labels]
            mine = lost.nonzero().flatten()
            before = self.score[mine]
            self.score[mine] = self.own_score(mine, half)
            lost[mine] = self.score[mine] < before
        every = torch.arange(len(half), device=half.device)
        for points, columns in ((lost, every), (~lost, self.moved.nonzero().flatten())):
            rows = points.nonzero().flatten()
            if not len(rows) or not len(columns):
                continue
            if columns is every:
                self.score[rows] = -math.inf
            for block in rows.split(max(1, BLOCK // len(columns))):
                self.compare(block, columns, half)
                yield step
        self.moved.zero_()

    def compare(self, rows: Tensor, columns: Tensor, half: Tensor) -> None:
        """Give these points to the nearest of these centres where it is nearer than their own."""
        best, which = torch.addmm(-half[columns], self.x[rows], self.centres[columns].T).max(dim=1)
        closer = best > self.score[rows]
        self.score[rows] = torch.where(closer, best, self.score[rows])
        self.labels[rows] = torch.where(closer, columns[which], self.labels[rows])

    def own_score(self, rows: Tensor, half: Tensor) -> Tensor:
        """The scores of these points and their own centres."""
        parts = [
            (self.x[some] * self.centres[self.labels[some]]).sum(dim=1)
            for some in rows.split(max(1, BLOCK // self.x.shape[1]))
        ]
        return torch.cat(parts) - half[self.labels[rows]] if parts else self.score[rows]

    def move(self, before: Tensor) -> float:
        """Move the centres of the clusters that have lost or won points since these labels into their middle. Returns
        the sum of the squares of how far they moved."""
        k = len(self.centres)
        sizes = self.labels.bincount(minlength=k)
        sums = torch.zeros_like(self.centres).index_add_(0, self.labels, self.x)
        changed = self.labels != before
        self.moved[self.labels[changed]] = True
        self.moved[before[changed & (before >= 0)]] = True
        self.relocate(sums, sizes)
        sums /= sizes.clamp_min(1)[:, None]
        # a cluster that could not be filled waits at the largest
        sums[sizes == 0] = sums[sizes.argmax()].clone()
        self.moved |= sizes == 0
        shift = (sums - self.centres)[self.moved].square().sum()
        self.centres[self.moved] = sums[self.moved]
        return float(shift)

    def relocate(self, sums: Tensor, sizes: Tensor) -> None:
        """Start each empty cluster again at one of the points that are farthest from their centres. Changes the sums
        (k, d) and sizes (k,)."""
        empty = (sizes == 0).nonzero().flatten()
        if not len(empty):
            return
        blocks = torch.arange(len(self.x), device=self.x.device).split(max(1, BLOCK // self.x.shape[1]))
        distances = torch.cat([(self.x[some] - self.centres[self.labels[some]]).square().sum(dim=1) for some in blocks])
        if not distances.any():  # fewer different points than clusters
            return
        farthest = distances.topk(len(empty)).indices
        sources = self.labels[farthest]
        sums.index_add_(0, sources, self.x[farthest], alpha=-1)
        sizes.index_add_(0, sources, torch.ones_like(sources), alpha=-1)
        sums[empty], sizes[empty] = self.x[farthest], 1
        self.moved[sources] = True
        self.moved[empty] = True
