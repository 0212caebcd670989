"""Batches, plain arithmetic and knobs that the tests of several losses share."""

import inspect
import math
from typing import Any

import torch
from torch import Tensor

import losses
from losses.contract import Allocated, tensors


def random_batch(seed: int, n: int = 12, dim: int = 4, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Embeddings (n, dim) in float64 and labels (n,), both random."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    return x, torch.randint(classes, (n,), generator=generator)


def random_lengths(n: int) -> Tensor:
    """(n, 1), between 0.1 and 10.1, in float64."""
    return 0.1 + 10 * torch.rand(n, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def on_circle(*degrees: float) -> Tensor:
    """Embeddings of unit length in two dimensions, in float64."""
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def unit_rows(x: Tensor) -> list[list[float]]:
    """The rows as lists, divided by their lengths."""
    return [[value / (math.hypot(*row) or 1.0) for value in row] for row in x.tolist()]


def dot(a: list[float], b: list[float]) -> float:
    return sum(u * v for u, v in zip(a, b, strict=True))


def cross_entropy(scores: list[list[float]], labels: list[int]) -> float:
    """Mean of -log softmax(scores)_y, row by row."""
    terms = [math.log(sum(math.exp(s) for s in row)) - row[y] for row, y in zip(scores, labels, strict=True)]
    return sum(terms) / len(terms)


def defaults(name: str) -> dict[str, Any]:
    """Every knob of a loss with its default."""
    parameters = inspect.signature(losses.get(name).__init__).parameters.values()
    return {knob.name: knob.default for knob in parameters if knob.kind is knob.KEYWORD_ONLY}


def reread_registry() -> None:
    """Let the registry look again at its folder and at the installed packages."""
    for answer in (losses.names, losses.shipped, losses.plugins, losses.facts):
        answer.cache_clear()


class Largest(Allocated):
    """The number of elements of the largest new tensor."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.elements = max([self.elements, *(tensor.numel() for tensor in tensors(out))])
        return out
