"""Proxy-NCA against a loop, and the two places where other code differs."""

import math

import pytest
import torch
from torch import Tensor

import losses
from tests.losses.factories import defaults

ProxyNCA = losses.get("proxy_nca")


def setup(**knobs: float) -> tuple[torch.nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    loss = ProxyNCA(5, 4, **knobs).double()
    return loss, torch.randn(9, 4, dtype=torch.float64), torch.randint(5, (9,))


def reference(loss: torch.nn.Module, x: Tensor, labels: Tensor) -> float:
    def scaled(rows: list[list[float]], scale: float) -> list[list[float]]:
        return [[scale * v / math.hypot(*row) for v in row] for row in rows]

    X, P = scaled(x.tolist(), loss.scale), scaled(loss.proxies.tolist(), loss.proxy_scale)
    total = 0.0
    for row, y in zip(X, labels.tolist(), strict=True):
        d2 = [sum((a - b) ** 2 for a, b in zip(row, proxy, strict=True)) for proxy in P]
        total -= math.log(math.exp(-d2[y]) / sum(math.exp(-d) for z, d in enumerate(d2) if z != y))
    return total / len(X)


def test_defaults_are_the_published_ones() -> None:
    assert defaults("proxy_nca") == {"scale": 3.0, "proxy_scale": 3.0, "lr_factor": 1.0}


@pytest.mark.parametrize("knobs", [{}, {"scale": 1.0, "proxy_scale": 8.0}, {"scale": 2.0}])
def test_equals_the_loop(knobs: dict[str, float]) -> None:
    loss, x, y = setup(**knobs)
    assert loss(x, y).item() == pytest.approx(reference(loss, x, y), rel=1e-9)


def test_gradients_are_those_of_finite_differences() -> None:
    loss, x, y = setup()
    assert torch.autograd.gradcheck(lambda x, _: loss(x, y), (x.requires_grad_(), loss.proxies))


def test_the_positive_proxy_is_not_in_the_denominator() -> None:
    """With two classes, an embedding on its proxy and the other opposite: -log(1 / e^-d) = -d, below 0."""
    loss = ProxyNCA(2, 2)
    loss.proxies.data = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    value = loss(torch.tensor([[5.0, 0.0]]), torch.tensor([0]))
    assert value.item() == pytest.approx(-(6.0**2))  # both at length 3: 6 apart


def test_no_sample_leaves_the_mean_when_its_probability_underflows() -> None:
    """At these scales exp(-d2) is 0 in float32 for the worst sample; its loss is still its distance."""
    loss = ProxyNCA(2, 2, scale=20.0, proxy_scale=20.0)
    loss.proxies.data = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    value = loss(torch.tensor([[-1.0, 0.0]]), torch.tensor([0]))
    assert value.item() == pytest.approx(40.0**2)
