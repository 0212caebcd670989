"""Semi-hard triplets against a triple loop, and by hand."""

import math

import pytest
import torch
from torch import Tensor

import losses

Triplet = losses.get("triplet")


def reference(x: Tensor, labels: Tensor, margin: float) -> float:
    """FaceNet, section 3.2, pair by pair."""
    rows = [[v / (math.hypot(*row) or 1.0) for v in row] for row in x.tolist()]
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


def random_batch(seed: int, n: int = 12, classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(classes, (n,), generator=generator)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("margin", [0.05, 0.2, 2.0])
def test_equals_the_triple_loop(seed: int, margin: float) -> None:
    x, y = random_batch(seed)
    assert Triplet(3, 4, margin=margin)(x, y).item() == pytest.approx(reference(x, y, margin), rel=1e-9)


def test_gradients_are_those_of_finite_differences() -> None:
    x, y = random_batch(1)
    assert torch.autograd.gradcheck(lambda x: Triplet(3, 4)(x, y), (x.requires_grad_(),))


def on_circle(*degrees: float) -> Tensor:
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], dim=1)


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
    lengths = torch.rand(len(x), 1, dtype=x.dtype) * 10 + 0.1
    torch.testing.assert_close(Triplet(3, 4)(x, y), Triplet(3, 4)(x * lengths, y))
