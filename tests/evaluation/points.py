"""Random embeddings with labels."""

import torch
from torch import Tensor


def random_points(seed: int = 0, n: int = 60, classes: int = 9) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=generator)
    centres = torch.randn(classes, 4, generator=generator)
    return centres[y] + torch.randn(n, 4, generator=generator), y


def inertia(x: Tensor, labels: Tensor) -> float:
    """Cluster by cluster."""
    return sum(float((x[labels == c] - x[labels == c].mean(0)).square().sum()) for c in labels.unique())
