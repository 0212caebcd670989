"""What BIER and A-BIER share: the learners, the boosted deviance, and how learners are joined at test time."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from losses.base import Trunk, Z, gram, unit

PARTS = (3, 5, 8)  # of the embedding's 16: 96, 160 and 256 of 512
Boosting = Literal["simple", "eta", "none"]


def sizes(dim: int) -> list[int]:
    """The dimensions of the learners, as 3 : 5 : 8."""
    ends = [round(dim * sum(PARTS[: count + 1]) / sum(PARTS)) for count in range(len(PARTS))]
    found = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    if min(found) < 1:
        raise ValueError(f"dim={dim}: too small for {len(PARTS)} learners of 3 : 5 : 8; must be at least 5")
    return found


class Boosted(nn.Module):
    """A loss of boosted learners; what it adds is how it keeps them apart."""

    dim: int
    sizes: list[int]
    alpha: float
    beta: float
    cost: float
    boosting: Boosting
    shrinkage: float
    diversity: float

    def head(self, trunk: Trunk) -> nn.Module:
        return Learners(trunk, self.dim, diverse=self.diversity > 0)

    def represent(self, z: Z) -> Tensor:
        assert isinstance(z, dict)
        return joined(z["embedding"], self.sizes)

    def forward(self, z: Z, labels: Tensor) -> Tensor:
        assert isinstance(z, dict)
        value = deviance(
            z["embedding"],
            labels,
            self.sizes,
            alpha=self.alpha,
            beta=self.beta,
            cost=self.cost,
            boosting=self.boosting,
            shrinkage=self.shrinkage,
        )
        if self.diversity and "projections" in z:
            value = value + self.diversity * self.diversity_loss(z["projections"], z["weight"])
        return value

    def diversity_loss(self, g: Tensor, weight: Tensor) -> Tensor:
        """Of the projections g (n, dim) and of the weights W (dim, width)."""
        raise NotImplementedError


class Learners(nn.Module):
    """One Linear, whose rows are the learners': embedding f = W h + b. Where diversity is wanted, also the projections
    g = W stopgrad(h), without bias, and W itself: through them no gradient reaches the trunk."""

    def __init__(self, trunk: Trunk, dim: int, *, diverse: bool) -> None:
        super().__init__()
        self.trunk, self.diverse = trunk, diverse
        self.linear = nn.Linear(trunk.width, dim)

    def forward(self, images: Tensor) -> Z:
        h = self.trunk(images)
        z = {"embedding": self.linear(h)}
        if self.diverse and self.training:
            weight = self.linear.weight
            z |= {"projections": h.detach() @ weight.T, "weight": weight}
        return z


def joined(embedding: Tensor, sizes: list[int]) -> Tensor:
    """The learners side by side, each of length d_m / sum d."""
    parts = [unit(part) * part.shape[1] / embedding.shape[1] for part in embedding.split(sizes, dim=1)]
    return torch.cat(parts, dim=1)


def deviance(
    embedding: Tensor,
    labels: Tensor,
    sizes: list[int],
    *,
    alpha: float,
    beta: float,
    cost: float,
    boosting: Boosting,
    shrinkage: float,
) -> Tensor:
    """The mean over learners of the binomial deviance of all pairs; each learner's pairs are weighted by how badly
    those before it do, without a gradient through the weights."""
    same = labels[:, None] == labels
    sign = torch.where(same, 1.0, -cost).to(embedding.dtype)
    # P counts the n pairs of an image with itself, as the released code does
    positive = same.to(embedding.dtype)
    shares = positive / positive.sum() + (1 - positive) / (1 - positive).sum().clamp_min(1)
    shares.fill_diagonal_(0)
    weights = torch.ones_like(shares)
    memory = torch.full_like(shares, 0.5 if boosting == "simple" else 0.0)
    total = embedding.new_zeros(())
    for number, part in enumerate(embedding.split(sizes, dim=1), start=1):
        cosine = gram(unit(part))
        margins = alpha * (cosine - beta) * sign
        total = total + (F.softplus(-margins) * weights * shares).sum()
        if boosting == "simple":
            memory = memory + shrinkage * margins.detach()
            weights = torch.sigmoid(-memory) * torch.where(same, 1, 2)
        elif boosting == "eta":
            eta = 2 / (number + 1)
            memory = (1 - eta) * memory + eta * cosine.detach()
            weights = torch.sigmoid(-alpha * (memory - beta) * sign)
    return total / len(sizes)
