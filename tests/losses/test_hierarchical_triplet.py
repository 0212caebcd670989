"""The hierarchical triplet loss against triple loops, its tree against merging level by level, and its batches."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import losses
from losses import hierarchical_triplet
from losses.contract import Allocated
from losses.hierarchical_triplet import closest, linked, summary
from losses.small import SmallView
from tests.losses.factories import Largest, defaults, random_batch, unit_rows

HierarchicalTriplet = losses.get("hierarchical_triplet")


def random_classes(seed: int, count: int = 7) -> tuple[Tensor, Tensor]:
    """Unit vectors and their classes, each with 2 to 5 images."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(2, 6, (count,), generator=generator)
    labels = torch.arange(count).repeat_interleave(sizes)
    centres = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(labels), 3, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(centres[labels] + 0.3 * noise), labels


def class_distances(x: Tensor, labels: Tensor) -> list[list[float]]:
    """The mean squared distance of images of two classes; of one class over its ordered pairs of two images: s."""
    rows, y = x.tolist(), labels.tolist()
    count = max(y) + 1
    table = []
    for p in range(count):
        row = []
        for q in range(count):
            pairs = [(i, j) for i in range(len(y)) for j in range(len(y)) if y[i] == p and y[j] == q and i != j]
            row.append(sum(math.dist(rows[i], rows[j]) ** 2 for i, j in pairs) / len(pairs))
        table.append(row)
    return table


def merged_level_by_level(d: list[list[float]], levels: int) -> tuple[list[list[float]], list[float]]:
    """d_H of all classes, by brute force; and d_l of every level."""
    count = len(d)
    d0 = sum(d[c][c] for c in range(count)) / count
    heights = [d0 + level * (4 - d0) / levels for level in range(levels + 1)]
    found = [[heights[-1]] * count for _ in range(count)]
    for height in reversed(heights):
        node = list(range(count))
        for p in range(count):
            for q in range(count):
                if p != q and d[p][q] < height:
                    node = [node[p] if other == node[q] else other for other in node]
        for p in range(count):
            for q in range(count):
                if node[p] == node[q]:
                    found[p][q] = height
    return found, heights


def grown(x: Tensor, labels: Tensor, **knobs: float) -> HierarchicalTriplet:  # type: ignore[valid-type]
    """The loss with the tree of these images, in float64."""
    loss = HierarchicalTriplet(int(labels.max()) + 1, x.shape[1], **knobs)
    means, loss.spread = summary(x, labels)
    loss.place, loss.heights = linked(means)
    return loss


def test_defaults_are_the_published_ones() -> None:
    assert defaults("hierarchical_triplet") == {"beta": 0.1, "levels": 16, "neighbours": 5}


@pytest.mark.parametrize("seed", range(3))
def test_means_give_the_distances_of_all_pairs_of_images(seed: int) -> None:
    x, labels = random_classes(seed)
    expected = torch.tensor(class_distances(x, labels), dtype=torch.float64)
    means, spread = summary(x, labels)
    found = 2 - 2 * means @ means.T
    others = ~torch.eye(len(found), dtype=torch.bool)
    torch.testing.assert_close(found[others], expected[others])
    torch.testing.assert_close(spread, expected.diagonal())


def test_a_class_of_one_image_has_the_mean_spread_of_the_others() -> None:
    x, labels = random_classes(0)
    alone = torch.cat([x, x[:1]]), torch.cat([labels, labels.max()[None] + 1])
    _, spread = summary(*alone)
    assert spread[-1] == spread[:-1].mean()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("levels", [3, 16])
def test_the_tree_is_what_merging_level_by_level_gives(seed: int, levels: int) -> None:
    x, labels = random_classes(seed)
    loss = grown(x, labels, levels=levels)
    expected, heights = merged_level_by_level(class_distances(x, labels), levels)
    classes = torch.arange(7)
    found = loss.tree_distances(classes)
    others = ~torch.eye(7, dtype=torch.bool)
    torch.testing.assert_close(found[others], torch.tensor(expected, dtype=x.dtype)[others])
    assert all(min(abs(value - height) for height in heights) < 1e-9 for value in found[others].tolist())
    assert torch.equal(found, found.T)
    for p, q, r in torch.combinations(classes, 3).tolist():
        assert found[p, r] <= max(found[p, q], found[q, r]) + 1e-12  # an ultrametric


def test_a_batch_looks_its_classes_up_in_any_order() -> None:
    x, labels = random_classes(1)
    loss = grown(x, labels)
    every = loss.tree_distances(torch.arange(7))
    some = torch.tensor([5, 2, 2, 6, 0])
    others = some[:, None] != some
    assert torch.equal(loss.tree_distances(some)[others], every[some][:, some][others])


def test_classes_at_equal_distances_have_margins_of_the_anchor_alone() -> None:
    x = torch.eye(4, dtype=torch.float64).repeat_interleave(2, 0)
    x[1::2, 0] += torch.tensor([0.1, 0.0, 0.0, 0.0])
    labels = torch.arange(4).repeat_interleave(2)
    loss = grown(torch.nn.functional.normalize(x), labels)
    margins = loss.margins(torch.arange(4))
    for row in range(4):
        others = margins[row][torch.arange(4) != row]
        assert others.max() - others.min() < 1e-12


