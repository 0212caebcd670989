"""The contract of a loss, and the little geometry that several of them share."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from losses.space import Choice, Count, Positive, Range

__all__ = ["Choice", "Count", "Loss", "Positive", "Range", "squared_distances", "unit"]


class Loss(nn.Module):
    """A metric-learning loss: raw embeddings (n, dim) and labels (n,) in 0..num_classes-1 to a scalar.

    A loss owns its parameters (classifier, proxies, centres) and normalises the embeddings itself where its paper
    does. A linear classifier, if it has one, is called `classifier`, so that pre-training can hand its weights on.
    Knobs are keyword arguments with types and defaults; a `Literal` lists the values allowed, `Positive` and `Count`
    are a number above 0 and a whole number from 0 on.
    """

    title: ClassVar[str]
    cite: ClassVar[str]
    version: ClassVar[int] = 1  # raised by a change that alters the loss's numbers
    space: ClassVar[dict[str, Range | Choice]] = {}  # what random search may vary

    lr_factor: float = 1.0  # learning rate of what the loss owns, relative to the head's

    def __init__(self, num_classes: int, dim: int) -> None:
        super().__init__()
        if num_classes < 2:
            raise ValueError(f"a loss compares classes: it needs at least 2, not {num_classes}")
        self.num_classes = num_classes
        self.dim = dim

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no forward")


def unit(x: Tensor) -> Tensor:
    """Rows divided by their L2 norm; a row of zeros stays zero and gets no gradient.

    Dividing by the largest entry first keeps the squares from overflowing or vanishing; it does not change the
    gradient, because the direction of a vector does not depend on its length.
    """
    largest = x.detach().abs().amax(dim=1, keepdim=True)
    alive = largest != 0  # true of a NaN too: it has to be seen, not made zero
    scaled = x / torch.where(alive, largest, 1)
    squared = scaled.square().sum(dim=1, keepdim=True)
    return torch.where(alive, scaled * torch.where(alive, squared, 1).rsqrt(), 0)


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """Squared Euclidean distances of the rows of a (n, d) and b (m, d), as (n, m).

    By differences, not by |a|^2 + |b|^2 - 2ab: equal rows are at distance 0 exactly, with gradient 0.
    """
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square()
