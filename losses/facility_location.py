"""Facility location compares the best wrong clustering of the batch with the right one."""

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from losses.base import Count, Loss, Positive, Range, distances, unit


class FacilityLocation(Loss):
    """Structured clustering loss (Song et al., section 3, with Algorithms 1 and 2, numbers unchecked).

    L = [ max over S of { F(X, S) + gamma (1 - NMI(S, y)) } - F(X, y) ]+,  |S| the number of classes in the batch,
    F(X, S) = - sum over samples of the distance to the nearest medoid in S,
    F(X, y) = - sum over samples of the distance to the medoid of their class, the member with the smallest sum.
    Euclidean distances, not squared, of unit-length embeddings; sums over the batch, not means. NMI is normalised by
    the geometric mean of the entropies. S is found greedily (Algorithm 1), then refined (Algorithm 2) in at most
    `swaps` passes: each medoid is replaced by the member of its cluster with the largest F of the cluster plus
    gamma (1 - NMI). S has no gradient and may miss the maximum; between tied candidates the order of the batch decides.

    TensorFlow's cluster_loss has the same algorithm: there `swaps` is 5, gamma has no default, embeddings are not
    normalised, and NMI uses scikit-learn's default average. Chainer's usual version squares the distances. The paper
    lets gamma decay during training from a value it does not give; here it is constant. pytorch-metric-learning does
    not have this loss.
    """

    title = "Facility Location"
    cite = "Song et al., CVPR 2017"
    family = "pair"
    bibtex = """
    @inproceedings{song2017facility,
      author = {Song, Hyun Oh and Jegelka, Stefanie and Rathod, Vivek and Murphy, Kevin},
      title = {Deep Metric Learning via Facility Location},
      booktitle = {IEEE Conference on Computer Vision and Pattern Recognition (CVPR)},
      year = {2017},
    }
    """
    space = {"gamma": Range(0.1, 30.0, log=True)}

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        gamma: Annotated[Positive, "weight of the difference between clusters and classes, 1 - NMI"] = 1.0,
        swaps: Annotated[Count, "passes that refine the medoids"] = 5,
    ) -> None:
        super().__init__(num_classes, dim)
        self.gamma = gamma
        self.swaps = swaps

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        x = unit(embeddings)
        y = labels.unique(return_inverse=True)[1]
        with torch.no_grad():
            D = distances(x)
            S = swapped(greedy(D, y, self.gamma), D, y, self.gamma, self.swaps)
            margin = self.gamma * disagreement(D, y, S[:-1], S[-1:])[0]
        medoids = S[assign(D, S)[1]], class_medoids(D, y)
        found, right = (torch.linalg.vector_norm(x - x[medoid], dim=1).sum() for medoid in medoids)
        return (margin - found + right).relu()


def greedy(D: Tensor, y: Tensor, gamma: float) -> Tensor:
    """Algorithm 1: adds one medoid per class, each the best given those before it."""
    S = y[:0]
    free = torch.ones_like(y, dtype=torch.bool)
    for _ in range(int(y.max()) + 1):
        candidates = free.nonzero()[:, 0]
        score = -torch.minimum(D[candidates], assign(D, S)[0]).sum(dim=1)
        best = most_violating(D, y, S, candidates, score, gamma)
        free[best] = False
        S = torch.cat([S, best])
    return S


def swapped(S: Tensor, D: Tensor, y: Tensor, gamma: float, passes: int) -> Tensor:
    """Algorithm 2: swaps medoids within the clusters of S, until a pass changes nothing."""
    for _ in range(passes):
        before, clusters = S, assign(D, S)[1]
        for k in range(len(S)):
            members = (clusters == k).nonzero()[:, 0]
            if len(members) > 1:
                score = -D[members][:, members].sum(dim=1)
                rest, after = S[:k], S[k + 1 :]
                S = torch.cat([rest, most_violating(D, y, torch.cat([rest, after]), members, score, gamma), after])
        if torch.equal(S, before):
            break
    return S


def most_violating(D: Tensor, y: Tensor, S: Tensor, candidates: Tensor, score: Tensor, gamma: float) -> Tensor:
    """The candidate c, as (1,), with the largest score + gamma (1 - NMI(S with c, y))."""
    hopeful = ~(score < score.max() - gamma)  # the others lose even if their NMI is 0
    candidates, score = candidates[hopeful], score[hopeful]
    return candidates[(score + gamma * disagreement(D, y, S, candidates)).argmax(dim=0, keepdim=True)]


def assign(D: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """The distance (n,) to the nearest medoid of S (k,), and its position in S. A medoid belongs to its own cluster."""
    if not len(S):
        return torch.full_like(D[0], torch.inf), torch.zeros(len(D), dtype=S.dtype, device=S.device)
    nearest, clusters = D[S].min(dim=0)
    return nearest, clusters.index_copy(0, S, torch.arange(len(S), device=S.device))


def disagreement(D: Tensor, y: Tensor, S: Tensor, candidates: Tensor) -> Tensor:
    """1 - NMI of the labels y (n,), 0..classes-1, and the clusters of S plus one candidate, for each candidate (m,).

    In the table clusters x classes of S, a candidate takes samples out of the cells and adds a row of its own.
    """
    classes, n = int(y.max()) + 1, len(y)
    nearest, clusters = assign(D, S)
    moved = D[candidates] < nearest
    moved[torch.arange(len(candidates), device=D.device), candidates] = True
    taken = moved.to(D.dtype)
    cells = (clusters * classes + y).unique(return_inverse=True)[1]
    cell, row, column = (F.one_hot(of).to(D.dtype) for of in (cells, clusters, y))
    joint = n_log_n(cell.sum(dim=0) - taken @ cell) + n_log_n(taken @ column)
    sizes = n_log_n(row.sum(dim=0) - taken @ row) + n_log_n(taken.sum(dim=1, keepdim=True))
    entropies, of_y, both = (math.log(n) - total / n for total in (sizes, n_log_n(column.sum(dim=0)), joint))
    trivial = entropies < 1e-5  # a single cluster, up to rounding
    nmi = (entropies + of_y - both) / (torch.where(trivial, 1, entropies) * of_y).sqrt()
    return 1 - torch.where(trivial, float(classes == 1), nmi.clamp(0, 1))


def n_log_n(counts: Tensor) -> Tensor:
    return torch.xlogy(counts, counts).sum(dim=-1)


def class_medoids(D: Tensor, y: Tensor) -> Tensor:
    """For each sample (n,), the member of its class with the smallest sum of distances to the class."""
    order = D.masked_fill(y[:, None] != y, 0).sum(dim=1).argsort(stable=True)
    first = torch.full_like(y, len(y)).scatter_reduce(0, y, order.argsort(), "amin")
    return order[first[y]]
