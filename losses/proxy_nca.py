"""Proxy-NCA, of "No fuss distance metric learning using proxies"."""

from typing import Annotated

import torch
from torch import Tensor, nn

from losses.base import Loss, Positive, Range, cosines


class ProxyNCA(Loss):
    """NCA against one learned proxy per class (Movshovitz-Attias et al., Algorithm 1, number unchecked).

    L = -log( exp(-d2(x, p_y)) / sum over z != y of exp(-d2(x, p_z)) ),  d2 the squared Euclidean distance.

    The positive proxy is not in the denominator, so the loss may be negative. Embeddings have length `scale`, proxies
    `proxy_scale`. The paper gives neither; 3 and 3 are the values of the usual re-implementation (1 and 8 for Stanford
    Online Products). That code, however, keeps the positive in the denominator, smooths the labels and trains its
    proxies at a rate of their own. On vectors of fixed length only the product of the scales matters.
    pytorch-metric-learning's ProxyNCALoss (2.x) keeps the positive in the denominator, has scale 1, and drops samples
    whose probability underflows from the mean; here sums are taken in log space, so that no probability underflows.
    """

    title = "Proxy-NCA"
    cite = "Movshovitz-Attias et al., ICCV 2017"
    family = "proxy"
    bibtex = """
    @inproceedings{movshovitzattias2017proxies,
      author = {Movshovitz-Attias, Yair and Toshev, Alexander and Leung, Thomas K. and Ioffe, Sergey and Singh, Saurabh},
      title = {No Fuss Distance Metric Learning Using Proxies},
      booktitle = {IEEE International Conference on Computer Vision (ICCV)},
      year = {2017},
    }
    """  # noqa: E501
    non_negative = False
    space = {"scale": Range(1.0, 10.0, log=True), "lr_factor": Range(1.0, 100.0, log=True)}

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        scale: Annotated[Positive, "length of the embeddings"] = 3.0,
        proxy_scale: Annotated[Positive, "length of the proxies"] = 3.0,
        lr_factor: Annotated[Positive, "learning rate of the proxies, relative to that of the embedding layer"] = 1.0,
    ) -> None:
        super().__init__(num_classes, dim)
        self.scale = scale
        self.proxy_scale = proxy_scale
        self.lr_factor = lr_factor
        self.proxies = nn.Parameter(torch.randn(num_classes, dim) / dim**0.5)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        # -d2 of vectors of fixed length is 2 x.p minus a constant, which cancels in the fraction
        closeness = 2 * self.scale * self.proxy_scale * cosines(embeddings, self.proxies)
        right = labels[:, None]
        others = closeness.scatter(1, right, -torch.inf).logsumexp(dim=1)
        return (others - closeness.gather(1, right).squeeze(1)).mean()
