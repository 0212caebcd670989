"""BIER: an embedding divided into learners that are boosted one after another."""

from itertools import combinations
from typing import Annotated, Literal

from torch import Tensor

from losses import boosting as boosting_
from losses.base import Limit, Loss, Positive, Range


class Bier(boosting_.Boosted, Loss):
    """Learners of 3 : 5 : 8 dimensions, each trained on the pairs that those before it get wrong (Opitz et al.).

    Learner m gives f_m = W_m h + b_m, h the pooled features; s_m(i, j) is the cosine of two images in it.

    L = (1/M) sum_m sum_ij log(1 + exp(-u_m(i, j))) B_m(i, j) V(i, j),  u_m = alpha (s_m - beta) m_ij,
    m_ij = 1 for two images of a class and -cost for images of two classes. V is 0 for i = j, 1/P for positive and 1/N
    for negative pairs; N counts the ordered negative pairs, P the positive ones and each image with itself.

    The first learner has B_1 = 1. The others follow from the learners before, without a gradient through them
    (`boosting`):

    - "simple", the released code's default: A_0 = 0.5, A_m = A_(m-1) + shrinkage u_m; B_(m+1) = sigmoid(-A_m), of
      negative pairs twice that.
    - "eta", the paper's, as far as the released code and general knowledge tell: S_m = (1 - eta_m) S_(m-1) + eta_m s_m,
      eta_m = 2 / (m + 1); B_(m+1) = sigmoid(-alpha (S_m - beta) m_ij).
    - "none": B = 1, M independent learners.

    `diversity` weighs the released "activation" loss, off by default as there: with g_m = W_m stopgrad(h), the sum over
    p < q of the mean over images and units of (g_p[u] g_q[v])^2, plus norm_weight times the sum over m of the mean over
    output units of (|w_u|^2 - 1)^2. It moves W alone. The ICCV paper minimises such a loss to initialise W; the steps,
    the rate and the batches of that are not public to us, so W begins as torch's Linear does.

    At test time the learners stand side by side, each of length d_m / sum d as in the released code, so the cosine is
    the mean of the s_m, weighted by d_m^2; the paper's weights are, by general knowledge, those of "eta": m / 6.
    Constants are the released ones; its norms are clamped at 1e-5, ours are not. In the released code the trunk is
    GoogLeNet without batch normalisation, trained with Adam at 1e-5 and ten times that for W.
    """

    title = "BIER"
    cite = "Opitz et al., ICCV 2017"
    family = "pair"
    bibtex = """
    @inproceedings{opitz2017bier,
      author = {Opitz, Michael and Waltner, Georg and Possegger, Horst and Bischof, Horst},
      title = {{BIER} -- Boosting Independent Embeddings Robustly},
      booktitle = {IEEE International Conference on Computer Vision (ICCV)},
      year = {2017},
    }
    """
    space = {
        "beta": Range(0.2, 0.8),
        "cost": Range(5.0, 50.0, log=True),
        "shrinkage": Range(0.01, 1.0, log=True),
    }
    exact = {"boosting": "none"}
    head_dim = 512
    extras = "Three learners in one embedding."

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
        diversity: Annotated[float, Limit(least=0), "weight of the term that keeps learners apart"] = 0.0,
        norm_weight: Annotated[float, Limit(least=0), "of that term: weight of the length of the units' weights"] = 100,
    ) -> None:
        super().__init__(num_classes, dim)
        self.alpha, self.beta, self.cost = alpha, beta, cost
        self.boosting = boosting
        self.shrinkage = shrinkage
        self.diversity, self.norm_weight = diversity, norm_weight
        self.sizes = boosting_.sizes(dim)

    def diversity_loss(self, g: Tensor, weight: Tensor) -> Tensor:
        """The diversity loss of the projections g (n, dim) and of the weights W (dim, width)."""
        # the mean over u and v of (g_p[u] g_q[v])^2 is the product of two means
        squares = [part.square().mean(dim=1) for part in g.split(self.sizes, dim=1)]
        products = sum((p * q).mean() for p, q in combinations(squares, 2))
        norms = sum((part.square().sum(dim=1) - 1).square().mean() for part in weight.split(self.sizes))
        return products + self.norm_weight * norms
