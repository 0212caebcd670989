"""The nearest images of every query: exact, in tiles of one matrix product, on the embeddings' device.

Why it is as it is. The time is that of the matrix product; the rest must not add to it. Where every image is searched
for among all others, a product serves both images, so only half of them are computed. They are computed in tiles that
stay in the cache, and never sorted: each query keeps its best so far, and of a tile only what beats the worst of them
is looked at. To find it, a tile is reduced to the maxima of groups of GROUP images, one pass; after the first tiles
hardly a group has anything to offer. What is kept besides is a tile and the best of every query, whatever the gallery.
benchmarks/evaluation.py measures what is left beside the product.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

TILE = {"cpu": 2**22, "cuda": 2**27}  # similarities at once: what stays in a cache; what keeps a GPU busy
GROUP = 16


@dataclass(frozen=True)
class Tiles:
    """Blocks of -|q - g|^2 / 2, larger for nearer images, of queries q (n, d) and a gallery g (m, d).

    Computed around the middle c of the gallery, as (q - c).g - |g - c|^2 / 2 - (|q - c|^2 / 2 + (q - c).c): where a
    network has put everything in one place these products are small, and so is their rounding error.
    """

    queries: Tensor
    gallery: Tensor
    middle: Tensor
    half: Tensor  # (m,) |g - c|^2 / 2
    rest: Tensor  # (n,) |q - c|^2 / 2 + (q - c).c
    side: int  # queries and gallery images at once
    room: Tensor

    @classmethod
    def of(cls, queries: Tensor, gallery: Tensor) -> "Tiles":
        middle = gallery.mean(dim=0)
        half = torch.cat([(part - middle).square().sum(dim=1) / 2 for part in gallery.split(2**12)])
        rest = torch.cat(
            [(part - middle).square().sum(dim=1) / 2 + (part - middle) @ middle for part in queries.split(2**12)]
        )
        size = side(gallery)
        return cls(queries, gallery, middle, half, rest, size, gallery.new_empty(size * min(size, len(gallery))))

    @cached_property
    def doubt(self) -> float:
        """Several times what rounding does to the difference of two entries of a row."""
        reach = max(
            float(torch.linalg.vector_norm(part - self.middle, dim=1).max())
            for whole in (self.queries, self.gallery)
            for part in whole.split(2**12)
        )
        longest = max(float(torch.linalg.vector_norm(part, dim=1).max()) for part in (self.queries, self.gallery))
        dim, eps = self.gallery.shape[1], torch.finfo(self.gallery.dtype).eps
        return 2 * reach * longest * math.sqrt(dim) * eps

    def tile(self, centred: Tensor, first: int, begin: int) -> Tensor:
        """Of queries `first` on, less the middle, and gallery images `begin` on. Overwritten by the next one."""
        part = self.gallery[begin : begin + self.side]
        block = self.room[: len(centred) * len(part)].view(len(centred), len(part))
        torch.addmm(-self.half[begin : begin + len(part)], centred, part.T, out=block)
        return block.sub_(self.rest[first : first + len(centred), None])

    def one_sided(self, k: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Blocks of queries, the closeness of their k nearest in the gallery, and which those are; in no order."""
        for rows in torch.arange(len(self.queries), device=self.queries.device).split(self.side):
            best = Best.none(len(rows), k, self.gallery)
            centred = self.queries[rows] - self.middle
            for begin in range(0, len(self.gallery), self.side):
                best.merge(self.tile(centred, int(rows[0]), begin), begin)
            yield rows, best.values, best.columns

    def mutual(self, k: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The same where the gallery is the queries, none of whom meets itself: a tile serves its rows, and as the rows
        of a later block its columns too."""
        n = len(self.gallery)
        best = Best.none(n, k, self.gallery)
        for rows in torch.arange(n, device=self.gallery.device).split(self.side):
            first, end = int(rows[0]), int(rows[-1]) + 1
            centred = self.gallery[first:end] - self.middle
            mine = best.part(first, end)
            for begin in range(first, n, self.side):
                block = self.tile(centred, first, begin)
                if begin == first:
                    block.fill_diagonal_(-math.inf)
                else:
                    best.part(begin, begin + self.side).merge(block.T, first)
                mine.merge(block, begin)
            yield rows, mine.values, mine.columns


def side(embeddings: Tensor) -> int:
    """Of a square tile, within an eighth of the memory there is."""
    if embeddings.is_cuda:
        free = torch.cuda.mem_get_info(embeddings.device)[0]
    elif hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        free = 2**32
    return max(
        1, math.isqrt(min(TILE.get(embeddings.device.type, TILE["cpu"]), free // 8 // embeddings.element_size()))
    )


@dataclass(frozen=True)
class Best:
    """Of each row the k largest entries so far (n, k), and their columns; in no order."""

    values: Tensor
    columns: Tensor

    @classmethod
    def none(cls, n: int, k: int, like: Tensor) -> "Best":
        return cls(like.new_full((n, k), -math.inf), torch.zeros(n, k, dtype=torch.int32, device=like.device))

    def part(self, begin: int, end: int) -> "Best":
        return Best(self.values[begin:end], self.columns[begin:end])

    def merge(self, block: Tensor, begin: int) -> None:
        """Take in a block (n, width) whose first column is number `begin`."""
        n, width = block.shape
        k = self.values.shape[1]
        size = min(GROUP, width // k)
        if size < 2:  # too narrow for groups
            best, places = block.topk(min(k, width), dim=1, sorted=False)
            self.keep(best, places + begin)
            return
        m = width // size
        grouped = block[:, : m * size].unflatten(1, (size, m))  # group j is the columns j, j + m, j + 2m, ...
        if block.stride(0) < block.stride(1):  # a tile seen from its columns: reduced the way it lies in memory
            maxima = grouped.permute(1, 2, 0).amax(dim=0).T.contiguous()
        else:
            maxima = grouped.amax(dim=1)
        worst = self.values.amin(dim=1)
        if worst[0].isinf():  # the first block: the k-th largest maximum says that k entries are no smaller
            bound = maxima.topk(k, dim=1).values.amin(dim=1).nextafter(worst)
            worst = torch.maximum(worst, bound)
        row, group = (maxima > worst[:, None]).nonzero(as_tuple=True)
        offered = grouped[row, :, group]
        which, member = (offered > worst[row, None]).nonzero(as_tuple=True)
        row = row[which]
        offers = torch.bincount(row, minlength=n)
        most = int(offers.max())
        if most:
            # every row's offers, which come row by row, in a row of their own
            place = torch.arange(len(row), device=row.device) - (offers.cumsum(dim=0) - offers)[row]
            new = self.values.new_full((n, most), -math.inf)
            new[row, place] = offered[which, member]
            at = torch.zeros_like(new, dtype=torch.long)
            at[row, place] = member * m + group[which] + begin
            self.keep(new, at)
        if m * size < width:  # the columns that no group has
            left = torch.arange(m * size, width, device=block.device)
            self.keep(block[:, m * size :], (left + begin).expand(n, -1))

    def keep(self, values: Tensor, columns: Tensor) -> None:
        """The k largest of what there was and of these."""
        joined = torch.cat([self.values, values], dim=1)
        best, places = joined.topk(self.values.shape[1], dim=1, sorted=False)
        self.columns.copy_(torch.cat([self.columns, columns.int()], dim=1).gather(1, places))
        self.values.copy_(best)


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
