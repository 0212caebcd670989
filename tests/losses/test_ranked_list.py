"""The ranked list loss against a loop, by hand, and against pytorch-metric-learning."""

import math

import pytest
import torch
from torch import Tensor

import losses
from tests.losses.factories import defaults, on_circle, random_batch, unit_rows

RankedList = losses.get("ranked_list")
KNOBS = ({}, {"T_n": 0.0}, {"T_p": 3.0, "balance": 0.3}, {"alpha": 1.4, "margin": 0.2})


def reference(loss: torch.nn.Module, x: Tensor, labels: Tensor, weights_of: Tensor | None = None) -> float:
    """Query by query; the weights are those of the embeddings `weights_of`, which default to x."""
    y = labels.tolist()

    def weighted(pairs: list[tuple[float, float]], T: float) -> float:
        total = sum(math.exp(T * before) for _, before in pairs)
        return sum(math.exp(T * before) * now for now, before in pairs) / total if pairs else 0.0

    rows, before = unit_rows(x), unit_rows(x if weights_of is None else weights_of)
    near = loss.alpha - loss.margin
    value = 0.0
    for i in range(len(y)):
        pull, push = [], []
        for j in range(len(y)):
            d, d_before = math.dist(rows[i], rows[j]), math.dist(before[i], before[j])
            if j != i and y[j] == y[i] and d_before > near:
                pull.append((d - near, d_before - near))
            if y[j] != y[i] and d_before < loss.alpha:
                push.append((loss.alpha - d, loss.alpha - d_before))
        value += (1 - loss.balance) * weighted(pull, loss.T_p) + loss.balance * weighted(push, loss.T_n)
    return value / len(y)


def test_defaults_are_the_published_ones() -> None:
    assert defaults("ranked_list") == {"alpha": 1.2, "margin": 0.4, "T_n": 10.0, "T_p": 0.0, "balance": 0.5}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("knobs", KNOBS)
def test_equals_the_loop(seed: int, knobs: dict[str, float]) -> None:
    x, y = random_batch(seed, classes=4)
    loss = RankedList(4, 4, **knobs)
    assert loss(x, y).item() == pytest.approx(reference(loss, x, y), rel=1e-9)


def test_gradients_are_those_of_finite_differences_where_the_weights_are_even() -> None:
    x, y = random_batch(1, classes=4)
    assert torch.autograd.gradcheck(lambda x: RankedList(4, 4, T_n=0.0)(x, y), (x.requires_grad_(),))


@pytest.mark.parametrize("knobs", KNOBS)
def test_weights_are_constants_to_the_gradient(knobs: dict[str, float]) -> None:
    x, y = random_batch(2, classes=4)
    loss = RankedList(4, 4, **knobs)
    (gradient,) = torch.autograd.grad(loss(x.requires_grad_(), y), x)
    step, x = 1e-6, x.detach()
    for i, k in ((0, 0), (3, 1), (7, 3)):
        move = torch.zeros_like(x)
        move[i, k] = step
        slope = (reference(loss, x + move, y, x) - reference(loss, x - move, y, x)) / (2 * step)
        assert gradient[i, k].item() == pytest.approx(slope, abs=1e-8)


def test_by_hand() -> None:
    """Opposite positives, 2 apart; from each a negative at 90 degrees, beyond 1.2, that does not count."""
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    y = torch.tensor([0, 0, 1])
    assert RankedList(2, 2)(x, y).item() == pytest.approx(2 * 0.5 * (2 - 0.8) / 3)
    # with alpha 1.5 it does: sqrt(2) away, and the negative itself has two of them
    near = 1.5 - math.sqrt(2)
    value = RankedList(2, 2, alpha=1.5)(x, y)
    assert value.item() == pytest.approx((2 * 0.5 * (2 - 1.1) + 3 * 0.5 * near) / 3)


def test_a_nearer_negative_weighs_more() -> None:
    """Negatives at 30 and 60 degrees from the only query with two of them: weights e^(10 (1.2 - d))."""
    x, y = on_circle(0, 30, 60), torch.tensor([0, 1, 1])
    d30, d60 = 2 * math.sin(math.radians(15)), 1.0
    w30, w60 = math.exp(10 * (1.2 - d30)), math.exp(10 * (1.2 - d60))
    first = (w30 * (1.2 - d30) + w60 * (1.2 - d60)) / (w30 + w60)
    expected = 0.5 * (first + (1.2 - d30) + (1.2 - d60)) / 3  # 30 and 60 are 0.52 apart: within the sphere
    assert RankedList(2, 2)(x, y).item() == pytest.approx(expected, rel=1e-9)


def test_identical_samples_of_two_classes_are_at_distance_zero_without_a_gradient() -> None:
    x = torch.ones(4, 3, requires_grad=True)
    value = RankedList(2, 3)(x, torch.tensor([0, 0, 1, 1]))
    assert value.item() == pytest.approx(0.5 * 1.2)
    assert not torch.autograd.grad(value, x)[0].any()


@pytest.mark.filterwarnings("ignore:Values of Tp or Tn")
@pytest.mark.parametrize("T_n", [0.0, 2.0, 10.0])
def test_equals_pytorch_metric_learning_but_for_its_small_constant(T_n: float) -> None:
    from pytorch_metric_learning import losses as pml

    x, y = random_batch(5, n=20, classes=4)
    expected = pml.RankedListLoss(margin=0.4, Tn=T_n, alpha=1.2)(x, y)
    torch.testing.assert_close(RankedList(4, 4, T_n=T_n)(x, y), expected, rtol=20e-5, atol=0)
