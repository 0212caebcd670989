"""N-pairs against a loop over pairs, by hand, and against pytorch-metric-learning's NT-Xent."""

import math

import pytest
import torch
from torch import Tensor

import losses
from tests.losses.factories import defaults, dot, random_batch

NPairs = losses.get("n_pairs")


def reference(x: Tensor, labels: Tensor, l2: float) -> float:
    """Sohn's (N+1)-tuplet loss for each ordered pair, all other classes for negatives, plus the penalty."""
    rows, y = x.tolist(), labels.tolist()
    terms = []
    for a in range(len(y)):
        for p in range(len(y)):
            if p != a and y[p] == y[a]:
                exponents = [dot(rows[a], rows[n]) - dot(rows[a], rows[p]) for n in range(len(y)) if y[n] != y[a]]
                terms.append(math.log(1 + sum(math.exp(e) for e in exponents)))
    return (sum(terms) / len(terms) if terms else 0.0) + l2 * sum(dot(row, row) for row in rows) / len(rows)


def test_defaults_are_the_published_ones() -> None:
    assert defaults("n_pairs") == {"l2": 0.02}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("l2", [0.0, 0.02, 1.0])
def test_equals_the_loop_over_pairs(seed: int, l2: float) -> None:
    x, y = random_batch(seed)
    assert NPairs(3, 4, l2=l2)(x, y).item() == pytest.approx(reference(x, y, l2), rel=1e-9)


def test_gradients_are_those_of_finite_differences() -> None:
    x, y = random_batch(1)
    assert torch.autograd.gradcheck(lambda x: NPairs(3, 4)(x, y), (x.requires_grad_(),))


def test_one_pair_by_hand() -> None:
    """a.p = 0, a.n = 3, p.n = 2; squared lengths 1, 4 and 10."""
    x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]]), torch.tensor([0, 0, 1])
    expected = (math.log(1 + math.exp(3)) + math.log(1 + math.exp(2))) / 2
    assert NPairs(2, 2, l2=0.0)(x, y).item() == pytest.approx(expected)
    assert NPairs(2, 2)(x, y).item() == pytest.approx(expected + 0.02 * 5)


def test_without_negatives_the_penalty_is_left() -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    for y in (torch.tensor([0, 0]), torch.tensor([0, 1])):
        assert NPairs(2, 2)(x, y).item() == pytest.approx(0.02 * 2.5)


def test_similarities_far_apart_keep_the_largest() -> None:
    """exp(1000) is no number, but the loss of a negative 1000 nearer than the positive is 1000."""
    x = torch.tensor([[100.0, 0.0], [0.0, 1.0], [10.0, 0.0], [-10.0, 0.0]])
    pairs = [1000.0, math.log(3)]  # from 1, all similarities are 0
    penalty = 0.02 * (10_000 + 1 + 100 + 100) / 4
    assert NPairs(3, 2)(x, torch.tensor([0, 0, 1, 2])).item() == pytest.approx(sum(pairs) / 2 + penalty)


def test_agrees_with_nt_xent_of_raw_dot_products() -> None:
    pytest.importorskip("pytorch_metric_learning")
    from pytorch_metric_learning import distances, losses

    x, y = random_batch(3)
    raw = distances.DotProductSimilarity(normalize_embeddings=False)
    theirs = losses.NTXentLoss(temperature=1, distance=raw)(x, y)
    assert NPairs(3, 4, l2=0.0)(x, y).item() == pytest.approx(theirs.item(), rel=1e-9)
