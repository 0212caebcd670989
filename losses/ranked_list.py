"""The ranked list loss keeps positives within a sphere and negatives beyond it by a margin."""

from typing import Annotated

import torch
from torch import Tensor

from losses.base import Limit, Loss, Positive, Range, distances, unit


class RankedList(Loss):
    """A sphere for each class instead of a point (Wang et al., section 3; balance and T_p as in TPAMI 2022).

    L = mean over queries i of (1 - balance) L_P + balance L_N,  d the Euclidean distance of unit-length embeddings,
    L_P = sum over p of w_ip (d_ip - (alpha - margin)) / sum over p of w_ip,   w_ip = e^(T_p (d_ip - (alpha - margin))),
    L_N = sum over n of w_in (alpha - d_in) / sum over n of w_in,              w_in = e^(T_n (alpha - d_in)),

    over the non-trivial samples only: p of the query's class with d > alpha - margin, n of another with d < alpha.
    A query without any adds 0 and stays in the mean. The weights are constants to the gradient, as in the released
    code. Here the gradient of a pair's distance has the length of its weight; there it has the length of its weight
    times its distance, as if distances were squared. `balance` is the paper's lambda; at 0.5 this is half the sum
    L_P + L_N of the conference paper.

    alpha = 1 + margin / 2 is the authors' simpler variant. The released code has alpha 1.4 and margin 0.2 for
    CUB-200-2011, weights the queries by their share of the sum of all w, and moves the query only; here both samples of
    a pair move. pytorch-metric-learning's RankedListLoss (2.x) has the same value except that it adds 1e-5 per sample
    to the sum of the weights and drops negatives at distance 0; its gradient also goes through the weights.
    """

    title = "Ranked List"
    cite = "Wang et al., CVPR 2019"
    family = "pair"
    bibtex = """
    @inproceedings{wang2019ranked,
      author = {Wang, Xinshao and Hua, Yang and Kodirov, Elyor and Hu, Guosheng and Garnier, Romain and Robertson, Neil M.},
      title = {Ranked List Loss for Deep Metric Learning},
      booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)},
      year = {2019},
    }
    """  # noqa: E501
    exact = {"T_n": 0.0}  # T_p is 0 by default
    space = {
        "alpha": Range(0.8, 1.5),
        "margin": Range(0.1, 0.8),
        "T_n": Range(0.5, 20.0, log=True),
        "balance": Range(0.2, 0.8),
    }

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        alpha: Annotated[Positive, "distance that negatives should keep"] = 1.2,
        margin: Annotated[Positive, "positives should be closer than alpha by this"] = 0.4,
        T_n: Annotated[float, Limit(least=0), "how much more the nearest negatives weigh"] = 10.0,
        T_p: Annotated[float, Limit(least=0), "how much more the farthest positives weigh"] = 0.0,
        balance: Annotated[float, Limit(least=0, most=1), "share of the negatives' part in the loss"] = 0.5,
    ) -> None:
        super().__init__(num_classes, dim)
        self.alpha = alpha
        self.margin = margin
        self.T_n = T_n
        self.T_p = T_p
        self.balance = balance

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        d = distances(unit(embeddings))
        same = labels[:, None] == labels
        positives = same.clone().fill_diagonal_(False)
        pull = weighted_mean(d - (self.alpha - self.margin), positives, self.T_p)
        push = weighted_mean(self.alpha - d, ~same, self.T_n)
        return ((1 - self.balance) * pull + self.balance * push).mean()


def weighted_mean(excess: Tensor, of: Tensor, T: float) -> Tensor:
    """Mean of the positive excesses among the true entries of each row, weighted by e^(T excess); 0 without any."""
    some = of & (excess > 0)
    odds = (T * excess.detach()).masked_fill(~some, torch.finfo(excess.dtype).min)
    return (odds.softmax(dim=1) * excess.relu().masked_fill(~of, 0)).sum(dim=1)
