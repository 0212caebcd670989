"""The contrastive loss pulls positives together and pushes negatives beyond a margin."""

from typing import Annotated

import torch
from torch import Tensor

from losses.base import Loss, Positive, Range, distances, unit


class Contrastive(Loss):
    """Contrastive loss over all pairs of the batch (Hadsell et al., eq. 4, number unchecked).

    L = mean over pairs i < j of  1/2 D^2 if of one class,  1/2 ([ margin - D ]+)^2 if not,
    D the Euclidean distance, not squared, of unit-length embeddings. The paper sums over its pairs and does not
    normalise the embeddings; the mean over all pairs, positive and negative, is that sum times a constant. The paper
    gives no margin for images; 1 is the usual one. A single image gives 0.

    pytorch-metric-learning's ContrastiveLoss (2.x) squares neither term, D + [margin - D]+. It averages positives and
    negatives separately, each over the pairs whose term is not 0.
    """

    title = "Contrastive"
    cite = "Hadsell et al., CVPR 2006"
    family = "pair"
    bibtex = """
    @inproceedings{hadsell2006dimensionality,
      author = {Hadsell, Raia and Chopra, Sumit and LeCun, Yann},
      title = {Dimensionality Reduction by Learning an Invariant Mapping},
      booktitle = {IEEE Computer Society Conference on Computer Vision and Pattern Recognition (CVPR)},
      year = {2006},
    }
    """
    space = {"margin": Range(0.2, 1.4)}

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        margin: Annotated[Positive, "distance beyond which two images of different classes do not matter"] = 1.0,
    ) -> None:
        super().__init__(num_classes, dim)
        self.margin = margin

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        D = distances(unit(embeddings))
        n = len(labels)
        same = labels[:, None] == labels
        off = torch.where(same, D, (self.margin - D).relu())  # the diagonal is 0, and each pair occurs twice
        return off.square().sum() / (2 * max(n * (n - 1), 1))
