"""A-BIER: the adversarial diversity loss against a loop, and who gets which gradient."""

from typing import Any

import pytest
import torch
from torch import Tensor

import losses
from losses.a_bier import reverse
from losses.small import SmallTrunk
from tests.losses.factories import defaults, random_batch

Bier, ABier = losses.get("bier"), losses.get("a_bier")
DIM = 16  # learners of 3, 5 and 8


def projections() -> tuple[Tensor, Tensor]:
    """g (n, 16) of random features, and W (16, 6)."""
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(7, 6, generator=generator, dtype=torch.float64)
    W = torch.randn(DIM, 6, generator=generator, dtype=torch.float64)
    return h @ W.T, W


def test_defaults_are_the_released_ones() -> None:
    assert defaults("a_bier") == {
        "alpha": 2.0,
        "beta": 0.5,
        "cost": 25.0,
        "boosting": "simple",
        "shrinkage": 0.06,
        "diversity": 5e-5,
        "norm_weight": 1e5,
        "lr_factor": 0.1,
    }


def test_diversity_gives_the_trunk_no_gradient() -> None:
    loss = ABier(3, DIM, diversity=1.0)
    torch.manual_seed(0)
    trunk = SmallTrunk.of(6)
    head = loss.head(trunk)
    z = head(torch.randn(5, 6))
    loss.diversity_loss(z["projections"], z["weight"]).backward()
    assert all(p.grad is None for stage in trunk.stages for p in stage.parameters())
    assert head.linear.weight.grad.abs().sum() > 0
    assert head.linear.bias.grad is None


def test_without_diversity_a_bier_is_bier() -> None:
    x, y = random_batch(4, dim=DIM)
    x.requires_grad_()
    values = [kind(3, DIM, diversity=0.0)({"embedding": x}, y) for kind in (Bier, ABier)]
    assert torch.equal(*values)
    gradients = [torch.autograd.grad(found, x)[0] for found in values]
    assert torch.equal(*gradients)


def slow_adversarial(loss: Any, g: Tensor, W: Tensor) -> float:
    """As the released code prints it, with weights as in x out."""

    def penalty(matrix: list[list[float]]) -> float:
        return sum((sum(w * w for w in row) - 1) ** 2 for row in matrix) / len(matrix)

    total = sum(loss.norm_weight * penalty(weight.T.tolist()) for weight in W.split(loss.sizes))
    parts = g.split(loss.sizes, dim=1)
    number = 0
    for p in range(3):
        for q in range(p + 1, 3):
            regressor = loss.regressors[number]
            number += 1
            guessed = regressor(parts[q]).tolist()
            terms = [
                (a * b) ** 2 for r, s in zip(parts[p].tolist(), guessed, strict=True) for a, b in zip(r, s, strict=True)
            ]
            total -= sum(terms) / len(terms)
            for layer in (regressor[0], regressor[2]):
                total += loss.norm_weight * penalty(layer.weight.T.tolist())
                total += loss.norm_weight * max(0.0, sum(b * b for b in layer.bias.tolist()) - 1)
    return total


def test_the_adversarial_loss_equals_the_loop() -> None:
    g, W = projections()
    loss = ABier(3, DIM, norm_weight=0.7).double()
    assert loss.diversity_loss(g, W).item() == pytest.approx(slow_adversarial(loss, g, W), rel=1e-9)


def test_regressors_and_learners_pull_in_opposite_directions() -> None:
    """Against the same expression without the reversal: the regressors' gradient is the same, the learners' is its
    negative, and that of the norms is not."""
    g, W = projections()
    loss = ABier(3, DIM, norm_weight=0.5).double()
    parameters = list(loss.regressors.parameters())
    g.requires_grad_()
    W.requires_grad_()
    reversed_ = torch.autograd.grad(loss.diversity_loss(g, W), [g, W, *parameters])
    parts = g.split(loss.sizes, dim=1)
    plain = sum(0.5 * loss_penalty(part) for part in W.split(loss.sizes))
    for regressor, (p, q) in zip(loss.regressors, [(0, 1), (0, 2), (1, 2)], strict=True):
        plain = plain - (parts[p] * regressor(parts[q])).square().mean()
        for layer in (regressor[0], regressor[2]):
            plain = plain + 0.5 * (loss_penalty(layer.weight) + (layer.bias.square().sum() - 1).relu())
    expected = torch.autograd.grad(plain, [g, W, *parameters])
    torch.testing.assert_close(reversed_[0], -expected[0])
    for found, wanted in zip(reversed_[1:], expected[1:], strict=True):
        torch.testing.assert_close(found, wanted)


def loss_penalty(weight: Tensor) -> Tensor:
    return (weight.square().sum(dim=0) - 1).square().mean()


def test_reversing_twice_restores_the_gradient() -> None:
    x = torch.tensor([2.0], requires_grad=True)
    assert torch.autograd.grad(reverse(x) ** 2, x)[0].item() == -4
    assert torch.autograd.grad(reverse(reverse(x)) ** 2, x)[0].item() == 4


def test_a_regressor_that_is_zero_gives_nothing() -> None:
    g, W = projections()
    loss = ABier(3, DIM, norm_weight=0.0).double()
    for parameter in loss.regressors.parameters():
        parameter.data.zero_()
    g.requires_grad_()
    value = loss.diversity_loss(g, W)
    assert value == 0
    assert torch.autograd.grad(value, g)[0].abs().sum() == 0


def test_regressors_have_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in ABier(100, 512).parameters()) == 526_176
