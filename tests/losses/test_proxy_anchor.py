"""Proxy-Anchor against a loop, by hand, and against pytorch-metric-learning."""

import math

import pytest
import torch
from torch import Tensor

import losses
from tests.losses.factories import defaults

ProxyAnchor = losses.get("proxy_anchor")


def setup(**knobs: float) -> tuple[torch.nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    loss = ProxyAnchor(5, 4, **knobs).double()
    return loss, torch.randn(9, 4, dtype=torch.float64), torch.tensor([0, 0, 0, 1, 1, 3, 4, 4, 4])  # no 2


def reference(loss: torch.nn.Module, x: Tensor, labels: Tensor) -> float:
    def cosine(a: list[float], b: list[float]) -> float:
        return sum(v * w for v, w in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)

    X, y, P = x.tolist(), labels.tolist(), loss.proxies.tolist()
    positive, negative = 0.0, 0.0
    for c, proxy in enumerate(P):
        pulls = [math.exp(-loss.alpha * (cosine(a, proxy) - loss.delta)) for a, b in zip(X, y, strict=True) if b == c]
        pushes = [math.exp(loss.alpha * (cosine(a, proxy) + loss.delta)) for a, b in zip(X, y, strict=True) if b != c]
        positive += math.log(1 + sum(pulls))
        negative += math.log(1 + sum(pushes))
    return positive / len(set(y)) + negative / len(P)


def test_defaults_are_the_published_ones() -> None:
    assert defaults("proxy_anchor") == {"alpha": 32.0, "delta": 0.1, "lr_factor": 100.0}


@pytest.mark.parametrize("knobs", [{}, {"alpha": 5.0}, {"delta": 0.0}, {"alpha": 100.0, "delta": 0.4}])
def test_equals_the_loop(knobs: dict[str, float]) -> None:
    loss, x, y = setup(**knobs)
    assert loss(x, y).item() == pytest.approx(reference(loss, x, y), rel=1e-9)


def test_gradients_are_those_of_finite_differences() -> None:
    loss, x, y = setup(alpha=4.0)
    assert torch.autograd.gradcheck(lambda x, _: loss(x, y), (x.requires_grad_(), loss.proxies))


def test_by_hand() -> None:
    """A sample on its proxy, at right angles to a second and opposite to a third, whose classes are not there."""
    loss = ProxyAnchor(3, 2).double()
    loss.proxies.data = torch.tensor([[3.0, 0.0], [0.0, 2.0], [-1.0, 0.0]], dtype=torch.float64)
    value = loss(torch.tensor([[5.0, 0.0]], dtype=torch.float64), torch.tensor([0]))
    pull = math.log(1 + math.exp(-32 * 0.9))  # one proxy with samples
    push = (0 + math.log(1 + math.exp(3.2)) + math.log(1 + math.exp(-32 * 0.9))) / 3  # none but its own for the first
    assert value.item() == pytest.approx(pull + push, rel=1e-9)


def test_no_alpha_overflows() -> None:
    loss = ProxyAnchor(2, 2, alpha=1000.0)
    loss.proxies.data = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    value = loss(torch.tensor([[-1.0, 0.0]], requires_grad=True), torch.tensor([0]))
    assert value.item() == pytest.approx(1000 * 1.1 + 1000 * 1.1 / 2)


def test_equals_pytorch_metric_learning() -> None:
    from pytorch_metric_learning import losses as pml

    loss, x, y = setup()
    theirs = pml.ProxyAnchorLoss(5, 4)
    theirs.proxies.data = loss.proxies.data.clone()
    value, expected = loss(x.requires_grad_(), y), theirs(x, y)
    torch.testing.assert_close(value, expected)
    ours = torch.autograd.grad(value, (x, loss.proxies))
    torch.testing.assert_close(ours, torch.autograd.grad(expected, (x, theirs.proxies)))


def test_starts_with_the_released_variance() -> None:
    torch.manual_seed(0)
    assert ProxyAnchor(50, 400).proxies.var().item() == pytest.approx(2 / 50, rel=0.03)
