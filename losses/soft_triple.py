"""SoftTriple, of "Deep metric learning without triplet sampling"."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from losses.base import Choice, Limit, Loss, Positive, Range, Rates, unit

EPS = 1e-5  # the released code's, under the square root of the regulariser


class SoftTriple(Loss):
    """Softmax over classes that have several centres each (Qian et al., section 3).

    S_c = sum over k of softmax_k(x.w_c^k / gamma) x.w_c^k,   the soft similarity of x to class c;
    L = -log( e^(scale (S_y - margin)) / (e^(scale (S_y - margin)) + sum over c != y of e^(scale S_c)) ) + tau R,
    R = sum over c and s < t of |w_c^s - w_c^t| / (classes K (K - 1)),

    x and w of unit length, K = `centres` per class, `scale` the paper's lambda. R merges centres that a class does not
    need; as in the released code its distance is sqrt(2 + 1e-5 - 2 w^s.w^t). That code initialises the centres as here,
    uniform within 1 / sqrt(classes K), trains them at 1e-2 with the network at 1e-4 (`lr_factor` 100), and normalises x
    in the network. pytorch-metric-learning's SoftTripleLoss (2.x) is the same without R; its SparseCentersRegularizer
    is R with another small constant and a matrix of all pairs of centres.
    """

    title = "SoftTriple"
    cite = "Qian et al., ICCV 2019"
    family = "proxy"
    bibtex = """
    @inproceedings{qian2019softtriple,
      author = {Qian, Qi and Shang, Lei and Sun, Baigui and Hu, Juhua and Li, Hao and Jin, Rong},
      title = {{SoftTriple} Loss: Deep Metric Learning Without Triplet Sampling},
      booktitle = {IEEE/CVF International Conference on Computer Vision (ICCV)},
      year = {2019},
    }
    """
    space = {
        "centres": Choice(1, 2, 5, 10),
        "gamma": Range(0.01, 0.5, log=True),
        "scale": Range(5.0, 128.0, log=True),
        "margin": Range(0.0, 0.8),
        "tau": Range(0.0, 0.5),
        "lr_factor": Rates(1e-5, 0.1),
    }

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        centres: Annotated[int, Limit(least=1), "centres per class"] = 10,
        gamma: Annotated[Positive, "softness of the choice among the centres of a class"] = 0.1,
        scale: Annotated[Positive, "factor of the similarities before the softmax, the paper's lambda"] = 20.0,
        margin: Annotated[float, Limit(least=0), "margin of the right class"] = 0.01,
        tau: Annotated[float, Limit(least=0), "weight of the regulariser that merges centres"] = 0.2,
        lr_factor: Annotated[Positive, "learning rate of the centres, relative to that of the embedding layer"] = 100.0,
    ) -> None:
        super().__init__(num_classes, dim)
        self.gamma = gamma
        self.scale = scale
        self.margin = margin
        self.tau = tau
        self.lr_factor = lr_factor
        widest = (num_classes * centres) ** -0.5
        self.centres = nn.Parameter(torch.empty(num_classes, centres, dim).uniform_(-widest, widest))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        # Products of the raw centres are divided by their lengths: no second copy of up to 11,318 x 10 x 512 numbers.
        # The softmax is over the middle dimension, which is many times faster than over a last one of size 10.
        lengths = self.centres.norm(dim=2, keepdim=True)
        inverse = lengths.masked_fill(lengths == 0, torch.inf).reciprocal()  # a centre of zeros has cosine 0
        cosines = (self.centres.flatten(0, 1) @ unit(embeddings).T).view(*inverse.shape[:2], -1) * inverse
        similarities = (F.softmax(cosines / self.gamma, dim=1) * cosines).sum(dim=1).T
        margins = torch.zeros_like(similarities).scatter_(1, labels[:, None], self.margin)
        value = F.cross_entropy(self.scale * (similarities - margins), labels)
        if self.tau > 0 and self.centres.shape[1] > 1:
            value = value + self.tau * self.spread(inverse)
        return value

    def spread(self, inverse: Tensor) -> Tensor:
        """R: half the mean distance of two centres of a class. `inverse` (classes, K, 1): 1 / their lengths."""
        K = inverse.shape[1]
        products = self.centres @ self.centres.detach().transpose(1, 2)
        cosines = products * inverse * inverse.detach().transpose(1, 2)
        itself = torch.eye(K, dtype=torch.bool, device=inverse.device)
        distances = (2 + EPS - 2 * cosines.masked_fill(itself, 0)).sqrt().masked_fill(itself, 0)
        R = distances.sum() / (2 * K * (K - 1) * self.num_classes)
        return 2 * R - R.detach()  # symmetric: the gradient is twice that by the first centre
