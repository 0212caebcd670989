"""The nearest images of queries that have more nearly equal neighbours than were looked at: a network has collapsed.

Design notes. Such queries may be all there are, so they are ranked in chunks.
- Images with the very same embedding are compared once. A network that maps all images to one point costs nothing.
- Matrix products in float64 leave few candidates. These are ranked by the distances that define the ranking: sums of
  squared differences in float64, equal ones by index.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from harness.evaluation.neighbours import Tiles

SPARE = 8  # neighbours ranked beyond those that count, so that a near tie at the edge is seen whole
BLOCK = 2**21  # float64 numbers per block: 16 MB


@dataclass(frozen=True)
class Distinct:
    """The different rows of a matrix, and the rows that are equal to each of them."""

    first: Tensor  # (u,) the first row of each kind
    begin: Tensor  # (u,) where its rows begin in `members`
    sizes: Tensor  # (u,)
    members: Tensor  # (n,) kind by kind, in the order of their index

    def rows_of(self, kinds: Tensor) -> Tensor:
        """The rows of consecutive kinds, kind by kind."""
        begin = int(self.begin[kinds[0]])
        return self.members[begin : begin + int(self.sizes[kinds].sum())]

    @classmethod
    def of(cls, matrix: Tensor) -> "Distinct":
        kinds, kind = matrix.unique(dim=0, return_inverse=True)
        sizes = kind.bincount(minlength=len(kinds))
        begin = sizes.cumsum(dim=0) - sizes
        members = kind.argsort(stable=True)
        return cls(members[begin], begin, sizes, members)


@dataclass(frozen=True)
class TieBreaker:
    """Ranks a query among the whole gallery: nearest first in float64, equal ones by index."""

    tiles: Tiles
    depth: int  # neighbours that count

    @property
    def length(self) -> int:
        """Of a ranking in which the query itself may occur."""
        return self.depth + int(self.tiles.mutual)

    @cached_property
    def kinds(self) -> Distinct:
        return Distinct.of(self.tiles.gallery)

    def rank(self, rows: Tensor) -> Tensor:
        """The nearest images (r, depth) of these queries, columns of the gallery; a query itself is left out."""
        queries = Distinct.of(self.tiles.queries[rows])
        ranked = rows.new_empty(len(rows), self.length)
        for kinds in torch.arange(len(queries.first), device=rows.device).split(max(1, BLOCK // len(self.kinds.first))):
            chunk = self.rank_chunk(rows[queries.first[kinds]])
            ranked[queries.rows_of(kinds)] = chunk.repeat_interleave(queries.sizes[kinds], dim=0)
        if not self.tiles.mutual:
            return ranked
        itself = (ranked == rows[:, None]).cumsum(dim=1)[:, : self.depth] > 0  # and what comes behind it
        return torch.where(itself, ranked[:, 1:], ranked[:, : self.depth])

    def rank_chunk(self, rows: Tensor) -> Tensor:
        """The `length` nearest images (r, length) of these queries, which may be among them."""
        values, near, doubt = self.nearest_kinds(rows)
        ranked = self.members_of(near)
        unclear = (values.diff(dim=1) <= doubt).any(dim=1).nonzero().flatten()
        per_query = near.shape[1] * max(self.tiles.gallery.shape[1], self.length)
        for some in unclear.split(max(1, BLOCK // per_query)) if len(unclear) else ():
            ranked[some] = self.rank_candidates(self.tiles.queries[rows[some]], near[some])
        return ranked

    def nearest_kinds(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The kinds (r, width) that may be among the nearest, half their squared distances, and what these may be wrong
        by (r, 1): behind the last comes a gap that no rounding error closes."""
        halves = self.half_squares(rows)
        total = halves.shape[1]
        width = min(self.length + SPARE, total)
        while True:
            values, near = halves.topk(width, dim=1, largest=False)
            doubt = self.tiles.doubt(rows, -values[:, -1], halves.dtype)
            if width == total or bool((values[:, -1:] - values[:, self.length - 1, None] > doubt).all()):
                return values, near, doubt
            width = min(4 * width, total)

    def half_squares(self, rows: Tensor) -> Tensor:
        """Half the squared distances (r, u) of these queries and the different images."""
        middle = self.tiles.middle.double()
        centred = self.tiles.queries[rows].double() - middle
        rest = centred.square().sum(dim=1, keepdim=True) / 2
        parts = []
        for part in self.kinds.first.split(max(1, BLOCK // len(middle))):
            images = self.tiles.gallery[part].double() - middle
            parts.append(torch.addmm(images.square().sum(dim=1) / 2, centred, images.T, alpha=-1) + rest)
        return torch.cat(parts, dim=1)

    def members_of(self, kinds: Tensor) -> Tensor:
        """The first `length` images (r, length) of these kinds (r, width), one kind after the other."""
        ends = self.kinds.sizes[kinds].cumsum(dim=1)
        places = torch.arange(self.length, device=kinds.device).expand(len(kinds), -1).contiguous()
        number = torch.searchsorted(ends, places, right=True)
        kind = kinds.gather(1, number)
        offset = places - (ends.gather(1, number) - self.kinds.sizes[kind])
        return self.kinds.members[self.kinds.begin[kind] + offset]

    def rank_candidates(self, queries: Tensor, kinds: Tensor) -> Tensor:
        """The `length` nearest images of queries (c, d), all of which are of these kinds (c, width)."""
        images = self.tiles.gallery[self.kinds.first[kinds]]
        distances = (images.double() - queries.double()[:, None]).square().sum(dim=2)
        sizes = self.kinds.sizes[kinds]
        # of each kind as many as there are, at most `length`
        number = torch.arange(min(int(sizes.max()), self.length), device=kinds.device)
        missing = (number >= sizes[:, :, None]).flatten(1)
        places = (self.kinds.begin[kinds][:, :, None] + number).clamp_max(len(self.kinds.members) - 1)
        candidates, order = self.kinds.members[places].flatten(1).sort(dim=1)
        distances = distances[:, :, None].expand_as(places).flatten(1).masked_fill(missing, torch.inf)
        distances = distances.gather(1, order)
        return candidates.gather(1, distances.argsort(dim=1, stable=True)[:, : self.length])
