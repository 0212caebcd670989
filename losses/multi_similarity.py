"""The multi-similarity loss mines pairs and weights them by three similarities."""

from typing import Annotated

import torch
from torch import Tensor

from losses.base import Limit, Loss, Positive, Range, gram, log_one_plus_sum, unit


class MultiSimilarity(Loss):
    """Log-sum-exp over mined positives and negatives of each anchor (Wang et al., section 4, eq. 11, 12 and 15,
    numbers unchecked).

    L = mean over anchors i of  1/alpha log(1 + sum over p of e^(-alpha (S_ip - base)))
                              + 1/beta  log(1 + sum over n of e^( beta (S_in - base))),   S the cosine similarity,

    over the negatives n with S_in + epsilon > the smallest S_ip and the positives p with S_ip - epsilon < the largest
    S_in. So an anchor has no pairs if it has no positives or no negatives, or if all its positives are more similar
    than its negatives by epsilon. It then adds 0 and stays in the mean.

    `base` is the paper's lambda: 1 in its text, 0.5 in the released code, in pytorch-metric-learning and here. beta is
    50 in the paper and 40 in the released code, which also drops positives with S > 1 - 1e-5.
    pytorch-metric-learning's MultiSimilarityLoss with MultiSimilarityMiner (2.x) is the same.
    """

    title = "Multi-Similarity"
    cite = "Wang et al., CVPR 2019"
    family = "pair"
    bibtex = """
    @inproceedings{wang2019multi,
      author = {Wang, Xun and Han, Xintong and Huang, Weilin and Dong, Dengke and Scott, Matthew R.},
      title = {Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning},
      booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)},
      year = {2019},
    }
    """
    space = {
        "alpha": Range(0.01, 20.0, log=True),
        "beta": Range(10.0, 200.0, log=True),
        "base": Range(0.0, 1.0),
        "epsilon": Range(0.02, 1.0, log=True),
    }

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        alpha: Annotated[Positive, "sharpness of the sum over positives"] = 2.0,
        beta: Annotated[Positive, "sharpness of the sum over negatives"] = 50.0,
        base: Annotated[float, Limit(least=-1), "cosine that parts positives from negatives, the paper's lambda"] = 0.5,
        epsilon: Annotated[
            float, Limit(least=0), "slack of the mining: how far pairs that are right already still count"
        ] = 0.1,
    ) -> None:
        super().__init__(num_classes, dim)
        self.alpha = alpha
        self.beta = beta
        self.base = base
        self.epsilon = epsilon

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        S = gram(unit(embeddings))
        same = labels[:, None] == labels
        pairs = same.clone().fill_diagonal_(False)
        with torch.no_grad():
            least = S.masked_fill(~pairs, torch.inf).amin(dim=1, keepdim=True)
            largest = S.masked_fill(same, -torch.inf).amax(dim=1, keepdim=True)
            # conditions say what is left out: no comparison with a NaN is true, so a NaN stays in
            positives = pairs & ~(S - self.epsilon >= largest)
            negatives = ~same & ~(S + self.epsilon <= least)
        pull = log_one_plus_sum(self.alpha * (self.base - S), positives) / self.alpha
        push = log_one_plus_sum(self.beta * (S - self.base), negatives) / self.beta
        return (pull + push).mean()
