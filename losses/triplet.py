"""The triplet loss, on FaceNet's semi-hard negatives, on the hardest, or on all triplets."""

from typing import Annotated, Literal

import torch
from torch import Tensor

from losses.base import Loss, Positive, Range, squared_distances, unit


class Triplet(Loss):
    """Triplets within the batch (Schroff et al., sections 3.1 and 3.2; Hermans et al., arXiv 1703.07737).

    L = mean over triplets (a, p, n) of [ d2(a, p) - d2(a, n) + margin ]+,  unit-length embeddings, a and p of one
    class, n of another, d2 the squared Euclidean distance. Which triplets (`mining`):

    - "semihard", FaceNet: one for each ordered pair (a, p); n is the closest sample of another class with
      d2(a, n) > d2(a, p). The paper does not say what happens where there is none; here, as in TensorFlow's version,
      n is then the farthest sample of another class. The paper's sum is a mean here.
    - "hard", batch hard of Hermans et al. (eq. 5, number unchecked): one for each anchor, its farthest p and its
      closest n.
    - "all", batch all of Hermans et al. (eq. 6, number unchecked): every triplet, including those whose term is 0. They
      have a variant without those, and prefer the distance itself to its square; here all three use the square.

    Pairs and anchors without any triplet are not in the mean; a batch without triplets gives 0.

    pytorch-metric-learning's TripletMarginLoss (2.x) uses the distance itself and a margin of 0.05, and averages over
    the triplets whose term is not 0; its semi-hard miner returns every semi-hard triplet.
    """

    title = "Triplet"
    cite = "Schroff et al., CVPR 2015"
    family = "pair"
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
        margin: Annotated[Positive, "by how much the positive should be closer, in squared distance"] = 0.2,
        mining: Annotated[Literal["semihard", "hard", "all"], "which triplets of a batch count"] = "semihard",
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
        # Sorted along each row, negatives come first (positives are at infinity). The semi-hard negative is the first
        # one farther than p, or the last, the farthest, if there is none.
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
        """Needs no tensor of triplets: a triplet's term is not 0 if d2(a, n) < reach = d2(a, p) + margin. The sum over
        triplets is the sum of each reach times its number of closer negatives, minus the sum of each d2(a, n) times its
        number of farther reaches. These numbers are constant wherever the loss has a gradient.
        """
        reach = distances + self.margin
        farther, closer = reach.detach().masked_fill(~pairs, -torch.inf), distances.detach()
        pull = torch.searchsorted(closer.masked_fill(same, torch.inf).sort(dim=1).values, farther)
        push = len(same) - torch.searchsorted(farther.sort(dim=1).values, closer, right=True)
        of_pairs = (pull * reach).masked_fill(~pairs, 0).sum(dim=1)
        of_negatives = (push * distances).masked_fill(same, 0).sum(dim=1)
        triplets = (pairs.sum(dim=1) * (~same).sum(dim=1)).sum()
        return (of_pairs - of_negatives).relu().sum() / triplets.clamp_min(1)
