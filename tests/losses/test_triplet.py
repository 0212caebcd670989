"""Semi-hard, batch-hard and all triplets against triple loops, and by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import losses
from tests.losses.factories import defaults, on_circle, random_batch, random_lengths, unit_rows

Triplet = losses.get("triplet")


def reference(x: Tensor, labels: Tensor, margin: float) -> float:
    """FaceNet, section 3.2, pair by pair."""
    rows = unit_rows(x)
    y = labels.tolist()

    def d2(i: int, j: int) -> float:
        return sum((a - b) ** 2 for a, b in zip(rows[i], rows[j], strict=True))

    terms = []
    for a in range(len(y)):
        others = [d2(a, n) for n in range(len(y)) if y[n] != y[a]]
        for p in range(len(y)):
            if p == a or y[p] != y[a] or not others:
                continue
            farther = [d for d in others if d > d2(a, p)]
            negative = min(farther) if farther else max(others)
            terms.append(max(0.0, d2(a, p) - negative + margin))
    return sum(terms) / len(terms) if terms else 0.0


def test_defaults_are_the_published_ones() -> None:
    assert defaults("triplet") == {"margin": 0.2, "mining": "semihard"}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("margin", [0.05, 0.2, 2.0])
def test_equals_the_triple_loop(seed: int, margin: float) -> None:
    x, y = random_batch(seed)
    assert Triplet(3, 4, margin=margin)(x, y).item() == pytest.approx(reference(x, y, margin), rel=1e-9)


def test_gradients_are_those_of_finite_differences() -> None:
    x, y = random_batch(1)
    assert torch.autograd.gradcheck(lambda x: Triplet(3, 4)(x, y), (x.requires_grad_(),))


def d2(degrees: float) -> float:
    return 2 - 2 * math.cos(math.radians(degrees))


def test_takes_the_closest_negative_beyond_the_positive_not_the_hardest() -> None:
    """Anchor 0, positive 40, negatives 10 (too hard) and 60 (semi-hard); from 40 neither is beyond the positive."""
    x, y = on_circle(0, 40, 10, 60), torch.tensor([0, 0, 1, 2])
    from_0 = max(0.0, d2(40) - d2(60) + 0.2)
    from_40 = max(0.0, d2(40) - d2(30) + 0.2)  # nothing is farther than 40: the farthest, 10 (at 30 degrees)
    assert Triplet(3, 2)(x, y).item() == pytest.approx((from_0 + from_40) / 2)


def test_takes_the_farthest_negative_where_none_is_beyond_the_positive() -> None:
    x, y = on_circle(0, 90, 20, 30), torch.tensor([0, 0, 1, 1])
    from_0, from_90 = d2(90) - d2(30) + 0.2, d2(90) - d2(70) + 0.2
    pair = [max(0.0, d2(10) - d2(nearest) + 0.2) for nearest in (20, 30)]
    expected = (from_0 + from_90 + sum(pair)) / 4
    assert Triplet(2, 2)(x, y).item() == pytest.approx(expected)


def test_a_negative_exactly_as_far_as_the_positive_is_not_semi_hard() -> None:
    """From 0 degrees the positive at 90 and the negative at -90 are equally far; 180 is beyond."""
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [-1.0, 0.0]])
    y = torch.tensor([0, 0, 1, 2])
    # from 0: n = 180 at d2 4 (not -90 at 2); from 90: n = -90 at d2 4 (not 180 at 2): 2 - 4 + 2.5 each
    assert Triplet(3, 2, margin=2.5)(x, y).item() == pytest.approx(0.5)


def test_the_length_of_an_embedding_does_not_matter() -> None:
    x, y = random_batch(2)
    lengths = random_lengths(len(x))
    torch.testing.assert_close(Triplet(3, 4)(x, y), Triplet(3, 4)(x * lengths, y))


def mined_reference(x: Tensor, labels: Tensor, margin: float, mining: str) -> float:
    """Hermans et al., equations 5 and 6, as means."""
    rows = unit_rows(x)
    y = labels.tolist()
    terms = []
    for a in range(len(y)):
        d = [sum((u - v) ** 2 for u, v in zip(rows[a], row, strict=True)) for row in rows]
        positives = [d[p] for p in range(len(y)) if p != a and y[p] == y[a]]
        negatives = [d[n] for n in range(len(y)) if y[n] != y[a]]
        if mining == "hard" and positives and negatives:
            terms.append(max(0.0, max(positives) - min(negatives) + margin))
        if mining == "all":
            terms += [max(0.0, p - n + margin) for p in positives for n in negatives]
    return sum(terms) / len(terms) if terms else 0.0


@pytest.mark.parametrize("mining", ["hard", "all"])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("margin", "classes"), [(0.05, 3), (0.2, 2), (2.0, 8)])
def test_other_minings_equal_the_triple_loop(mining: str, seed: int, margin: float, classes: int) -> None:
    x, y = random_batch(seed, classes=classes)
    value = Triplet(classes, 4, margin=margin, mining=mining)(x, y)
    assert value.item() == pytest.approx(mined_reference(x, y, margin, mining), rel=1e-9)


@pytest.mark.parametrize("mining", ["hard", "all"])
def test_gradients_of_other_minings_are_those_of_finite_differences(mining: str) -> None:
    x, y = random_batch(1)
    assert torch.autograd.gradcheck(lambda x: Triplet(3, 4, mining=mining)(x, y), (x.requires_grad_(),))


def test_hard_takes_the_farthest_positive_and_the_closest_negative() -> None:
    """From 0 degrees: positives 30 and 50, negatives 40 and 90; the negatives are alone in their classes."""
    x, y = on_circle(0, 30, 50, 40, 90), torch.tensor([0, 0, 0, 1, 2])
    from_0, from_30, from_50 = d2(50) - d2(40) + 0.2, d2(30) - d2(10) + 0.2, d2(50) - d2(10) + 0.2
    assert Triplet(3, 2, mining="hard")(x, y).item() == pytest.approx((from_0 + from_30 + from_50) / 3)


def test_all_counts_triplets_without_a_loss() -> None:
    """From 0 degrees, positive 20: 30 has a loss, 170 none. From 20: 30 has, 170 has none. The negatives are alone."""
    x, y = on_circle(0, 20, 30, 170), torch.tensor([0, 0, 1, 2])
    losses_of = [d2(20) - d2(30) + 0.2, d2(20) - d2(10) + 0.2]
    assert Triplet(3, 2, mining="all")(x, y).item() == pytest.approx(sum(losses_of) / 4)


@pytest.mark.parametrize("mining", ["semihard", "hard", "all"])
def test_a_batch_without_triplets_gives_zero(mining: str) -> None:
    x = random_batch(0, n=4, dim=3)[0].requires_grad_()
    for y in (torch.zeros(4, dtype=torch.long), torch.arange(4)):
        value = Triplet(4, 3, mining=mining)(x, y)
        (gradient,) = torch.autograd.grad(value, x)
        assert value == 0
        assert not gradient.any()


@pytest.mark.parametrize("mining", ["semihard", "hard", "all"])
@pytest.mark.parametrize("degenerate", ["identical", "zero rows", "huge", "tiny", "nan"])
def test_every_mining_stands_degenerate_batches(mining: str, degenerate: str) -> None:
    x, y = random_batch(0)
    x = x.float()
    match degenerate:
        case "identical":
            x = x[:1].expand_as(x).clone()
        case "zero rows":
            x[[0, 3, 4]] = 0
        case "huge":
            x *= 1e15
        case "tiny":
            x *= 1e-15
        case "nan":
            x[[1, 2]] = torch.nan
    value = Triplet(3, 4, mining=mining)(x.requires_grad_(), y)
    (gradient,) = torch.autograd.grad(value, x)
    assert value.isfinite() == (degenerate != "nan")
    assert value.isnan() or value >= 0
    assert gradient.isfinite().all() == (degenerate != "nan")


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation returns."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for item in result if isinstance(result, tuple) else (result,):
            if isinstance(item, Tensor):
                self.elements = max(self.elements, item.numel())
        return result


@pytest.mark.parametrize("mining", ["semihard", "hard", "all"])
def test_makes_no_tensor_of_triplets(mining: str) -> None:
    x, y = random_batch(0, n=64, dim=8)[0].requires_grad_(), torch.arange(64) % 2
    with Largest() as seen:
        Triplet(2, 8, mining=mining)(x, y).backward()
    assert seen.elements == 64 * 64


@pytest.mark.parametrize("mining", ["hard", "all"])
def test_other_minings_equal_pytorch_metric_learning_given_its_square_and_mean(mining: str) -> None:
    from pytorch_metric_learning import losses as pml

    distance = pytest.importorskip("pytorch_metric_learning.distances").LpDistance(power=2)
    mean = pytest.importorskip("pytorch_metric_learning.reducers").MeanReducer()
    miner = pytest.importorskip("pytorch_metric_learning.miners").BatchHardMiner(distance=distance)
    x, y = random_batch(2, n=20)
    triplets = miner(x, y) if mining == "hard" else None
    expected = pml.TripletMarginLoss(margin=0.2, distance=distance, reducer=mean)(x, y, triplets)
    torch.testing.assert_close(Triplet(3, 4, mining=mining)(x, y), expected)
