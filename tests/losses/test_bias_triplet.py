"""The bias triplet against loops over anchors and classes, and by hand."""

import math

import pytest
import torch
from torch import Tensor

import losses
from tests.losses.factories import defaults, on_circle, random_batch, random_lengths, unit_rows

BiasTriplet = losses.get("bias_triplet")


def reference(x: Tensor, labels: Tensor, margin: float, weight: float, anchors: bool) -> float:
    """Anchor by anchor, then class by class."""
    rows, y = unit_rows(x), labels.tolist()
    terms, selected = [], []
    for a in range(len(y)):
        positives = [(math.dist(rows[a], rows[p]), p) for p in range(len(y)) if p != a and y[p] == y[a]]
        negatives = [(math.dist(rows[a], rows[n]), n) for n in range(len(y)) if y[n] != y[a]]
        if positives and negatives:
            (far, p), (near, n) = max(positives), min(negatives)
            terms.append(max(0.0, far - near + margin))
            selected += [p, n, *([a] if anchors else [])]
    squares = []
    for label in {y[i] for i in selected}:
        everything = [i for i in range(len(y)) if y[i] == label]
        chosen = [i for i in selected if y[i] == label]
        mu, nu = (
            [sum(rows[i][d] for i in some) / len(some) for d in range(len(rows[0]))] for some in (everything, chosen)
        )
        squares.append(math.dist(mu, nu) ** 2)
    triplet = sum(terms) / len(terms) if terms else 0.0
    return triplet + weight * (sum(squares) / len(squares) if squares else 0.0)


def test_defaults_are_the_declared_reading() -> None:
    assert defaults("bias_triplet") == {"margin": 0.2, "weight": 1.0, "anchors": False}
    assert "our reading" in (BiasTriplet.__doc__ or "")
    assert "its calibration is not" in BiasTriplet.extras


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("margin", "weight", "anchors"), [(0.2, 1.0, False), (0.05, 3.0, True), (0.5, 0.0, False)])
def test_equals_the_loops(seed: int, margin: float, weight: float, anchors: bool) -> None:
    x, y = random_batch(seed)
    value = BiasTriplet(3, 4, margin=margin, weight=weight, anchors=anchors)(x, y)
    assert value.item() == pytest.approx(reference(x, y, margin, weight, anchors), rel=1e-9)


def test_without_the_term_it_is_batch_hard_on_plain_distances() -> None:
    """From 0 degrees, positive 60, negative 90; from 60, positive 0, negative 90; the negative is alone."""
    x, y = on_circle(0, 60, 90), torch.tensor([0, 0, 1])
    chord = {angle: 2 * math.sin(math.radians(angle) / 2) for angle in (30, 60, 90)}
    expected = (max(0.0, chord[60] - chord[90] + 0.2) + chord[60] - chord[30] + 0.2) / 2
    assert BiasTriplet(2, 2, weight=0.0)(x, y).item() == pytest.approx(expected)


def test_the_term_is_zero_where_every_image_was_selected_equally_often() -> None:
    x, y = random_batch(0)
    for often in (1, 3):
        assert BiasTriplet.match(x, y, torch.full((len(y),), often)).item() == pytest.approx(0, abs=1e-12)


def test_the_term_is_zero_where_two_images_of_a_class_are_selected_alike() -> None:
    """Each of two is its twin's positive. At 0, 40 and 340, 60 degrees each is also somebody's nearest negative; at
    0, 40 and 60, 100 the two in the middle are, twice."""
    y = torch.tensor([0, 0, 1, 1])
    whole, triplet = BiasTriplet(2, 2), BiasTriplet(2, 2, weight=0.0)
    alike, unlike = on_circle(0, 40, 340, 60), on_circle(0, 40, 60, 100)
    assert (whole(alike, y) - triplet(alike, y)).item() == pytest.approx(0, abs=1e-12)
    assert (whole(unlike, y) - triplet(unlike, y)).item() > 0.01


def test_the_term_by_hand() -> None:
    """A class at 0 and 2 of which 2 was selected twice: its mean is 1, theirs is 2. The other was not selected."""
    x = torch.tensor([[0.0], [2.0], [7.0]])
    assert BiasTriplet.match(x, torch.tensor([0, 0, 1]), torch.tensor([0, 2, 0])).item() == 1.0
    assert BiasTriplet.match(x, torch.tensor([0, 0, 1]), torch.tensor([1, 3, 5])).item() == pytest.approx(0.25 / 2)


def test_the_term_changes_neither_with_a_translation_nor_with_the_names_of_classes() -> None:
    x, y = random_batch(1)
    counts = torch.arange(len(y)) % 4
    value = BiasTriplet.match(x, y, counts)
    torch.testing.assert_close(BiasTriplet.match(x + torch.randn(4, dtype=x.dtype), y, counts), value)
    torch.testing.assert_close(BiasTriplet.match(x, 7 - y, counts), value)
    assert 0 <= BiasTriplet.match(torch.nn.functional.normalize(x), y, counts) <= 4


def test_its_gradient_passes_through_both_means() -> None:
    """Of a class at 0 and 2 of which 2 was selected: (mean - selected)^2 = (x0/2 - x1/2)^2."""
    x = torch.tensor([[0.0], [2.0]], requires_grad=True)
    BiasTriplet.match(x, torch.tensor([0, 0]), torch.tensor([0, 1])).backward()
    assert x.grad is not None
    assert x.grad.flatten().tolist() == [-1.0, 1.0]


def test_the_length_of_an_embedding_does_not_matter() -> None:
    x, y = random_batch(2)
    torch.testing.assert_close(BiasTriplet(3, 4)(x, y), BiasTriplet(3, 4)(x * random_lengths(len(x)), y))
