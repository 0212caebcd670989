"""Triplet loss: FaceNet's semi-hard negatives, batch-hard, or all triplets."""

from typing import Literal

import torch
from torch import Tensor

from losses.base import Loss, Positive, Range, squared_distances, unit


class Triplet(Loss):
    """Triplets within the batch (Schroff et al., sections 3.1 and 3.2; Hermans et al., arXiv 1703.07737).

    L = mean over triplets (a, p, n) of [ d2(a, p) - d2(a, n) + margin ]+,  unit-length embeddings, a and p of one
    class, n of another, d2 the squared Euclidean distance. Which triplets (`mining`):

    - "semihard", FaceNet: one for each ordered pair (a, p); n is the closest sample of another class with
      d2(a, n) > d2(a, p). Where there is none the paper is silent; here, as in TensorFlow's version, it is the farthest
      one, and the paper's sum is a mean.
    - "hard", Hermans et al., eq. 5 (batch hard): one for each anchor, its farthest p and its closest n.
    - "all", Hermans et al., eq. 6 (batch all): every one, also those without a loss. They count the triplets with a
      loss alone in a variant, and prefer the distance itself to its square; here it is the square in all three.

    Pairs and anchors without any triplet leave the mean; a batch without triplets gives 0.

    pytorch-metric-learning's TripletMarginLoss (2.x) takes the distance itself, margin 0.05, averages over the
    triplets with a loss only, and its semi-hard miner returns every semi-hard triplet.
    """

    title = "Triplet"
    cite = "Schroff et al., CVPR 2015"
    bibtex = """
    @inproceedings{schroff2015facenet,
      author = {Schroff, Florian and Kalenichenko, Dmitry and Philbin, James},
      title = {{FaceNet}: A Unified Embedding for Face Recognition and Clustering},
      booktitle = {IEEE Conference on Computer Vision and Pattern Recognition (CVPR)},
      year = {2015},
    }
    """
    space = {"margin": Range(0.02, 0.5, log=True)}

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        margin: Positive = 0.2,
        mining: Literal["semihard", "hard", "all"] = "semihard",
    ) -> None:
        super().__init__(num_classes, dim)
        self.margin = margin
        self.mining = mining

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        distances = squared_distances(unit(embeddings))
        same = labels[:, None] == labels
        negatives = (~same).sum(dim=1, keepdim=True)
        pairs = same & (negatives > 0)
        pairs.fill_diagonal_(False)
        if self.mining == "hard":
            return self.hard(distances, same, pairs)
        if self.mining == "all":
            return self.all(distances, same, pairs)
        # Sorted along each row, negatives come first (positives at infinity). The first one farther than p is the
        # semi-hard negative; past the last negative it is the last, the farthest.
        ordered = distances.masked_fill(same, torch.inf).sort(dim=1).values
        first = torch.searchsorted(ordered.detach(), distances.detach(), right=True)
        hardest = ordered.gather(1, torch.minimum(first, (negatives - 1).clamp_min(0)))
        violations = (distances - hardest + self.margin).masked_fill(~pairs, 0).relu()
        return violations.sum() / pairs.sum().clamp_min(1)

    def hard(self, distances: Tensor, same: Tensor, pairs: Tensor) -> Tensor:
        farthest = distances.masked_fill(~pairs, 0).amax(dim=1)
        closest = distances.masked_fill(same, torch.inf).amin(dim=1)
        anchors = pairs.any(dim=1)
        violations = (farthest - closest + self.margin).masked_fill(~anchors, 0).relu()
        return violations.sum() / anchors.sum().clamp_min(1)

    def all(self, distances: Tensor, same: Tensor, pairs: Tensor) -> Tensor:
        """Without a tensor of triplets: a triplet has a loss if d2(a, n) < reach = d2(a, p) + margin. The sum is then
        that of each reach times its number of closer negatives, less that of each d2(a, n) times its number of farther
        reaches, and the numbers are constant wherever the loss has a gradient.
        """
        reach = distances + self.margin
        farther, closer = reach.detach().masked_fill(~pairs, -torch.inf), distances.detach()
        pull = torch.searchsorted(closer.masked_fill(same, torch.inf).sort(dim=1).values, farther)
        push = len(same) - torch.searchsorted(farther.sort(dim=1).values, closer, right=True)
        of_pairs = (pull * reach).masked_fill(~pairs, 0).sum(dim=1)
        of_negatives = (push * distances).masked_fill(same, 0).sum(dim=1)
        triplets = (pairs.sum(dim=1) * (~same).sum(dim=1)).sum()
        return (of_pairs - of_negatives).relu().sum() / triplets.clamp_min(1)
