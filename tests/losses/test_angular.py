"""The angular loss against a triple loop, by hand, and against pytorch-metric-learning."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import losses
from harness import config
from harness.spec import UserError
from losses.base import unit
from tests.losses.factories import defaults, dot, on_circle, random_batch, random_lengths, unit_rows

Angular = losses.get("angular")


def reference(x: Tensor, labels: Tensor, alpha: float, weight: float, n_pairs: str = "raw") -> float:
    """Wang et al., section 3.3, triplet by triplet."""
    rows = unit_rows(x)
    raw = x.tolist() if n_pairs == "raw" else rows
    y = labels.tolist()
    t = math.tan(math.radians(alpha)) ** 2
    total, pairs = 0.0, 0
    for a in range(len(y)):
        for p in range(len(y)):
            if p == a or y[p] != y[a]:
                continue
            pairs += 1
            angular, n_pair = 1.0, 1.0
            for n in range(len(y)):
                if y[n] != y[a]:
                    middle = [u + v for u, v in zip(rows[a], rows[p], strict=True)]
                    angular += math.exp(4 * t * dot(middle, rows[n]) - 2 * (1 + t) * dot(rows[a], rows[p]))
                    n_pair += math.exp(dot(raw[a], raw[n]) - dot(raw[a], raw[p]))
            total += math.log(n_pair) + weight * math.log(angular)
    return total / pairs if pairs else 0.0


def test_defaults_are_the_published_ones() -> None:
    assert defaults("angular") == {"alpha": 45.0, "weight": 2.0, "n_pairs": "raw"}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("n_pairs", ["raw", "unit"])
@pytest.mark.parametrize(("alpha", "weight"), [(36.0, 1.0), (45.0, 2.0), (55.0, 0.5), (70.0, 2.0)])
def test_equals_the_triple_loop(seed: int, alpha: float, weight: float, n_pairs: str) -> None:
    x, y = random_batch(seed)
    ours = Angular(3, 4, alpha=alpha, weight=weight, n_pairs=n_pairs)(x, y).item()
    assert ours == pytest.approx(reference(x, y, alpha, weight, n_pairs), rel=1e-9)


@pytest.mark.parametrize("n_pairs", ["raw", "unit"])
def test_gradients_are_those_of_finite_differences(n_pairs: str) -> None:
    x, y = random_batch(1)
    assert torch.autograd.gradcheck(lambda x: Angular(3, 4, n_pairs=n_pairs)(x, y), (x.requires_grad_(),))


def test_one_pair_by_hand() -> None:
    """At 45 degrees, t = 1: positives at 0 and 60 degrees (cosine 1/2), the negative opposite the first."""
    x, y = on_circle(0, 60, 180), torch.tensor([0, 0, 1])
    angular = math.log(1 + math.exp(4 * (-1 - 1 / 2) - 4 / 2))  # the same from both ends
    n_pair = (math.log(1 + math.exp(-1 - 1 / 2)) + math.log(1 + math.exp(-1 / 2 - 1 / 2))) / 2
    assert Angular(2, 2)(x, y).item() == pytest.approx(n_pair + 2 * angular)


def test_opposite_extremes_keep_float32s_precision_at_the_steepest_angle() -> None:
    """Each positive has a negative on it and the other one's opposite it: the largest factors never meet."""
    x, y = on_circle(0, 180, 0, 180), torch.tensor([0, 0, 1, 2])
    loss = Angular(3, 2, alpha=70.0)
    torch.testing.assert_close(loss(x.float(), y), loss(x, y).float(), rtol=1e-5, atol=0)
    assert loss(x, y).item() == pytest.approx(reference(x, y, 70.0, 2.0), rel=1e-9)


def test_an_angle_beyond_the_steepest_is_refused() -> None:
    with pytest.raises(UserError, match=r"angular.alpha=89: must be a number > 0 and <= 70"):
        config.loss("angular").knobs["alpha"].parse("89")


def test_the_length_of_an_embedding_matters_to_the_n_pairs_term_alone() -> None:
    x, y = random_batch(2)
    longer = x * random_lengths(len(x))
    same = losses.get("n_pairs")(3, 4, l2=0.0)
    difference = Angular(3, 4)(longer, y) - Angular(3, 4)(x, y)
    torch.testing.assert_close(difference, same(longer, y) - same(x, y))
    unit_length = Angular(3, 4, n_pairs="unit")
    torch.testing.assert_close(unit_length(x, y), unit_length(longer, y))


def test_a_trial_of_version_1_means_unit_length() -> None:
    """Its record has no such knob: the command that it prints asks for unit length."""
    assert losses.facts("angular").added == Angular.added == {"n_pairs": "unit"}
    assert Angular.version == 2


@pytest.mark.parametrize("alpha", [36, 45])
def test_agrees_with_pytorch_metric_learning(alpha: int) -> None:
    """Its AngularLoss is the same on unit-length embeddings, its NTXentLoss on raw ones."""
    pytest.importorskip("pytorch_metric_learning")
    from pytorch_metric_learning import distances, losses

    x, y = random_batch(3)
    distance = distances.DotProductSimilarity(normalize_embeddings=False)
    n_pair = losses.NTXentLoss(temperature=1, distance=distance)
    theirs = n_pair(x, y) + 2 * losses.AngularLoss(alpha)(unit(x), y)
    assert Angular(3, 4, alpha=float(alpha))(x, y).item() == pytest.approx(theirs.item(), rel=1e-6)


@pytest.mark.parametrize("images", [4, 128])
def test_what_is_kept_for_the_gradient_grows_with_pairs_not_with_triplets(images: int) -> None:
    """512 images: 128 to a class make 65,024 ordered pairs, 25 million triplets."""
    x = torch.randn(512, 512, generator=torch.Generator().manual_seed(0)).requires_grad_()
    kept = 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.numel() * tensor.element_size()
        return tensor

    def give(tensor: Any) -> Any:
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, give):
        value = Angular(1_000, 512)(x, torch.arange(512) // images)
    value.backward()
    assert kept < 64e6
