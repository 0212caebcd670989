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
        queries, which = self.tiles.queries[rows].unique(dim=0, return_inverse=True)
        chunks = queries.split(max(1, BLOCK // len(self.kinds.first)))
        ranked = torch.cat([self.rank_chunk(chunk) for chunk in chunks])[which]
        if not self.tiles.mutual:
            return ranked
        itself = (ranked == rows[:, None]).cumsum(dim=1)[:, : self.depth] > 0  # and what comes behind it
        return torch.where(itself, ranked[:, 1:], ranked[:, : self.depth])

    def rank_chunk(self, queries: Tensor) -> Tensor:
        """The `length` nearest images (c, length) of these queries (c, d)."""
        products = self.products(queries)
        near, width = self.nearest_kinds(products)
        block = max(1, BLOCK // (width * max(queries.shape[1], int(self.kinds.sizes.clamp_max(self.length).max()))))
        return torch.cat(
            [
                self.rank_candidates(some, kinds)
                for some, kinds in zip(queries.split(block), near.split(block), strict=True)
            ]
        )

    def products(self, queries: Tensor) -> Tensor:
        """Half the squared distances (c, u) of these queries and the different images, less what a row shares."""
        middle = self.tiles.middle.double()
        centred = queries.double() - middle
        parts = []
        for part in self.kinds.first.split(max(1, BLOCK // queries.shape[1])):
            images = self.tiles.gallery[part].double() - middle
            parts.append(torch.addmm(images.square().sum(dim=1) / 2, centred, images.T, alpha=-1))
        return torch.cat(parts, dim=1)

    def nearest_kinds(self, products: Tensor) -> tuple[Tensor, int]:
        """The kinds (c, width) that may be among the nearest, and how many that is: behind them comes a gap that no
        rounding error closes."""
        total = products.shape[1]
        doubt = self.tiles.doubt_in(torch.float64)
        width = min(self.length + SPARE, total)
        while True:
            values, near = products.topk(width, dim=1, largest=False)
            if width == total or bool((values[:, -1] - values[:, self.length - 1] > doubt).all()):
                return near, width
            width = min(4 * width, total)

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
