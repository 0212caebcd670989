"""Greedy k-means++: where k-means starts, as scikit-learn does it and with its random numbers.

Each further centre is the best of a few candidates. A candidate is drawn with probability proportional to its squared
distance from the nearest centre so far; the best leaves the smallest potential, the sum of these distances. (Arthur and
Vassilvitskii, SODA 2007, mention it; scikit-learn's default.)

Design notes. For k centres, k times as many candidates are compared with all points: at the size of Stanford Online
Products each point about twice. But a candidate changes only what is closer to it than to any centre, and after t
centres that is about one point in t.
- While that is many, the candidates of all starts are compared with all points, in one product per centre.
- As soon as the closer ones of all points fit into memory, they are listed once: half of all products between points.
  From there on a candidate costs what its list is long.
"""

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from harness.evaluation.step import Step

LISTED = 2**22  # pairs of points that are listed at most
SAMPLE = 256  # points of which the pairs are counted before all are listed
FIRST_COUNT = 32  # centres before pairs are counted for the first time
TILE = 2048  # points per side of a tile of products
REPORT = 64  # centres between two reports


def trials(k: int) -> int:
    """Candidates per centre."""
    return 2 + int(math.log(k))


def random_numbers(seed: int, k: int, starts: int) -> np.ndarray:
    """(starts, 1 + (k - 1) * trials) in [0, 1): the numbers that scikit-learn's KMeans draws with this random_state."""
    return np.random.RandomState(seed).random_sample((starts, 1 + (k - 1) * trials(k)))


def seeds(x: Tensor, k: int, numbers: np.ndarray) -> Generator[Step, None, Tensor]:
    """The points (s, k) at which s starts begin, as rows of x (n, d), given their random numbers."""
    search = Search.begin(x, torch.from_numpy(numbers).to(x.device))
    draws = torch.from_numpy(numbers[:, 1:]).to(x.device).view(len(numbers), k - 1, -1)
    near: Near | None = None
    count_at = FIRST_COUNT
    for centre in range(1, k):
        remaining = (k - centre) * draws.shape[0] * draws.shape[2]
        if near is None and centre == count_at and remaining > len(x):
            count_at *= 2
            if expected_pairs(search) <= LISTED:
                near = yield from list_pairs(search)
        candidates = search.draw(draws[:, centre - 1])
        if near is None:
            search.add_best(candidates)
        else:
            search.add_best_listed(candidates, near)
        if centre % REPORT == 0:
            yield Step("cluster", centre, k)
    return torch.stack(search.chosen, dim=1)


@dataclass
class Search:
    """The centres that s starts have chosen so far."""

    x: Tensor  # (n, d)
    squares: Tensor  # (n,) |x|^2
    closest: Tensor  # (s, n) each point's squared distance from its nearest centre
    chosen: list[Tensor]  # each (s,)

    @classmethod
    def begin(cls, x: Tensor, numbers: Tensor) -> "Search":
        first = (numbers[:, 0] * len(x)).long().clamp_max(len(x) - 1)
        search = cls(x, x.square().sum(dim=1), x.new_empty(0), [first])
        search.closest = search.distances(first)
        return search

    def distances(self, points: Tensor) -> Tensor:
        """Squared distances (p, n) of these points from all; exactly 0 from themselves."""
        found = torch.addmm(self.squares, self.x[points], self.x.T, alpha=-2)
        found.add_(self.squares[points, None]).clamp_min_(0)
        return found.scatter_(1, points[:, None], 0)

    def draw(self, numbers: Tensor) -> Tensor:
        """Candidates (s, t) for the numbers (s, t) in [0, 1)."""
        total = self.closest.cumsum(dim=1, dtype=torch.float64)
        return torch.searchsorted(total, numbers * total[:, -1:]).clamp_max(len(self.x) - 1)

    def add_best(self, candidates: Tensor) -> None:
        """Choose for each start the candidate, of (s, t), that leaves the smallest potential."""
        closest = self.distances(candidates.flatten()).view(*candidates.shape, -1)
        torch.minimum(closest, self.closest[:, None], out=closest)
        best = potentials(closest).argmin(dim=1)
        every = torch.arange(len(candidates), device=best.device)
        self.closest = closest[every, best]
        self.chosen.append(candidates[every, best])

    def add_best_listed(self, candidates: Tensor, near: "Near") -> None:
        """The same, from the list of the pairs that can matter."""
        starts, count = candidates.shape
        pair, owner = near.of(candidates.flatten())
        place = owner // count * len(self.x) + near.other[pair]
        closest = self.closest.view(-1)
        gain = (closest[place] - near.distance[pair]).clamp_min_(0)
        gains = torch.zeros(starts * count, dtype=torch.float64, device=gain.device)
        best = gains.index_add_(0, owner, gain.double()).view(starts, count).argmax(dim=1)
        best += torch.arange(starts, device=best.device) * count
        winning = torch.isin(owner, best)
        closest[place[winning]] -= gain[winning]
        self.chosen.append(candidates.flatten()[best])