def reference(x: Tensor, labels: Tensor, margins: list[list[float]]) -> tuple[float, int]:
    """Half the mean over all triplets, and how many there are."""
    rows, y = unit_rows(x), labels.tolist()
    terms = []
    for a in range(len(y)):
        for p in range(len(y)):
            for n in range(len(y)):
                if a != p and y[a] == y[p] and y[n] != y[a]:
                    d_p, d_n = (math.dist(rows[a], rows[other]) ** 2 for other in (p, n))
                    terms.append(max(0.0, d_p - d_n + margins[a][n]))
    return (sum(terms) / len(terms) / 2 if terms else 0.0), len(terms)


@pytest.mark.parametrize("seed", range(4))
def test_equals_the_triple_loop(seed: int) -> None:
    loss = grown(*random_classes(seed))
    x, y = random_batch(seed, classes=7, n=14)
    margins = loss.margins(y)
    expected, _ = reference(x, y, margins.tolist())
    assert loss(x, y).item() == pytest.approx(expected, rel=1e-9)
    assert torch.autograd.gradcheck(lambda x: loss(x, y), (x.requires_grad_(),))


def test_without_a_tree_it_is_half_the_loss_of_all_triplets() -> None:
    x, y = random_batch(1)
    whole = losses.get("triplet")(3, 4, margin=0.3, mining="all")(x, y)
    torch.testing.assert_close(HierarchicalTriplet(3, 4, beta=0.3)(x, y), whole / 2)


def test_with_margins_that_are_all_the_same_it_is_half_the_loss_of_all_triplets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """d_H - s = 0.4 everywhere."""
    x, y = random_batch(1)
    loss = grown(*random_classes(1), beta=0.3)
    loss.spread = torch.full_like(loss.spread, 0.2)
    monkeypatch.setattr(loss, "tree_distances", lambda labels: torch.full((len(labels),) * 2, 0.6, dtype=x.dtype))
    whole = losses.get("triplet")(7, 4, margin=0.3 + 0.4, mining="all")(x, y)
    torch.testing.assert_close(loss(x, y), whole / 2)


def test_a_full_batch_has_the_published_number_of_triplets() -> None:
    """Z = A(l'm, 2) A(t, 2) C(t, 1) for 4 classes of 3 images. With 11 of them at one point and one opposite, the terms
    are the margin or 4 more where that one is the positive of an anchor (18) or the anchor (0 more: its negatives are
    as far), and 0 where it is the negative (18)."""
    x, y = random_batch(0, n=12)[0], torch.arange(4).repeat_interleave(3)
    Z = 4 * 3 * 3 * 2 * 3
    assert reference(x, y, [[0.0] * 12] * 12)[1] == Z
    points = x[:1].repeat(12, 1)
    points[0] *= -1
    expected = (18 * 4.3 + (Z - 18 - 18) * 0.3) / (2 * Z)
    assert HierarchicalTriplet(4, 4, beta=0.3)(points, y).item() == pytest.approx(expected)


# --- memory, where there are very many classes ---


def test_the_tree_is_made_without_a_matrix_of_all_pairs_of_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hierarchical_triplet, "TILE", 32)
    means = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    with Largest() as largest:
        linked(means)
        closest(means, 4)
    assert largest.elements <= 32 * 300


def test_a_step_with_a_tree_of_11318_classes_takes_no_memory_worth_naming() -> None:
    """Stanford Online Products has so many; a matrix of all pairs of them has 512 MB."""
    loss = HierarchicalTriplet(11_318, 64)
    generator = torch.Generator().manual_seed(0)
    loss.place, loss.heights = torch.randperm(11_318, generator=generator), torch.rand(11_318, generator=generator)
    loss.spread = torch.rand(11_318, generator=generator)
    x = torch.randn(60, 64, generator=generator, requires_grad=True)
    with Allocated() as counted:
        loss(x, torch.arange(0, 11_318, 1_132).repeat_interleave(6)).backward()
    assert counted.bytes < 10e6


# --- the plan ---


def test_neighbours_are_the_closest_classes_and_never_itself() -> None:
    x, labels = random_classes(2)
    d = torch.tensor(class_distances(x, labels)).fill_diagonal_(math.inf)
    assert torch.equal(closest(summary(x, labels)[0], 3), d.argsort(dim=1)[:, :3])


def test_a_batch_holds_classes_with_their_closest() -> None:
    loss = HierarchicalTriplet(6, 5, neighbours=3)
    view = replace(SmallView.before(1), steps=30)
    near = closest(summary(torch.nn.functional.normalize(view.embed().double()), view.labels)[0], 2)
    families = [{first, *near[first].tolist()} for first in range(6)]
    seen = set()
    for indices, _ in loss.plan(1, view):
        classes = set(view.labels[indices].tolist())
        assert classes in families
        assert len(indices) == 6
        seen |= set(indices.tolist())
    assert seen == set(range(30))


def test_a_batch_is_filled_where_families_overlap() -> None:
    loss = HierarchicalTriplet(6, 5, neighbours=2)
    view = replace(SmallView.before(1), classes=5)
    for indices, _ in loss.plan(1, view):
        assert len(set(view.labels[indices].tolist())) == 5


def test_the_plan_makes_the_tree_of_the_embeddings() -> None:
    loss = HierarchicalTriplet(6, 5)
    view = SmallView.before(1)
    loss.plan(1, view)
    expected = grown(torch.nn.functional.normalize(view.embed().double()), view.labels)
    torch.testing.assert_close(
        loss.margins(torch.arange(6)).double(), expected.margins(torch.arange(6)), atol=1e-5, rtol=0
    )
