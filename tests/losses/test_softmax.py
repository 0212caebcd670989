"""Softmax against a loop."""

import pytest
import torch
from torch import Tensor

import losses
from tests.losses.factories import cross_entropy, defaults, dot, random_batch


def setup(**knobs: bool) -> tuple[torch.nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    return losses.get("softmax")(5, 4, **knobs).double(), *random_batch(0, n=9, classes=5)


def test_defaults_are_the_published_ones() -> None:
    assert defaults("softmax") == {"bias": True, "lr_factor": 1.0}


@pytest.mark.parametrize("bias", [True, False])
def test_equals_the_loop(bias: bool) -> None:
    loss, x, y = setup(bias=bias)
    b = loss.classifier.bias.tolist() if bias else [0.0] * 5
    scores = [[dot(row, w) + b[k] for k, w in enumerate(loss.classifier.weight.tolist())] for row in x.tolist()]
    assert loss(x, y).item() == pytest.approx(cross_entropy(scores, y.tolist()), rel=1e-9)


def test_gradients_are_those_of_finite_differences() -> None:
    loss, x, y = setup()
    assert torch.autograd.gradcheck(lambda x, _: loss(x, y), (x.requires_grad_(), loss.classifier.weight))
