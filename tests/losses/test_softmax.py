"""Softmax and normalized softmax against loops."""

import math

import pytest
import torch
from torch import Tensor

import losses


def cross_entropy(scores: list[list[float]], labels: list[int]) -> float:
    return sum(math.log(sum(math.exp(s) for s in row)) - row[y] for row, y in zip(scores, labels, strict=True)) / len(
        labels
    )


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def setup(name: str, **knobs: float) -> tuple[torch.nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    return losses.get(name)(5, 4, **knobs).double(), torch.randn(9, 4, dtype=torch.float64), torch.randint(5, (9,))


@pytest.mark.parametrize("bias", [True, False])
def test_softmax_equals_the_loop(bias: bool) -> None:
    loss, x, y = setup("softmax", bias=bias)
    b = loss.classifier.bias.tolist() if bias else [0.0] * 5
    scores = [[dot(row, w) + b[k] for k, w in enumerate(loss.classifier.weight.tolist())] for row in x.tolist()]
    assert loss(x, y).item() == pytest.approx(cross_entropy(scores, y.tolist()), rel=1e-9)


@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_normalized_softmax_equals_the_loop(temperature: float) -> None:
    loss, x, y = setup("normalized_softmax", temperature=temperature)
    scores = [
        [dot(row, w) / math.hypot(*row) / math.hypot(*w) / temperature for w in loss.classifier.weight.tolist()]
        for row in x.tolist()
    ]
    assert loss(x, y).item() == pytest.approx(cross_entropy(scores, y.tolist()), rel=1e-9)


@pytest.mark.parametrize("name", ["softmax", "normalized_softmax"])
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    loss, x, y = setup(name)
    assert torch.autograd.gradcheck(lambda x, _: loss(x, y), (x.requires_grad_(), loss.classifier.weight))


def test_normalized_softmax_equals_pytorch_metric_learning() -> None:
    from pytorch_metric_learning.losses import NormalizedSoftmaxLoss

    loss, x, y = setup("normalized_softmax")
    theirs = NormalizedSoftmaxLoss(5, 4, temperature=0.05)
    theirs.W.data = loss.classifier.weight.data.T.clone()
    value, expected = loss(x.requires_grad_(), y), theirs(x, y)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(torch.autograd.grad(value, x), torch.autograd.grad(expected, x))
