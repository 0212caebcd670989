"""ArcFace against a loop, by hand, and against pytorch-metric-learning."""

import math

import pytest
import torch
from torch import Tensor

import losses
from tests.losses.factories import defaults

ArcFace = losses.get("arcface")


def setup(**knobs: float) -> tuple[torch.nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    return ArcFace(5, 4, **knobs).double(), torch.randn(9, 4, dtype=torch.float64), torch.randint(5, (9,))


def reference(loss: torch.nn.Module, x: Tensor, labels: Tensor) -> float:
    """Equation 3 by angles, sample by sample."""
    W = loss.classifier.weight.tolist()
    total = 0.0
    for row, y in zip(x.tolist(), labels.tolist(), strict=True):
        cosines = [sum(a * b for a, b in zip(row, w, strict=True)) / math.hypot(*row) / math.hypot(*w) for w in W]
        theta = math.acos(cosines[y])
        if theta + loss.margin < math.pi:
            cosines[y] = math.cos(theta + loss.margin)
        else:
            cosines[y] -= loss.margin * math.sin(loss.margin)
        total += math.log(sum(math.exp(loss.scale * c) for c in cosines)) - loss.scale * cosines[y]
    return total / len(labels)


def test_defaults_are_the_published_ones() -> None:
    assert defaults("arcface") == {"scale": 64.0, "margin": 0.5, "lr_factor": 1.0}


@pytest.mark.parametrize("knobs", [{}, {"scale": 10.0}, {"margin": 0.1}, {"margin": 1.5}, {"margin": 1.57}])
def test_equals_the_loop(knobs: dict[str, float]) -> None:
    loss, x, y = setup(**knobs)
    assert loss(x, y).item() == pytest.approx(reference(loss, x, y), rel=1e-9)


@pytest.mark.parametrize("margin", [0.5, 2.0])
def test_gradients_are_those_of_finite_differences(margin: float) -> None:
    loss, x, y = setup(scale=4.0, margin=margin)
    assert torch.autograd.gradcheck(lambda x, _: loss(x, y), (x.requires_grad_(), loss.classifier.weight))


def at(degrees: float) -> tuple[torch.nn.Module, Tensor, Tensor]:
    """One sample at an angle to its class's weight; the other class's is at -90."""
    loss = ArcFace(2, 2, scale=1.0).double()
    loss.classifier.weight.data = torch.tensor([[2.0, 0.0], [0.0, -3.0]], dtype=torch.float64)
    angle = math.radians(degrees)
    x = torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64, requires_grad=True)
    return loss, x, torch.tensor([0])


@pytest.mark.parametrize("degrees", [0.0, 30.0, 90.0, 150.0, 170.0, 180.0])
def test_by_hand(degrees: float) -> None:
    loss, x, y = at(degrees)
    theta = math.radians(degrees)
    right = math.cos(theta + 0.5) if theta < math.pi - 0.5 else math.cos(theta) - 0.5 * math.sin(0.5)
    other = math.cos(theta + math.pi / 2)
    expected = math.log(1 + math.exp(other - right))
    assert loss(x, y).item() == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("degrees", [0.0, 1e-6, 1e-3, 180.0 - 1e-6, 180.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gradient_stays_bounded_at_angles_of_0_and_180(degrees: float, dtype: torch.dtype) -> None:
    """The loss's slope in theta is at most 1 + |d other / d theta| = 2, and the embedding is of length 1."""
    loss, x, y = at(degrees)
    (gradient,) = torch.autograd.grad(loss.to(dtype)(x.to(dtype), y), x)
    assert gradient.norm() <= 2 + 1e-3


def test_a_larger_angle_never_has_a_smaller_loss() -> None:
    """Also across pi - margin, where cos(theta + margin) would turn."""
    loss = ArcFace(2, 2)
    angles = torch.linspace(0, math.pi, 1000, dtype=torch.float64)
    assert (loss.add_margin(angles.cos()).diff() <= 1e-12).all()


@pytest.mark.parametrize("margin", [0.5, 1.5])
def test_equals_pytorch_metric_learning(margin: float) -> None:
    from pytorch_metric_learning import losses as pml

    loss, x, y = setup(margin=margin)
    theirs = pml.ArcFaceLoss(5, 4, margin=math.degrees(margin), scale=64)
    theirs.W.data = loss.classifier.weight.data.T.clone()
    value, expected = loss(x.requires_grad_(), y), theirs(x, y)
    torch.testing.assert_close(value, expected)
    ours, others = torch.autograd.grad(value, (x, loss.classifier.weight)), torch.autograd.grad(expected, (x, theirs.W))
    torch.testing.assert_close(ours, (others[0], others[1].T))


def test_small_angles_keep_their_sine_in_float32() -> None:
    loss, _, _ = setup()
    angles = torch.tensor([0.01, 0.03, 0.1])  # radians: down to half a degree
    expected = [math.cos(angle + 0.5) for angle in angles.double().cos().acos().tolist()]
    assert loss.add_margin(angles.cos()).tolist() == pytest.approx(expected, abs=2e-3)
