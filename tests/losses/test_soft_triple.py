"""SoftTriple against a loop, by hand, and against pytorch-metric-learning."""

import math

import pytest
import torch
from torch import Tensor

import losses
from tests.losses.factories import defaults, dot, random_batch, unit_rows

SoftTriple = losses.get("soft_triple")


def setup(**knobs: float) -> tuple[torch.nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    return SoftTriple(5, 4, **knobs).double(), torch.randn(9, 4, dtype=torch.float64), torch.randint(5, (9,))


def reference(loss: torch.nn.Module, x: Tensor, labels: Tensor) -> float:
    """The two equations of the docstring, sample by sample, centre by centre."""
    W = [unit_rows(of_class) for of_class in loss.centres]
    total = 0.0
    for row, y in zip(unit_rows(x), labels.tolist(), strict=True):
        logits = []
        for c, of_class in enumerate(W):
            s = [dot(row, centre) for centre in of_class]
            odds = [math.exp(v / loss.gamma) for v in s]
            soft = sum(o * v for o, v in zip(odds, s, strict=True)) / sum(odds)
            logits.append(loss.scale * (soft - (loss.margin if c == y else 0.0)))
        total += math.log(sum(math.exp(v) for v in logits)) - logits[y]
    C, K = len(W), len(W[0])
    distances = 0.0
    for of_class in W:
        for t in range(K):
            for s in range(t + 1, K):
                distances += math.sqrt(2 + 1e-5 - 2 * dot(of_class[s], of_class[t]))
    return total / len(labels) + (loss.tau * distances / (C * K * (K - 1)) if K > 1 else 0.0)


KNOBS = ({}, {"centres": 1}, {"centres": 3, "tau": 0.0}, {"centres": 2, "gamma": 0.5, "scale": 5.0, "margin": 0.3})


def test_defaults_are_the_published_ones() -> None:
    assert defaults("soft_triple") == {
        "centres": 10,
        "gamma": 0.1,
        "scale": 20.0,
        "margin": 0.01,
        "tau": 0.2,
        "lr_factor": 100.0,
    }


@pytest.mark.parametrize("knobs", KNOBS)
def test_equals_the_loop(knobs: dict[str, float]) -> None:
    loss, x, y = setup(**knobs)
    assert loss(x, y).item() == pytest.approx(reference(loss, x, y), rel=1e-9)


@pytest.mark.parametrize("knobs", KNOBS)
def test_gradients_are_those_of_finite_differences(knobs: dict[str, float]) -> None:
    loss, x, y = setup(**knobs)
    loss.centres.data *= 10  # finite differences of a direction want a vector that is long against the step
    assert torch.autograd.gradcheck(lambda x, _: loss(x, y), (x.requires_grad_(), loss.centres))


def test_with_one_centre_it_is_normalized_softmax_with_a_margin() -> None:
    loss, x, y = setup(centres=1, margin=0.0)
    plain = losses.get("normalized_softmax")(5, 4, temperature=1 / 20).double()
    plain.classifier.weight.data = loss.centres.data[:, 0]
    torch.testing.assert_close(loss(x, y), plain(x, y))


def test_by_hand() -> None:
    """Class 0 has centres at 0 and 90 degrees, class 1 two at 180; the sample is at 0."""
    loss = SoftTriple(2, 2, centres=2, gamma=1.0, scale=2.0, margin=0.1, tau=0.5).double()
    loss.centres.data = torch.tensor([[[3.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [-2.0, 0.0]]], dtype=torch.float64)
    right = math.e / (math.e + 1) - 0.1
    wrong = -1.0
    R = (math.sqrt(2 + 1e-5) + math.sqrt(1e-5)) / (2 * 2 * 1)
    expected = math.log(1 + math.exp(2 * (wrong - right))) + 0.5 * R
    value = loss(torch.tensor([[7.0, 0.0]], dtype=torch.float64), torch.tensor([0]))
    assert value.item() == pytest.approx(expected, rel=1e-9)


def test_centres_that_coincide_have_a_finite_gradient() -> None:
    loss = SoftTriple(3, 4)
    loss.centres.data = torch.ones_like(loss.centres)
    loss(random_batch(0, n=6)[0].float(), torch.tensor([0, 0, 1, 1, 2, 2])).backward()
    assert loss.centres.grad is not None
    assert loss.centres.grad.isfinite().all()


@pytest.mark.parametrize("centres", [2, 10])
def test_equals_pytorch_metric_learning(centres: int) -> None:
    from pytorch_metric_learning import losses as pml

    loss, x, y = setup(centres=centres)
    regularizer = pytest.importorskip("pytorch_metric_learning.regularizers").SparseCentersRegularizer(5, centres)
    theirs = pml.SoftTripleLoss(5, 4, centers_per_class=centres, weight_regularizer=regularizer, weight_reg_weight=0.2)
    theirs.fc.data = loss.centres.data.flatten(0, 1).T.clone()
    # their constant under the root is not 1e-5: at distances of about 1 a difference of 1e-5 / 2 at most
    torch.testing.assert_close(loss(x, y), theirs(x, y), rtol=0, atol=0.2 * 1e-5)
    loss.tau, theirs.weight_regularizer = 0.0, None
    value, expected = loss(x.requires_grad_(), y), theirs(x, y)
    torch.testing.assert_close(value, expected)
    ours, others = torch.autograd.grad(value, (x, loss.centres)), torch.autograd.grad(expected, (x, theirs.fc))
    torch.testing.assert_close(ours, (others[0], others[1].T.view_as(loss.centres)))


def test_starts_as_the_released_code_does() -> None:
    torch.manual_seed(0)
    centres = SoftTriple(20, 50).centres
    widest = 1 / math.sqrt(20 * 10)
    assert centres.shape == (20, 10, 50)
    assert 0.99 * widest < centres.abs().max().item() <= widest
    assert centres.var().item() == pytest.approx(widest**2 / 3, rel=0.05)