def potentials(closest: Tensor) -> Tensor:
    """The sums of squared distances (s, t) that candidates leave, given (s, t, n)."""
    return closest.sum(dim=2)


@dataclass(frozen=True)
class Near:
    """Pairs of points whose second is closer to the first than to its nearest centre, in the order of the first."""

    begin: Tensor  # (n + 1,) where the pairs of each point begin
    other: Tensor  # (p,)
    distance: Tensor  # (p,) squared

    def of(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """All pairs whose first is one of these points: the pairs, and which of the points each belongs to."""
        begin = self.begin[points]
        counts = self.begin[points + 1] - begin
        owner = torch.repeat_interleave(torch.arange(len(points), device=points.device), counts)
        before = counts.cumsum(dim=0) - counts
        return torch.arange(len(owner), device=points.device) + (begin - before)[owner], owner


def expected_pairs(search: Search) -> float:
    """How many pairs a list would hold, from those of SAMPLE points."""
    n = len(search.x)
    sample = torch.arange(0, n, max(1, n // SAMPLE), device=search.x.device)
    return int((search.distances(sample) < search.closest.amax(dim=0)).sum()) * n / len(sample)


def list_pairs(search: Search) -> Generator[Step, None, Near | None]:
    """All pairs that can matter from now on; None if there are far more of them than expected."""
    closest = search.closest.amax(dim=0)
    parts = []
    found = 0
    tiles = list(tile_corners(len(search.x)))
    for number, (top, left) in enumerate(tiles, start=1):
        rows, columns = slice(top, top + TILE), slice(left, left + TILE)
        tile = search.squares[rows, None] + search.squares[columns]
        tile.addmm_(search.x[rows], search.x[columns].T, alpha=-2).clamp_min_(0)
        if top == left:
            tile.fill_diagonal_(0)
        else:  # each tile serves its columns too
            parts.append(pairs_of(tile.T, closest[rows], left, top))
        parts.append(pairs_of(tile, closest[columns], top, left))
        found += sum(len(distance) for _, _, distance in parts[-2:])
        if found > 2 * LISTED:
            return None
        yield Step("cluster", number, len(tiles))
    first, other, distance = (torch.cat(some) for some in zip(*parts, strict=True))
    first, order = first.sort(stable=True)
    begin = torch.searchsorted(first, torch.arange(len(search.x) + 1, device=first.device, dtype=first.dtype))
    return Near(begin, other[order].long(), distance[order])


def tile_corners(n: int) -> Iterator[tuple[int, int]]:
    """The tiles on and above the diagonal."""
    for top in range(0, n, TILE):
        for left in range(top, n, TILE):
            yield top, left


def pairs_of(tile: Tensor, closest: Tensor, top: int, left: int) -> tuple[Tensor, Tensor, Tensor]:
    """First points, second points and distances of the pairs of a tile whose second is closer than its centre."""
    first, other = (tile < closest).nonzero(as_tuple=True)
    return (first + top).int(), (other + left).int(), tile[first, other]
