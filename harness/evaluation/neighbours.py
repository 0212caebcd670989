"""The nearest images of every query: exact, in tiles of one matrix product, on the embeddings' device.

Design notes. The matrix product decides the time; everything else must add little to it.
- Where every image is searched among all others, one product serves both images, so only half of them are computed.
- Products are computed in tiles that stay in the cache, and no row is ever sorted. Each query keeps its best so far; of
  a tile, only entries that exceed the worst of those are looked at, for their row and for their column at once.
- To find these entries, one pass reduces a tile to the maxima of groups of GROUP neighbouring entries, which are a line
  of the cache each. After the first tiles few groups exceed anything.
- Such entries are collected, and merged into a query's best a handful of times.
- Memory holds one tile, the best of every query and the entries that wait to be merged, however large the gallery.
benchmarks/evaluation.py measures what is added to the product.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d, pad

TILE = {"cpu": 2**22, "cuda": 2**27}  # entries per tile: what stays in a cache; what keeps a GPU busy
GROUP = 16  # entries per maximum


@dataclass(frozen=True)
class Tiles:
    """Blocks of -|q - g|^2 / 2, larger for nearer images, of queries q (n, d) and a gallery g (m, d).

    Computed around the middle c of the gallery, as (q - c).(g - c) - |g - c|^2 / 2 - |q - c|^2 / 2: where a network
    maps all images to nearly the same point, these products are small, and so is their rounding error.
    """

    queries: Tensor
    gallery: Tensor
    middle: Tensor
    half: Tensor  # (m,) |g - c|^2 / 2
    rest: Tensor  # (n,) |q - c|^2 / 2
    side: int  # queries and gallery images per tile
    mutual: bool  # the gallery is the queries, and no query is compared with itself

    @classmethod
    def of(cls, queries: Tensor, gallery: Tensor, *, mutual: bool) -> "Tiles":
        middle = middle_of(gallery)
        half, rest = (
            torch.cat([(part - middle).square().sum(dim=1) / 2 for part in whole.split(2**12)])
            for whole in (gallery, queries)
        )
        return cls(queries, gallery, middle, half, rest, side(gallery), mutual)

    def doubt(self, rows: Tensor, farthest: Tensor, dtype: torch.dtype) -> Tensor:
        """Several times the rounding error (r, 1) of the difference of two entries of these queries: of the products,
        and of the numbers of which the middle is subtracted. Entries that are closer may be in the wrong order.
        `farthest` (r,) is the smallest entry that matters to a query: images that are farther from the middle than
        both distances together do not matter."""
        reach = (2 * self.rest[rows]).sqrt() + (-2 * farthest).clamp_min(0).sqrt()
        reach = reach.clamp_max(math.sqrt(2 * max(float(self.half.max()), float(self.rest.max()))))
        limits = torch.finfo(dtype)
        return (reach.square() * (2 * math.sqrt(self.gallery.shape[1]) + 8) * limits.eps + limits.tiny)[:, None]

    def tile(self, centred: Tensor, begin: int) -> Tensor:
        """Entries of `centred` queries (q - c) and the gallery images from `begin` on, without the part that all of a
        row share (`rest`). Columns of -inf fill up the last group."""
        part = self.gallery[begin : begin + self.side] - self.middle
        bias = -self.half[begin : begin + self.side]
        if missing := -len(part) % GROUP:
            part, bias = pad(part, (0, 0, 0, missing)), pad(bias, (0, missing), value=-math.inf)
        return torch.addmm(bias, centred, part.T)

    def nearest(self, k: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Blocks of queries (their rows), the entries of their k nearest images, and their columns; in no order."""
        return self.nearest_of_others(k) if self.mutual else self.nearest_of_gallery(k)

    def nearest_of_gallery(self, k: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for rows in torch.arange(len(self.queries), device=self.queries.device).split(self.side):
            best = Best.none(len(rows), k, self.gallery)
            centred, rest = self.queries[rows] - self.middle, self.rest[rows]
            for begin in range(0, len(self.gallery), self.side):
                offer(self.tile(centred, begin), rest, best, begin)
            best.settle()
            yield rows, best.values, best.columns

    def nearest_of_others(self, k: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Where the gallery is the queries: a tile serves its rows, and its columns too, which are rows of a later
        block."""
        blocks = torch.arange(len(self.gallery), device=self.gallery.device).split(self.side)
        best = [Best.none(len(rows), k, self.gallery) for rows in blocks]
        for number, rows in enumerate(blocks):
            first, mine = int(rows[0]), best[number]
            centred, rest = self.gallery[rows] - self.middle, self.rest[rows]
            for other in range(number, len(blocks)):
                begin = int(blocks[other][0])
                tile = self.tile(centred, begin)
                if other == number:
                    offer(tile.fill_diagonal_(-math.inf), rest, mine, begin)
                else:
                    offer(tile, rest, mine, begin, best[other], first)
            mine.settle()
            yield rows, mine.values, mine.columns


def middle_of(gallery: Tensor) -> Tensor:
    """The mean of the half that lies together most closely: in the middle of most images, wherever the others are."""
    middle = gallery.mean(dim=0)
    for _ in range(3):
        squares = torch.cat([(part - middle).square().sum(dim=1) for part in gallery.split(2**12)])
        middle = gallery[squares <= squares.median()].mean(dim=0)
    return middle


def side(embeddings: Tensor) -> int:
    """The side of a square tile that takes at most an eighth of the free memory."""
    if embeddings.is_cuda:
        free = torch.cuda.mem_get_info(embeddings.device)[0]
    elif hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        free = 2**32
    return max(
        1, math.isqrt(min(TILE.get(embeddings.device.type, TILE["cpu"]), free // 8 // embeddings.element_size()))
    )


@dataclass
class Best:
    """The k largest entries of each row so far (n, k), and their columns; in no order.

    New entries wait until some row has 2k of them. So they are merged in few passes, each of which raises the floor.
    """

    values: Tensor
    columns: Tensor
    floor: Tensor  # (n,) what an entry must exceed
    waits: Tensor  # (n,) how many entries wait for each row
    offers: list[tuple[Tensor, Tensor, Tensor]]  # rows, columns, values

    @classmethod
    def none(cls, n: int, k: int, like: Tensor) -> "Best":
        return cls(
            values=like.new_full((n, k), -math.inf),
            columns=torch.zeros(n, k, dtype=torch.int32, device=like.device),
            floor=like.new_full((n,), -math.inf),
            waits=torch.zeros(n, dtype=torch.long, device=like.device),
            offers=[],
        )

    @property
    def bottomless(self) -> bool:
        """Whether fewer than k entries have been seen."""
        return bool(self.floor[0].isinf())

    def expect(self, entries: Tensor) -> None:
        """Raise the floor before any of these entries (n, width) is taken: the k groups with the largest maxima hold k
        entries that are no smaller than the k-th largest maximum."""
        k = self.values.shape[1]
        if size := min(GROUP, entries.shape[1] // k):
            groups = entries.shape[1] // size
            maxima = entries[:, : groups * size].unflatten(1, (size, groups)).amax(dim=1)
            self.floor = maxima.topk(k, dim=1).values.amin(dim=1).nextafter(self.floor)

    def take(self, row: Tensor, column: Tensor, value: Tensor) -> None:
        """Let those of these entries wait that may be among the largest of their rows."""
        better = (value > self.floor.index_select(0, row)).nonzero().squeeze(1)
        row, column, value = (part.index_select(0, better) for part in (row, column, value))
        self.offers.append((row, column, value))
        self.waits += row.bincount(minlength=len(self.waits))
        if self.waits.max() >= 2 * self.values.shape[1]:
            self.settle()

    def settle(self) -> None:
        """Merge the entries that wait into the k largest."""
        if not self.offers:
            return
        row, column, value = (torch.cat(parts) for parts in zip(*self.offers, strict=True))
        row, order = row.sort()
        n, k = self.values.shape
        width = k + int(self.waits.max())
        # the waiting entries of a row, one after another, behind its best so far
        begin = torch.arange(n, device=row.device) * width + k - (self.waits.cumsum(dim=0) - self.waits)
        place = torch.arange(len(row), device=row.device) + begin.index_select(0, row)
        values, columns = self.values.new_full((n, width), -math.inf), self.columns.new_zeros((n, width))
        values[:, :k], columns[:, :k] = self.values, self.columns
        values.view(-1).scatter_(0, place, value.index_select(0, order))
        columns.view(-1).scatter_(0, place, column.index_select(0, order))
        self.values, places = values.topk(k, dim=1, sorted=False)
        self.columns = columns.gather(1, places)
        self.floor = self.values.amin(dim=1)
        self.waits.zero_()
        self.offers.clear()


def offer(tile: Tensor, rest: Tensor, rows: Best, begin: int, columns: Best | None = None, first: int = 0) -> None:
    """Let each entry of a tile, less the rest of its row, wait for its row and for its column where it is large enough.
    The tile's first column is number `begin`, its first row number `first`."""
    if rows.bottomless:
        rows.expect(tile - rest[:, None])
    maxima = max_pool1d(tile, GROUP).sub_(rest[:, None])
    groups = maxima.shape[1]
    floor = rows.floor[:, None]
    if columns is not None:
        if columns.bottomless:
            columns.expect((tile - rest[:, None])[:, : len(columns.floor)].T)
        below = pad(columns.floor, (0, -len(columns.floor) % GROUP), value=math.inf).view(groups, GROUP)
        floor = torch.minimum(floor, below.amin(dim=1))
    hit = (maxima > floor).flatten().nonzero().squeeze(1).int()
    row, group = hit // groups, hit % groups
    entries = tile.view(-1, GROUP).index_select(0, hit) - rest.index_select(0, row)[:, None]
    floor = rows.floor.index_select(0, row)[:, None]
    if columns is not None:
        floor = torch.minimum(floor, below.index_select(0, group))
    place = (entries > floor).flatten().nonzero().squeeze(1).int()
    which, value = place // GROUP, entries.view(-1).index_select(0, place)
    row, column = row.index_select(0, which), group.index_select(0, which) * GROUP + place % GROUP
    rows.take(row, column + begin, value)
    if columns is not None:
        columns.take(column, row + first, value)


def rank(queries: Tensor, gallery: Tensor, candidates: Tensor) -> Tensor:
    """Candidates (r, c) of queries (r, d), columns of the gallery: nearest first in float64, equal ones by index."""
    candidates = candidates.sort(dim=1).values
    distances = (gallery[candidates].double() - queries.double()[:, None]).square().sum(dim=2)
    return candidates.gather(1, distances.argsort(dim=1, stable=True))


def rank_all(query: Tensor, gallery: Tensor, itself: int | None) -> Tensor:
    """The whole gallery, nearest first in float64, equal ones by index; the query itself last."""
    distances = torch.cat([(part.double() - query.double()).square().sum(dim=1) for part in gallery.split(2**14)])
    if itself is not None:
        distances[itself] = math.inf
    return distances.argsort(stable=True)
