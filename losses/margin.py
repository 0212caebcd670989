"""Margin loss with distance-weighted negatives: "Sampling matters in deep embedding learning"."""

from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from losses.base import Choice, Limit, Loss, Positive, Range, Rates, distances, unit


class Margin(Loss):
    """Pulls positives within, and pushes negatives beyond, a learned distance beta (Wu et al., section 4).

    L = sum over pairs of [ margin + y (D - beta) ]+ / number of pairs with a loss,  D the Euclidean distance of
    unit-length embeddings, y = 1 for two samples of a class and -1 for samples of two classes.

    The pairs are those of the released code: every ordered pair (a, p) of a class, and for each of them a pair (a, n).
    n, of another class, is drawn with probability ~ 1 / q(max(D, cutoff)), where q(D) ~ D^(d-2) (1 - D^2/4)^((d-3)/2)
    is the density of distances on the sphere in d dimensions. It is never drawn with D >= nonzero_cutoff, where the
    loss with the initial beta is 0: 1.4 is 1.2 + 0.2, and `nonzero_cutoff="none"` is beta + margin, whatever they are,
    which is what search takes. An anchor whose negatives are all that far draws evenly among them (the released
    code: among all samples, the anchor's class included). `draw` uses torch's global generator. Probabilities are
    normalised per anchor, not by the batch's largest weight, which makes small ones vanish.

    beta belongs to the anchor. In the paper it is a sum of a global, a class's and an image's value; the released code
    learns one per class, starting at 1.2 (`betas="class"`). "shared" learns a single one, "fixed" learns none. `nu`
    weighs the sum of beta over the pairs (a, p); the published value is 0. The released code trains beta by SGD with
    momentum, at a rate of 0.1 / batch size and without weight decay, which is not applied here either. A step of Adam
    is about as long as its rate, and beta is of order 1, so by default its rate is the head's; Roth et al., ICML 2020,
    use 5e-4. pytorch-metric-learning's MarginLoss (2.x) is the same formula; its default is a single, fixed beta.
    """

    title = "Margin"
    cite = "Wu et al., ICCV 2017"
    family = "pair"
    bibtex = r"""
    @inproceedings{wu2017sampling,
      author = {Wu, Chao-Yuan and Manmatha, R. and Smola, Alexander J. and Kr{\"a}henb{\"u}hl, Philipp},
      title = {Sampling Matters in Deep Embedding Learning},
      booktitle = {IEEE International Conference on Computer Vision (ICCV)},
      year = {2017},
    }
    """
    decay = False
    space = {
        "margin": Range(0.05, 0.5, log=True),
        "beta": Range(0.6, 1.4),
        "betas": Choice("class", "shared", "fixed"),
        "lr_factor": Rates(1e-6, 0.1),
        "nonzero_cutoff": Choice(None),
    }

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        margin: Annotated[Positive, "half of the gap between positives and negatives"] = 0.2,
        beta: Annotated[Positive, "the boundary between positives and negatives, at the start"] = 1.2,
        betas: Annotated[
            Literal["class", "shared", "fixed"], "a learned boundary per class, one for all, or a fixed one"
        ] = "class",
        nu: Annotated[float, Limit(least=0), "weight of the boundaries themselves in the loss"] = 0.0,
        cutoff: Annotated[Positive, "negatives closer than this are drawn as if at this distance"] = 0.5,
        nonzero_cutoff: Annotated[
            float | None, Limit(above=0), "negatives at least this far are not drawn; none: beta + margin"
        ] = 1.4,
        lr_factor: Annotated[
            Positive, "learning rate of the boundaries, relative to that of the embedding layer"
        ] = 1.0,
    ) -> None:
        super().__init__(num_classes, dim)
        self.margin = margin
        self.nu = nu
        self.cutoff = cutoff
        self.nonzero_cutoff = beta + margin if nonzero_cutoff is None else nonzero_cutoff
        self.lr_factor = lr_factor
        self.beta = nn.Parameter(
            torch.full((num_classes if betas == "class" else 1,), beta), requires_grad=betas != "fixed"
        )

    def forward(self, embeddings: Tensor, labels: Tensor, negatives: Tensor | None = None) -> Tensor:
        """`negatives` (n, n) holds at [a, p] the index of n for the pair (a, p); by default it is drawn."""
        D = distances(unit(embeddings))
        if negatives is None:
            negatives = self.draw(D.detach(), labels)
        same = labels[:, None] == labels
        pairs = same.clone().fill_diagonal_(False)
        beta = (self.beta if len(self.beta) == 1 else self.beta[labels])[:, None]
        pull = (D - beta + self.margin).relu().masked_fill(~pairs, 0)
        push = (beta - D.gather(1, negatives) + self.margin).relu()
        push = push.masked_fill(~pairs | same.all(dim=1, keepdim=True), 0)
        total = (pull + push).sum() + self.nu * (beta * pairs).sum()
        return total / ((pull > 0).sum() + (push > 0).sum()).clamp_min(1)

    def draw(self, D: Tensor, labels: Tensor) -> Tensor:
        """A random negative for each pair (a, p): its index at [a, p] of (n, n). Other entries have no meaning."""
        same = labels[:, None] == labels
        d, near = self.dim, D.clamp_min(self.cutoff)
        log_odds = (2 - d) * near.log() - (d - 3) / 2 * (1 - near.square() / 4).clamp_min(1e-6).log()
        log_odds = log_odds.nan_to_num(nan=torch.finfo(D.dtype).max)  # a NaN is drawn first, so that it shows
        likely = ~same & ~(near >= self.nonzero_cutoff)
        log_odds = torch.where(likely.any(dim=1, keepdim=True), log_odds, 0)  # without any: evenly among all negatives
        likely = torch.where(likely.any(dim=1, keepdim=True), likely, ~same)
        weights = log_odds.masked_fill(~likely, torch.finfo(D.dtype).min).softmax(dim=1)
        count = same.sum(dim=1, keepdim=True)
        drawn = torch.multinomial(weights, int(count.max()), replacement=True)
        return drawn.gather(1, (same.cumsum(dim=1) - 1).clamp_min(0))  # the k-th draw for the k-th sample of the class
