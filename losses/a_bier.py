"""A-BIER: boosted learners that regressors, trained against them, keep apart."""

from itertools import combinations
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from losses import boosting as boosting_
from losses.base import Limit, Loss, Positive, Range, Rates

HIDDEN = 512  # units of a regressor


class Reverse(torch.autograd.Function):
    """The identity, whose gradient is negated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return -gradients[0]


def reverse(x: Tensor) -> Tensor:
    return Reverse.apply(x)


class ABier(boosting_.Boosted, Loss):
    """BIER with an adversarial diversity loss (Opitz et al., TPAMI; released code of the authors).

    L = L_BIER + diversity ( sum over p < q of (L_adv + norm_weight L_reg)  +  norm_weight sum_m penalty(W_m) )

    L_BIER is the loss `bier`. With g_m = W_m stopgrad(h), and r the identity whose gradient is negated,
    L_adv(p, q) = - mean over images and units of ( r(g_p) * R_qp(r(g_q)) )^2,  * elementwise,
    where the regressor R_qp is Linear(d_q, 512), ReLU, Linear(512, d_p). Regressors raise the squared products, W,
    behind the reversal, lowers them; the trunk gets no gradient from it. penalty(W) is the mean over inputs k of
    (sum over outputs l of W_kl^2 - 1)^2; L_reg adds it for both layers of a regressor, and max(0, |b|^2 - 1).

    diversity and norm_weight are those of the released command for Stanford Online Products; for CUB-200-2011 and
    Cars196 they are not public. Regressors learn at the trunk's rate there, a tenth of the embedding's: `lr_factor`.
    They are gone at test time. The penalty runs over inputs, as in the released adversarial loss; `bier` has it over
    outputs, as in the released activation loss. g is not normalised, as there.
    """

    title = "A-BIER"
    cite = "Opitz et al., TPAMI 2020"
    family = "pair"
    bibtex = """
    @article{opitz2020boosting,
      author = {Opitz, Michael and Waltner, Georg and Possegger, Horst and Bischof, Horst},
      title = {Deep Metric Learning with {BIER}: Boosting Independent Embeddings Robustly},
      journal = {IEEE Transactions on Pattern Analysis and Machine Intelligence},
      volume = {42},
      number = {2},
      pages = {276--290},
      year = {2020},
    }
    """
    space = {
        "beta": Range(0.2, 0.8),
        "cost": Range(5.0, 50.0, log=True),
        "shrinkage": Range(0.01, 1.0, log=True),
        "diversity": Range(1e-6, 1e-3, log=True),
        "lr_factor": Rates(1e-6, 1e-2),
    }
    non_negative = False
    exact = {"boosting": "none", "diversity": 0.0}
    head_dim = 512
    extras = (
        "Three learners in one embedding, and regressors between them while training (0.5 million parameters where the "
        "embedding has 512 dimensions)."
    )

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        alpha: Annotated[Positive, "slope of the deviance"] = 2.0,
        beta: Annotated[float, "cosine at which a pair is neither right nor wrong"] = 0.5,
        cost: Annotated[Positive, "how much steeper negative pairs are"] = 25.0,
        boosting: Annotated[
            Literal["simple", "eta", "none"], "how the learners before weigh a learner's pairs"
        ] = "simple",
        shrinkage: Annotated[
            float, Limit(least=0), "of boosting=simple: how much each learner moves the weights"
        ] = 0.06,
        diversity: Annotated[float, Limit(least=0), "weight of the term that keeps learners apart"] = 5e-5,
        norm_weight: Annotated[float, Limit(least=0), "of that term: weight of the lengths of weights"] = 1e5,
        lr_factor: Annotated[
            Positive, "learning rate of the regressors, relative to that of the embedding layer"
        ] = 0.1,
    ) -> None:
        super().__init__(num_classes, dim)
        self.alpha, self.beta, self.cost = alpha, beta, cost
        self.boosting = boosting
        self.shrinkage = shrinkage
        self.diversity, self.norm_weight = diversity, norm_weight
        self.lr_factor = lr_factor
        self.sizes = boosting_.sizes(dim)
        self.regressors = nn.ModuleList(
            nn.Sequential(nn.Linear(q, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, p)) for p, q in combinations(self.sizes, 2)
        )

    def diversity_loss(self, g: Tensor, weight: Tensor) -> Tensor:
        """The diversity loss of the projections g (n, dim) and of the weights W (dim, width)."""
        total = sum(self.norm_weight * penalty(part) for part in weight.split(self.sizes))
        pairs = combinations(g.split(self.sizes, dim=1), 2)
        for regressor, (p, q) in zip(self.regressors, pairs, strict=True):
            total = total - (reverse(p) * regressor(reverse(q))).square().mean()
            for layer in (regressor[0], regressor[2]):  # type: ignore[index]
                excess = (layer.bias.square().sum() - 1).relu()
                total = total + self.norm_weight * (penalty(layer.weight) + excess)
        return total  # type: ignore[return-value]


def penalty(weight: Tensor) -> Tensor:
    """How far the weights (out, in) of each input are from unit length."""
    return (weight.square().sum(dim=0) - 1).square().mean()
