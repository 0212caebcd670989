"""Triplet loss with semi-hard negatives: FaceNet."""

import torch
from torch import Tensor

from losses.base import Loss, Positive, Range, squared_distances, unit


class Triplet(Loss):
    """Semi-hard triplets within the batch (Schroff et al., sections 3.1 and 3.2).

    L = mean over ordered pairs (a, p) of one class of [ d2(a, p) - d2(a, n) + margin ]+,  unit-length embeddings,
    d2 the squared Euclidean distance. n is the closest sample of another class with d2(a, n) > d2(a, p). Where there
    is none the paper is silent; here, as in TensorFlow's version, it is the farthest one, and the paper's sum is a
    mean. Pairs without any negative leave the mean; a batch without triplets gives 0.

    pytorch-metric-learning's TripletMarginLoss (2.x) takes the distance itself, margin 0.05, averages over the
    triplets with a loss only, and its semi-hard miner returns every semi-hard triplet.
    """

    title = "Triplet"
    cite = "Schroff et al., CVPR 2015"
    space = {"margin": Range(0.02, 0.5, log=True)}

    def __init__(self, num_classes: int, dim: int, *, margin: Positive = 0.2) -> None:
        super().__init__(num_classes, dim)
        self.margin = margin

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        x = unit(embeddings)
        distances = squared_distances(x, x)
        same = labels[:, None] == labels
        negatives = (~same).sum(dim=1, keepdim=True)
        pairs = same & (negatives > 0)
        pairs.fill_diagonal_(False)
        # Sorted along each row, negatives come first (positives at infinity). The first one farther than p is the
        # semi-hard negative; past the last negative it is the last, the farthest.
        ordered = distances.masked_fill(same, torch.inf).sort(dim=1).values
        first = torch.searchsorted(ordered.detach(), distances.detach(), right=True)
        hardest = ordered.gather(1, torch.minimum(first, (negatives - 1).clamp_min(0)))
        violations = (distances - hardest + self.margin).masked_fill(~pairs, 0).relu()
        return violations.sum() / pairs.sum().clamp_min(1)
