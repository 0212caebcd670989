"""Proxy-Anchor compares each proxy, as an anchor, with the whole batch."""

from typing import Annotated

import torch
from torch import Tensor, nn

from losses.base import Limit, Loss, Positive, Range, Rates, cosines, log_one_plus_sum


class ProxyAnchor(Loss):
    """One learned proxy per class attracts its samples and repels all others (Kim et al., eq. 4, number unchecked).

    L = 1/|P+| sum over p in P+ of log(1 + sum over x of p's class of e^(-alpha (s(x, p) - delta)))
      + 1/|P|  sum over p in P  of log(1 + sum over all other x    of e^( alpha (s(x, p) + delta))),

    s the cosine similarity, P all proxies, P+ those of the classes in the batch. Proxies start as in the released code
    (normal, variance 2 / classes; their length matters only relative to the learning rate). They learn at 100 times the
    rate of the embedding layer, which in the released code is the whole network's. Where a protocol has a
    `head_lr_factor` above 1, that is more of the trunk's: 1,000 times under `cpu` and `quick`. So search this factor
    (`lr_factor`, in `space`) or set it. The sums are taken in log space, so that no alpha overflows.
    pytorch-metric-learning's ProxyAnchorLoss is the same formula.
    """

    title = "Proxy-Anchor"
    cite = "Kim et al., CVPR 2020"
    family = "proxy"
    bibtex = """
    @inproceedings{kim2020proxy,
      author = {Kim, Sungyeon and Kim, Dongwon and Cho, Minsu and Kwak, Suha},
      title = {Proxy Anchor Loss for Deep Metric Learning},
      booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)},
      year = {2020},
    }
    """
    space = {
        "alpha": Range(8.0, 64.0, log=True),
        "delta": Range(0.0, 0.4),
        "lr_factor": Rates(1e-4, 1.0),
    }

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        alpha: Annotated[Positive, "sharpness of the sums over images"] = 32.0,
        delta: Annotated[float, Limit(least=0), "margin of the cosines"] = 0.1,
        lr_factor: Annotated[Positive, "learning rate of the proxies, relative to that of the embedding layer"] = 100.0,
    ) -> None:
        super().__init__(num_classes, dim)
        self.alpha = alpha
        self.delta = delta
        self.lr_factor = lr_factor
        self.proxies = nn.Parameter(torch.randn(num_classes, dim) * (2 / num_classes) ** 0.5)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        logits = self.alpha * cosines(embeddings, self.proxies)
        margin = self.alpha * self.delta
        right = labels[:, None]
        # Each sample holds its class's term, weighted by 1 / class size: no column for classes outside the batch.
        same = right == labels
        pulls = log_one_plus_sum((margin - logits.gather(1, right)).T.expand_as(same), same)
        share = same.to(logits.dtype).sum(dim=0).reciprocal()
        others = torch.ones_like(logits, dtype=torch.bool).scatter_(1, right, False)
        pushes = log_one_plus_sum((margin + logits).T, others.T)
        return (share * pulls).sum() / share.sum() + pushes.mean()
