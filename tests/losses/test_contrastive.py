"""Contrastive loss against a loop over pairs, by hand, and against pytorch-metric-learning's terms."""

import math

import pytest
import torch
from torch import Tensor

import losses
from tests.losses.factories import defaults, on_circle, random_batch, random_lengths, unit_rows

Contrastive = losses.get("contrastive")


def reference(x: Tensor, labels: Tensor, margin: float) -> float:
    """Hadsell et al., eq. 4, pair by pair."""
    rows = unit_rows(x)
    y = labels.tolist()
    terms = []
    for i in range(len(y)):
        for j in range(i):
            apart = math.dist(rows[i], rows[j])
            terms.append(apart**2 / 2 if y[i] == y[j] else max(0.0, margin - apart) ** 2 / 2)
    return sum(terms) / len(terms) if terms else 0.0


def test_defaults_are_the_published_ones() -> None:
    assert defaults("contrastive") == {"margin": 1.0}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("margin", [0.2, 1.0, 1.4])
def test_equals_the_loop_over_pairs(seed: int, margin: float) -> None:
    x, y = random_batch(seed)
    assert Contrastive(3, 4, margin=margin)(x, y).item() == pytest.approx(reference(x, y, margin), rel=1e-9)


def test_gradients_are_those_of_finite_differences() -> None:
    x, y = random_batch(1)
    assert torch.autograd.gradcheck(lambda x: Contrastive(3, 4, margin=1.3)(x, y), (x.requires_grad_(),))


def test_three_pairs_by_hand() -> None:
    """60 degrees are a distance of 1, 180 of 2, 120 of sqrt(3)."""
    x, y = on_circle(0, 60, 180), torch.tensor([0, 0, 1])
    expected = (1 / 2 + (2.5 - 2) ** 2 / 2 + (2.5 - 3**0.5) ** 2 / 2) / 3
    assert Contrastive(2, 2, margin=2.5)(x, y).item() == pytest.approx(expected)


def test_negatives_beyond_the_margin_and_equal_positives_cost_nothing() -> None:
    assert Contrastive(2, 2)(on_circle(10, 10, 80), torch.tensor([0, 0, 1])).item() == pytest.approx(0)


def test_the_length_of_an_embedding_does_not_matter() -> None:
    x, y = random_batch(2)
    lengths = random_lengths(len(x))
    torch.testing.assert_close(Contrastive(3, 4)(x, y), Contrastive(3, 4)(x * lengths, y))


@pytest.mark.parametrize("margin", [0.7, 1.2])
def test_is_half_the_mean_square_of_the_terms_of_pytorch_metric_learning(margin: float) -> None:
    pytest.importorskip("pytorch_metric_learning")
    from pytorch_metric_learning import losses, reducers

    x, y = random_batch(3)
    theirs = losses.ContrastiveLoss(neg_margin=margin, reducer=reducers.DoNothingReducer())(x, y)
    terms = torch.cat([theirs["pos_loss"]["losses"], theirs["neg_loss"]["losses"]])
    assert len(terms) == len(y) * (len(y) - 1)  # ordered pairs
    torch.testing.assert_close(Contrastive(3, 4, margin=margin)(x, y), terms.square().mean() / 2)
