"""Lifted structure against a loop over pairs, by hand, and against pytorch-metric-learning."""

import math

import pytest
import torch
from torch import Tensor

import losses
from tests.losses.factories import defaults, random_batch

LiftedStructure = losses.get("lifted_structure")


def reference(x: Tensor, labels: Tensor, margin: float) -> float:
    """Song et al., eq. 4, pair by pair."""
    rows, y = x.tolist(), labels.tolist()
    total, pairs = 0.0, 0
    for i in range(len(y)):
        for j in range(i + 1, len(y)):
            if y[i] != y[j]:
                continue
            pairs += 1
            terms = [math.exp(margin - math.dist(rows[i], rows[k])) for k in range(len(y)) if y[k] != y[i]]
            terms += [math.exp(margin - math.dist(rows[j], rows[k])) for k in range(len(y)) if y[k] != y[j]]
            if terms:
                total += max(0.0, math.log(sum(terms)) + math.dist(rows[i], rows[j])) ** 2
    return total / (2 * pairs) if pairs else 0.0


def wide_batch(seed: int) -> tuple[Tensor, Tensor]:
    """Embeddings a few units apart: their lengths count here."""
    x, y = random_batch(seed)
    return 2 * x, y


def test_defaults_are_the_published_ones() -> None:
    assert defaults("lifted_structure") == {"margin": 1.0}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("margin", [0.2, 1.0, 5.0])
def test_equals_the_loop_over_pairs(seed: int, margin: float) -> None:
    x, y = wide_batch(seed)
    assert LiftedStructure(3, 4, margin=margin)(x, y).item() == pytest.approx(reference(x, y, margin), rel=1e-9)


def test_gradients_are_those_of_finite_differences() -> None:
    x, y = wide_batch(1)
    assert torch.autograd.gradcheck(lambda x: LiftedStructure(3, 4)(x, y), (x.requires_grad_(),))


def test_one_pair_by_hand() -> None:
    """A pair 5 apart; a negative 5 from one end, sqrt(10) from the other."""
    x, y = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 5.0]], dtype=torch.float64), torch.tensor([0, 0, 1])
    lifted = math.log(math.exp(1 - 5) + math.exp(1 - 10**0.5)) + 5
    assert LiftedStructure(2, 2)(x, y).item() == pytest.approx(lifted**2 / 2)


def test_a_negative_far_enough_leaves_no_loss() -> None:
    x, y = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 50.0]]), torch.tensor([0, 0, 1])
    assert LiftedStructure(2, 2)(x, y) == 0


@pytest.mark.parametrize("margin", [0.5, 1.0])
def test_agrees_with_pytorch_metric_learning_on_raw_embeddings(margin: float) -> None:
    pytest.importorskip("pytorch_metric_learning")
    from pytorch_metric_learning import distances, losses

    x, y = wide_batch(3)
    theirs = losses.LiftedStructureLoss(neg_margin=margin, distance=distances.LpDistance(normalize_embeddings=False))
    assert LiftedStructure(3, 4, margin=margin)(x, y).item() == pytest.approx(theirs(x, y).item(), rel=1e-9)
