"""Lifted structure compares every positive pair with all negatives of both its samples."""

from typing import Annotated

import torch
from torch import Tensor

from losses.base import Loss, Positive, Range, distances, log_sum_exp_of_others


class LiftedStructure(Loss):
    """Smooth upper bound of the lifted structured loss (Song et al., eq. 4, number unchecked).

    L = 1 / (2 |P|) sum over positive pairs (i, j) of [ J_ij ]+^2,
    J_ij = log( sum over k in N_i of exp(margin - D_ik) + sum over l in N_j of exp(margin - D_jl) ) + D_ij,
    D the Euclidean distance, not squared, of raw embeddings; N_i the batch's samples of other classes. The sums are
    taken in log space. A batch of one class has no negatives and gives 0. The paper's batches are random positive pairs
    with mined negatives; here all pairs of the batch count, as in its released code.

    pytorch-metric-learning's LiftedStructureLoss (2.x) is the same formula on unit-length embeddings; with
    LpDistance(normalize_embeddings=False) it gives the same value.
    """

    title = "Lifted Structure"
    cite = "Song et al., CVPR 2016"
    family = "pair"
    bibtex = """
    @inproceedings{song2016lifted,
      author = {Song, Hyun Oh and Xiang, Yu and Jegelka, Stefanie and Savarese, Silvio},
      title = {Deep Metric Learning via Lifted Structured Feature Embedding},
      booktitle = {IEEE Conference on Computer Vision and Pattern Recognition (CVPR)},
      year = {2016},
    }
    """
    space = {"margin": Range(0.2, 5.0, log=True)}

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        margin: Annotated[Positive, "by how much negatives should be farther than positives"] = 1.0,
    ) -> None:
        super().__init__(num_classes, dim)
        self.margin = margin

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        D = distances(embeddings)
        same = labels[:, None] == labels
        pairs = same & ~same.all(dim=1, keepdim=True)
        pairs.fill_diagonal_(False)
        # The sum over the negatives of both samples needs one number per sample, not a tensor of pairs x negatives.
        negatives = self.margin + log_sum_exp_of_others(-D, same)
        lifted = torch.logaddexp(negatives[:, None], negatives) + D
        return lifted.masked_fill(~pairs, 0).relu().square().sum() / (2 * pairs.sum().clamp_min(1))
