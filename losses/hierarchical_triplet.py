"""The hierarchical triplet loss: margins and batches from a tree of the classes."""

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from losses.base import Count, Limit, Loss, Planned, Range, View, squared_distances, unit

FARTHEST = 4.0  # the largest squared distance of two unit vectors
TILE = 1024  # classes whose distances to all others are computed at once


class HierarchicalTriplet(Loss):
    """All triplets of a batch, with margins from a tree of the training classes (Ge et al.; no code was released).

    L = 1/(2Z) sum over triplets of [ d2(a, p) - d2(a, n) + alpha ]+,  alpha = beta + d_H(y_a, y_n) - s(y_a),
    d2 the squared distance of unit-length embeddings, Z the number of triplets.

    Before each epoch all training images are embedded. d(p, q) is the mean squared distance of images of two classes,
    s(c) that of two images of a class, d_0 the mean of s. At level l = 0..levels of the tree classes closer than
    d_l = d_0 + l (4 - d_0) / levels are one node; d_H(p, q) is d_l of the first level at which p and q are. A batch is
    made of random classes, each with its closest ones by d, `neighbours` classes in all.

    Our choices, where summaries of the paper leave it open: d2 is squared, as the margins are; nodes merge transitively
    (single linkage); Z counts all triplets; a class that would come twice in a batch makes room for another one; the
    tree is made anew before every epoch, the first one of the network as it starts, without a first training by an
    ordinary triplet loss; classes of one image have s = d_0. A loss that has no tree yet has alpha = beta. The form and
    beta are from summaries; 16 levels and 5 neighbours are general knowledge. Of the dimension sources say 128 or 512;
    here it is that of the other losses.
    """

    title = "Hierarchical Triplet"
    cite = "Ge et al., ECCV 2018"
    family = "pair"
    bibtex = """
    @inproceedings{ge2018hierarchical,
      author = {Ge, Weifeng and Huang, Weilin and Dong, Dengke and Scott, Matthew R.},
      title = {Deep Metric Learning with Hierarchical Triplet Loss},
      booktitle = {European Conference on Computer Vision (ECCV)},
      year = {2018},
    }
    """
    space = {"beta": Range(0.02, 0.5, log=True)}
    extras = "Its own batches and margins, from a tree of the classes; it embeds the training images before each epoch."
    place: Tensor
    heights: Tensor
    spread: Tensor

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        beta: Annotated[float, Limit(least=0), "the constant part of the margin"] = 0.1,
        levels: Annotated[int, Limit(least=1), "levels of the tree above the classes"] = 16,
        neighbours: Annotated[Count, "close classes that come into a batch together, the first one included"] = 5,
    ) -> None:
        super().__init__(num_classes, dim)
        self.beta, self.levels, self.neighbours = beta, levels, max(neighbours, 1)
        # The tree: classes in an order in which any node is a run of neighbours, and the height at which each joins
        # those before it. Empty: there is none yet.
        self.register_buffer("place", torch.empty(0, dtype=torch.long))  # (classes,) of a class in that order
        self.register_buffer("heights", torch.empty(0))  # (classes,) in that order; the first has no meaning
        self.register_buffer("spread", torch.empty(0))  # (classes,) s

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        D = squared_distances(unit(embeddings))
        same = labels[:, None] == labels
        positive = same.clone().fill_diagonal_(False) & ~same.all(dim=1, keepdim=True)
        near = D - self.margins(labels).to(D.dtype)  # a triplet's term is d2(a, p) - near(a, n), where that is above 0
        # the sum over triplets without a tensor of triplets: as in losses/triplet.py
        far, close = D.detach().masked_fill(~positive, -torch.inf), near.detach()
        pull = torch.searchsorted(close.masked_fill(same, torch.inf).sort(dim=1).values, far)
        push = len(labels) - torch.searchsorted(far.sort(dim=1).values, close, right=True)
        of_pairs = (pull * D).masked_fill(~positive, 0).sum(dim=1)
        of_negatives = (push * near).masked_fill(same, 0).sum(dim=1)
        triplets = (positive.sum(dim=1) * (~same).sum(dim=1)).sum()
        return (of_pairs - of_negatives).relu().sum() / (2 * triplets.clamp_min(1))

    def margins(self, labels: Tensor) -> Tensor:
        """alpha of each anchor (row) and negative (column); on images of one class it has no meaning."""
        if not len(self.place):
            return torch.full((len(labels), len(labels)), self.beta, device=labels.device)
        return self.beta + self.tree_distances(labels) - self.spread[labels][:, None]

    def tree_distances(self, labels: Tensor) -> Tensor:
        """d_H of these classes (n,), as (n, n): the level above the largest height between their places."""
        classes, number = labels.unique(return_inverse=True)
        places, order = self.place[classes].sort()
        linkage = torch.zeros(len(classes), len(classes), dtype=self.heights.dtype, device=labels.device)
        for row in range(1, len(classes)):  # the largest height on the way from the class before, then further back
            step = self.heights[places[row - 1] + 1 : places[row] + 1].max()
            linkage[row, :row] = torch.maximum(linkage[row - 1, :row], step)
        back = order.argsort()[number]
        return self.level((linkage + linkage.T)[back][:, back])

    def level(self, linkage: Tensor) -> Tensor:
        """d_l of the first level l with d_l above a linkage distance."""
        d0 = self.spread.mean()
        step = (FARTHEST - d0) / self.levels
        number = (((linkage - d0) / step).floor() + 1).clamp(0, self.levels)
        return d0 + number * step

    def plan(self, epoch: int, view: View) -> Sequence[Planned]:
        x = unit(view.embed().double())
        labels = view.labels.to(x.device)
        means, spread = summary(x, labels)
        place, heights = linked(means)
        self.place, self.heights, self.spread = place, heights.float(), spread.float()
        near = closest(means, min(self.neighbours, view.classes) - 1).cpu()
        images = [(view.labels == label).nonzero().squeeze(1) for label in range(len(means))]
        turns: list[int] = []
        planned = []
        for _ in range(view.steps):
            chosen: dict[int, None] = {}
            while len(chosen) < min(view.classes, len(means)):
                turns = turns or torch.randperm(len(means), generator=view.generator).tolist()
                first = turns.pop()
                if first not in chosen:
                    chosen |= dict.fromkeys([first, *near[first].tolist()])
            some = list(chosen)[: view.classes]
            planned.append(Planned(torch.cat([draw(images[label], view) for label in some])))
        return planned


