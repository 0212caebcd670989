"""The multi-similarity loss against a loop, by hand, and against pytorch-metric-learning."""

import math

import pytest
import torch
from torch import Tensor

import losses
from tests.losses.factories import defaults, dot, on_circle, random_batch, unit_rows

MultiSimilarity = losses.get("multi_similarity")


def reference(loss: torch.nn.Module, x: Tensor, labels: Tensor) -> float:
    """Mining, then weighting, anchor by anchor."""
    rows = unit_rows(x)
    y = labels.tolist()

    def s(i: int, j: int) -> float:
        return dot(rows[i], rows[j])

    total = 0.0
    for i in range(len(y)):
        positives = [s(i, j) for j in range(len(y)) if j != i and y[j] == y[i]]
        negatives = [s(i, j) for j in range(len(y)) if y[j] != y[i]]
        if not positives or not negatives:
            continue
        hard_positives = [v for v in positives if v < max(negatives) + loss.epsilon]
        hard_negatives = [v for v in negatives if v > min(positives) - loss.epsilon]
        total += math.log(1 + sum(math.exp(-loss.alpha * (v - loss.base)) for v in hard_positives)) / loss.alpha
        total += math.log(1 + sum(math.exp(loss.beta * (v - loss.base)) for v in hard_negatives)) / loss.beta
    return total / len(y)


def test_defaults_are_the_published_ones() -> None:
    assert defaults("multi_similarity") == {"alpha": 2.0, "beta": 50.0, "base": 0.5, "epsilon": 0.1}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("knobs", [{}, {"base": 1.0}, {"alpha": 5.0, "beta": 20.0, "epsilon": 0.5}, {"epsilon": 0.0}])
def test_equals_the_loop(seed: int, knobs: dict[str, float]) -> None:
    x, y = random_batch(seed, classes=4)
    loss = MultiSimilarity(4, 4, **knobs)
    assert loss(x, y).item() == pytest.approx(reference(loss, x, y), rel=1e-9)


def test_gradients_are_those_of_finite_differences() -> None:
    x, y = random_batch(1, classes=4)
    assert torch.autograd.gradcheck(lambda x: MultiSimilarity(4, 4)(x, y), (x.requires_grad_(),))


def test_by_hand() -> None:
    """A positive and a negative, both at right angles to the anchor, and to each other in the opposite direction."""
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)
    first = math.log(1 + math.exp(1)) / 2 + math.log(1 + math.exp(-25)) / 50
    second = 0.0  # its positive at 0 is closer than its negative at -1 by more than epsilon: no pairs
    third = 0.0  # alone in its class
    value = MultiSimilarity(2, 2)(x, torch.tensor([0, 0, 1]))
    assert value.item() == pytest.approx((first + second + third) / 3, rel=1e-12)


def test_a_pair_exactly_at_the_mining_margin_is_left_out() -> None:
    """Positive at cosine 0.5 (60 degrees), negative at 0: with epsilon 0.5 neither is within it, with 0.51 both are."""
    x, y = on_circle(0, 60, 90), torch.tensor([0, 0, 1])
    # the second anchor's negative, at 30 degrees, is closer than its positive: mined whatever epsilon is
    second = math.log(1 + math.exp(0)) / 2 + math.log(1 + math.exp(50 * (math.cos(math.pi / 6) - 0.5))) / 50
    first = math.log(1 + math.exp(0)) / 2 + math.log(1 + math.exp(-25)) / 50
    assert MultiSimilarity(2, 2, epsilon=0.499)(x, y).item() == pytest.approx(second / 3, rel=1e-12)
    assert MultiSimilarity(2, 2, epsilon=0.501)(x, y).item() == pytest.approx((first + second) / 3, rel=1e-12)


def test_the_mining_margin_itself_is_outside() -> None:
    """Axes: the first anchor's positive at cosine 1, its negative at 0, so with epsilon 1 exactly at the margin."""
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    assert MultiSimilarity(2, 2, epsilon=1.0)(x, torch.tensor([0, 0, 1])) == 0
    assert MultiSimilarity(2, 2, epsilon=1.01)(x, torch.tensor([0, 0, 1])) > 0


def test_without_pairs_it_is_zero_and_so_is_the_gradient() -> None:
    x = random_batch(0, n=5, dim=3)[0].requires_grad_()
    for y in (torch.zeros(5, dtype=torch.long), torch.arange(5)):
        value = MultiSimilarity(5, 3)(x, y)
        (gradient,) = torch.autograd.grad(value, x)
        assert value == 0
        assert not gradient.any()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("classes", [3, 9])
def test_equals_pytorch_metric_learning(seed: int, classes: int) -> None:
    from pytorch_metric_learning import losses as pml

    miners = pytest.importorskip("pytorch_metric_learning.miners")
    x, y = random_batch(seed, n=20, classes=classes)
    theirs = x.clone().requires_grad_()
    expected = pml.MultiSimilarityLoss()(theirs, y, miners.MultiSimilarityMiner()(theirs, y))
    ours = x.clone().requires_grad_()
    value = MultiSimilarity(classes, 4)(ours, y)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(torch.autograd.grad(value, ours), torch.autograd.grad(expected, theirs))
