"""Normalized softmax against a loop, and against pytorch-metric-learning."""

import pytest
import torch
from torch import Tensor

import losses
from tests.losses.factories import cross_entropy, defaults, dot, random_batch, unit_rows


def setup(**knobs: float) -> tuple[torch.nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    return losses.get("normalized_softmax")(5, 4, **knobs).double(), *random_batch(0, n=9, classes=5)


def test_defaults_are_the_published_ones() -> None:
    assert defaults("normalized_softmax") == {"temperature": 0.05, "lr_factor": 1.0}


@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_equals_the_loop(temperature: float) -> None:
    loss, x, y = setup(temperature=temperature)
    scores = [[dot(row, w) / temperature for w in unit_rows(loss.classifier.weight)] for row in unit_rows(x)]
    assert loss(x, y).item() == pytest.approx(cross_entropy(scores, y.tolist()), rel=1e-9)


def test_gradients_are_those_of_finite_differences() -> None:
    loss, x, y = setup()
    assert torch.autograd.gradcheck(lambda x, _: loss(x, y), (x.requires_grad_(), loss.classifier.weight))


def test_equals_pytorch_metric_learning() -> None:
    from pytorch_metric_learning.losses import NormalizedSoftmaxLoss

    loss, x, y = setup()
    theirs = NormalizedSoftmaxLoss(5, 4, temperature=0.05)
    theirs.W.data = loss.classifier.weight.data.T.clone()
    value, expected = loss(x.requires_grad_(), y), theirs(x, y)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(torch.autograd.grad(value, x), torch.autograd.grad(expected, x))