def draw(images: Tensor, view: View) -> Tensor:
    """Images of a class for a batch."""
    return images[torch.randperm(len(images), generator=view.generator)[: view.samples]]


def summary(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The mean (classes, d) of each class, and s. For unit vectors d(p, q) = 2 - 2 mu_p . mu_q, and
    s(c) = 2 n (1 - |mu|^2) / (n - 1)."""
    counts = labels.bincount().to(x.dtype)
    means = torch.zeros(len(counts), x.shape[1], dtype=x.dtype, device=x.device).index_add_(0, labels, x)
    means = means / counts.clamp_min(1)[:, None]
    spread = 2 * counts * (1 - means.square().sum(dim=1)).clamp_min(0) / (counts - 1).clamp_min(1)
    several = counts > 1
    return means, torch.where(several, spread, spread[several].mean() if several.any() else 0.0)


def class_distances(some: Tensor, means: Tensor) -> Tensor:
    """d of some classes and of all, given their means."""
    return 2 - 2 * some @ means.T


def closest(means: Tensor, count: int) -> Tensor:
    """The `count` closest other classes of each class, (classes, count)."""
    count = min(count, len(means) - 1)
    rows = []
    for start in range(0, len(means), TILE):
        d = class_distances(means[start : start + TILE], means)
        own = torch.arange(len(d), device=d.device)
        d[own, start + own] = torch.inf
        rows.append(d.topk(count, largest=False).indices)
    return torch.cat(rows)


def linked(means: Tensor) -> tuple[Tensor, Tensor]:
    """Single linkage by Prim's algorithm, in the memory of a few rows: the place of each class in the order in which
    the tree grows, and the length of the edge by which each one joined. The linkage distance of two classes is the
    longest edge between their places."""
    count = len(means)
    place = torch.zeros(count, dtype=torch.long, device=means.device)
    heights = torch.zeros(count, dtype=means.dtype, device=means.device)
    reach = torch.full((count,), torch.inf, dtype=means.dtype, device=means.device)
    outside = torch.ones(count, dtype=torch.bool, device=means.device)
    latest = 0
    for step in range(count):
        place[latest], outside[latest] = step, False
        heights[step] = reach[latest] if step else 0
        reach = torch.minimum(reach, class_distances(means[latest : latest + 1], means)[0])
        latest = int(reach.masked_fill(~outside, torch.inf).argmin())
    return place, heights
