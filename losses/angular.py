"""The angular loss: N-pairs plus a term for the angle at the negative of each triplet."""

import math
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from losses.base import Limit, Loss, Positive, Range, gram, unit
from losses.n_pairs import positives, tuplets

STEEPEST = 70.0  # degrees; up to this angle float32 is precise enough for the sums of exponentials


class Angular(Loss):
    """N-pairs plus the angular loss (Wang et al., section 3.3, the batch forms and their sum).

    L = L_npair + weight * L_ang, each a mean over ordered pairs (a, p) of one class:
    L_ang   = log( 1 + sum over n of exp(4 t (x_a + x_p).x_n - 2 (1 + t) x_a.x_p) ),  t = tan^2(alpha),
    L_npair = log( 1 + sum over n of exp(z_a.z_n - z_a.z_p) ),
    x the embeddings at unit length, z the raw ones, n all samples of other classes.

    The paper draws two images per class, so that an anchor has one positive; here every other image of its class is its
    positive in turn. alpha is in degrees: 36 to 55 in the paper. A batch without pairs or without negatives gives 0.

    `n_pairs="raw"`: the N-pairs term is Sohn's, of raw embeddings. The authors published no code. Public code that has
    both terms takes raw embeddings for this one: that of Roth et al., ICML 2020, which says so, and older versions in
    PyTorch and TensorFlow, which normalise neither. Roth et al. add 0.005 times the mean length of the embeddings;
    here there is no such penalty. `n_pairs="unit"` takes unit length, as version 1 of this loss did. The exponents of
    the term are then between -2 and 2, and it weighs about a tenth as much. Raw products suit an embedding layer: a
    network's own features (`dim = "none"`) are long vectors, whose products outweigh everything else.

    exp(4 t (x_a + x_p).x_n) is the product of a factor for (a, n) and one for (p, n), so a single matrix product gives
    the sums over n for all pairs: memory grows with the square of the batch, not with the number of triplets.

    pytorch-metric-learning's AngularLoss (2.x) is L_ang alone, at 40 degrees; it does not normalise the negatives.
    """

    title = "Angular"
    cite = "Wang et al., ICCV 2017"
    family = "pair"
    bibtex = """
    @inproceedings{wang2017angular,
      author = {Wang, Jian and Zhou, Feng and Wen, Shilei and Liu, Xiao and Lin, Yuanqing},
      title = {Deep Metric Learning with Angular Loss},
      booktitle = {IEEE International Conference on Computer Vision (ICCV)},
      year = {2017},
    }
    """
    version = 2
    space = {"alpha": Range(36.0, 55.0), "weight": Range(0.5, 8.0, log=True)}
    added = {"n_pairs": "unit"}

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        alpha: Annotated[
            float, Limit(above=0, most=STEEPEST), "largest allowed angle at the negative, in degrees"
        ] = 45.0,
        weight: Annotated[Positive, "factor of the angular term beside the N-pairs term"] = 2.0,
        n_pairs: Annotated[
            Literal["raw", "unit"], "embeddings of the N-pairs term: as they are, or of unit length"
        ] = "raw",
    ) -> None:
        super().__init__(num_classes, dim)
        self.alpha = alpha
        self.weight = weight
        self.n_pairs = n_pairs

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        cosines = gram(unit(embeddings))
        products = gram(embeddings) if self.n_pairs == "raw" else cosines
        same = labels[:, None] == labels
        return tuplets(products, same) + self.weight * self.angles(cosines, same)

    def angles(self, similarities: Tensor, same: Tensor) -> Tensor:
        """L_ang from cosine similarities; both (n, n)."""
        t = math.tan(math.radians(self.alpha)) ** 2
        largest = similarities.detach().masked_fill(same, -1).amax(dim=1)
        factors = torch.exp(4 * t * (similarities - largest[:, None])).masked_fill(same, 0)
        a, p = positives(same & ~same.all(dim=1))
        sums = gram(factors)[a, p].log() + 4 * t * (largest[a] + largest[p])
        return F.softplus(sums - 2 * (1 + t) * similarities[a, p], threshold=40).sum() / max(len(a), 1)
