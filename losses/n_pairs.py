"""N-pairs compares one positive with many negatives at once."""

from typing import Annotated

import torch.nn.functional as F
from torch import Tensor

from losses.base import Limit, Loss, Range, gram, log_sum_exp_of_others


class NPairs(Loss):
    """Multi-class N-pair loss (Sohn, section 3.1 and the penalty of section 3.2) on balanced batches.

    L = mean over ordered pairs (a, p) of one class of log( 1 + sum over n of exp(x_a.x_n - x_a.x_p) )
        + l2 * mean over the batch of |x|^2,  raw embeddings.

    Every image is an anchor, and every other image of its class is its positive in turn. The negatives n are all images
    of other classes, as in the paper's (N+1)-tuplet loss and in Wang et al.'s batch form of it. The paper's N-pair-mc
    batch is the special case of one pair per class with only the other pairs' positives as negatives: of the 54 images
    of a 6 x 9 batch it would use 12, and which ones would depend on their order. A batch without pairs or without
    negatives gives the penalty alone.

    0.02 is a common weight of the penalty; public versions average the penalty over different sets, which amounts to
    0.001 to 0.04 here. TensorFlow's npairs_loss is N-pair-mc with a penalty that amounts to l2 = 0.001; given several
    pairs of a class it takes soft targets, which keep the other positives in the denominator.
    pytorch-metric-learning's NPairsLoss (2.x) takes the first pair of each class, dot products of unit-length
    embeddings and no penalty. Its NTXentLoss with temperature 1 and dot products of raw embeddings is this loss without
    the penalty.
    """

    title = "N-Pairs"
    cite = "Sohn, NIPS 2016"
    family = "pair"
    bibtex = """
    @inproceedings{sohn2016npair,
      author = {Sohn, Kihyuk},
      title = {Improved Deep Metric Learning with Multi-class {N}-pair Loss Objective},
      booktitle = {Advances in Neural Information Processing Systems (NIPS)},
      year = {2016},
    }
    """
    space = {"l2": Range(1e-4, 0.1, log=True)}

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        l2: Annotated[float, Limit(least=0), "weight of the squared length of the embeddings"] = 0.02,
    ) -> None:
        super().__init__(num_classes, dim)
        self.l2 = l2

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        same = labels[:, None] == labels
        return tuplets(gram(embeddings), same) + self.l2 * embeddings.square().sum(dim=1).mean()


def tuplets(similarities: Tensor, same: Tensor) -> Tensor:
    """Mean over ordered pairs (a, p) of log(1 + sum over n of exp(s_an - s_ap)). Both (n, n); `same`: of one class.

    The sum over the negatives depends on the anchor alone, so no tensor of pairs x negatives is needed.
    """
    a, p = positives(same)
    exponents = log_sum_exp_of_others(similarities, same)[a] - similarities[a, p]
    return F.softplus(exponents, threshold=40).sum() / max(len(a), 1)


def positives(same: Tensor) -> tuple[Tensor, Tensor]:
    """Anchors and positives: the ordered pairs of distinct samples of one class."""
    a, p = same.nonzero(as_tuple=True)
    distinct = a != p
    return a[distinct], p[distinct]
