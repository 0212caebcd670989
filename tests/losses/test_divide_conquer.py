"""Divide and Conquer: which slice learns, clusters and their numbers, and the batches of an epoch."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import losses
from losses import divide_conquer
from losses.base import Batch, distances, unit
from losses.divide_conquer import JOINT, Slices, batches, cluster, kmeans, matched, within
from losses.small import SmallTrunk, SmallView
from tests.losses.factories import Largest, defaults, random_batch, unit_rows

DivideConquer, Margin = losses.get("divide_conquer"), losses.get("margin")


def batch(x: Tensor, y: Tensor, tag: int) -> Batch:
    return Batch(x, y, torch.arange(len(y)), tag)


def value(loss: object, *arguments: object) -> Tensor:
    torch.manual_seed(0)  # negatives are drawn
    return loss(*arguments)  # type: ignore[operator]


def test_defaults_are_the_declared_ones() -> None:
    assert defaults("divide_conquer") == {"clusters": 4, "margin": 0.2, "beta": 1.2, "regroup": 2, "joint": 0.4}
    assert DivideConquer.head_dim == 128


def test_one_cluster_is_the_margin_loss() -> None:
    x, y = random_batch(0, dim=8)
    loss = DivideConquer(3, 8, clusters=1)
    assert torch.equal(value(loss, x, y, batch(x, y, 0)), value(Margin(3, 8, betas="fixed"), x, y))


def reference(x: Tensor, y: list[int], negatives: list[list[int]], beta: float, margin: float = 0.2) -> float:
    """The margin loss of a slice, pair by pair, given the negative of each pair."""
    rows, terms = unit_rows(x), []
    for a in range(len(y)):
        for p in range(len(y)):
            if a != p and y[a] == y[p]:
                terms.append(max(0.0, math.dist(rows[a], rows[p]) - beta + margin))
                terms.append(max(0.0, beta - math.dist(rows[a], rows[negatives[a][p]]) + margin))
    active = [term for term in terms if term > 0]
    return sum(active) / len(active) if active else 0.0


@pytest.mark.parametrize("tag", [0, 1, 2, 3, JOINT])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_loop(seed: int, tag: int) -> None:
    x, y = random_batch(seed, dim=12)
    loss = DivideConquer(3, 12, clusters=4, beta=1.25).double()
    part = x[:, 3 * tag : 3 * tag + 3]
    if tag == JOINT:  # each slice of unit length, side by side
        slices = zip(*map(unit_rows, x.split(3, dim=1)), strict=True)
        part = torch.tensor([[number for part in row for number in part] for row in slices], dtype=x.dtype)
    torch.manual_seed(0)
    negatives = loss.slices[tag].draw(distances(unit(part)), y).tolist()
    expected = reference(part, y.tolist(), negatives, beta=1.25)
    assert value(loss, x, y, batch(x, y, tag)).item() == pytest.approx(expected, rel=1e-9)


def test_a_slice_is_the_margin_loss_in_its_own_dimensions() -> None:
    x, y = random_batch(1, dim=8)
    loss = DivideConquer(3, 8, clusters=4)
    for tag in range(4):
        expected = value(Margin(3, 2, betas="fixed"), x[:, 2 * tag : 2 * tag + 2], y)
        assert torch.equal(value(loss, x, y, batch(x, y, tag)), expected)


def test_negatives_are_drawn_where_they_have_a_loss() -> None:
    """Of an anchor's negatives at 1 and 1.9, both have a loss if beta + margin is 2; the far one has none at 1.4."""
    drawn = torch.tensor([[0.0, 0.0, 1.0, 1.9], [0.0, 0.0, 1.0, 1.9], [1.0, 1.0, 0.0, 0.0], [1.9, 1.9, 0.0, 0.0]])
    labels = torch.tensor([0, 0, 1, 1])
    torch.manual_seed(0)
    seen = {
        beta: {int(DivideConquer(2, 8, beta=beta, margin=0.2).slices[0].draw(drawn, labels)[0, 1]) for _ in range(200)}
        for beta in (1.2, 1.8)
    }
    assert seen == {1.2: {2}, 1.8: {2, 3}}
    assert {part.nonzero_cutoff for part in DivideConquer(2, 8).slices} == {1.4}


def test_a_batch_of_a_cluster_trains_its_slice_alone_and_a_joint_one_all() -> None:
    x, y = random_batch(2, dim=8)
    x.requires_grad_()
    loss = DivideConquer(3, 8, clusters=4)
    (gradient,) = torch.autograd.grad(value(loss, x, y, batch(x, y, 2)), x)
    assert gradient[:, 4:6].abs().sum() > 0
    assert gradient[:, :4].abs().sum() == gradient[:, 6:].abs().sum() == 0
    (gradient,) = torch.autograd.grad(value(loss, x, y, batch(x, y, JOINT)), x)
    assert all(gradient[:, 2 * k : 2 * k + 2].abs().sum() > 0 for k in range(4))


def test_the_joint_loss_is_that_of_unit_slices() -> None:
    x, y = random_batch(3, dim=8)
    slices = torch.cat([torch.nn.functional.normalize(part) for part in x.split(2, dim=1)], dim=1)
    loss = DivideConquer(3, 8, clusters=4)
    torch.testing.assert_close(value(loss, x, y, batch(x, y, JOINT)), value(Margin(3, 8, betas="fixed"), slices, y))
    rows = loss.represent(x)
    torch.testing.assert_close(rows, slices)
    torch.testing.assert_close(rows.square().sum(dim=1), torch.full((len(y),), 4.0, dtype=x.dtype))
    of_slices = sum(torch.cdist(part, part).square() for part in slices.split(2, dim=1))
    torch.testing.assert_close(torch.cdist(rows, rows).square(), of_slices)


def test_each_slice_begins_with_weights_of_its_own_scale() -> None:
    """Glorot's for 2 x 600 has another variance than for 8 x 600."""
    torch.manual_seed(0)
    head = Slices(SmallTrunk.of(600), [100, 100])
    assert head.linear.weight.std().item() == pytest.approx((2 / 700) ** 0.5, rel=0.02)


# --- clusters ---


def blobs(seed: int = 0, count: int = 4) -> tuple[Tensor, Tensor]:
    """Well separated points, and to which they belong."""
    generator = torch.Generator().manual_seed(seed)
    belongs = torch.randint(count, (60,), generator=generator)
    centres = 10 * torch.eye(count, dtype=torch.float64)
    return centres[belongs] + torch.randn(60, count, generator=generator, dtype=torch.float64) / 10, belongs


def test_k_means_finds_separate_points() -> None:
    x, belongs = blobs()
    centres, found = kmeans(x, 4, torch.Generator().manual_seed(1))
    assert len({(int(a), int(b)) for a, b in zip(found, belongs, strict=True)}) == 4
    for number in range(4):
        torch.testing.assert_close(centres[number], x[found == number].mean(dim=0))


def test_the_distances_to_the_centres_are_summed_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divide_conquer, "BLOCK", 7)
    x, belongs = blobs()
    centres = torch.stack([x[belongs == number].mean(dim=0) for number in range(4)])
    expected = sum(math.dist(row, centres[int(k)].tolist()) ** 2 for row, k in zip(x.tolist(), belongs, strict=True))
    with Largest() as largest:
        found = within(x, centres, belongs)
    assert found == pytest.approx(expected)
    assert largest.elements <= 7 * 4


@pytest.mark.parametrize("order", [[1, 2, 3, 0], [3, 2, 1, 0], [2, 0, 1, 3], [0, 1, 2, 3]])
def test_clusters_that_only_changed_their_numbers_get_them_back(order: list[int]) -> None:
    """Also where the permutation is not its own inverse."""
    previous = blobs()[1]
    current = torch.tensor(order)[previous]
    assert torch.equal(matched(current, previous, 4), previous)


def test_clusters_keep_the_numbers_of_those_they_share_most_images_with() -> None:
    previous = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
    current = torch.tensor([1, 1, 2, 2, 2, 2, 0, 0])
    assert matched(current, previous, 3).tolist() == [0, 0, 1, 1, 1, 1, 2, 2]


def test_a_cluster_that_no_batch_could_come_from_joins_the_nearest() -> None:
    """Points at 0 and 1 of two classes with pairs, and at 10 a class of its own."""
    x = torch.tensor([0.0, 0.1, 0.0, 0.1, 1.0, 1.1, 1.0, 1.1, 10.0, 10.1], dtype=torch.float64)[:, None]
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    found = cluster(x, 3, labels, torch.Generator().manual_seed(0))
    assert found[8:].tolist() == [int(found[4])] * 2
    assert len(found.unique()) == 2


# --- the plan ---


def plan(loss: object, epoch: int, **changes: object) -> list[tuple[list[int], int]]:
    view = replace(SmallView.before(epoch), **changes)
    return [(indices.tolist(), tag) for indices, tag in loss.plan(epoch, view)]  # type: ignore[attr-defined]


def test_clusters_take_turns() -> None:
    view = replace(SmallView.before(1), steps=9)
    clustered = torch.arange(30) // 10
    assert [tag for _, tag in batches(clustered, view)] == [0, 1, 2] * 3


def test_a_batch_is_of_one_cluster_and_an_image_alone_in_its_class_rests() -> None:
    view = replace(SmallView.before(1), steps=20, classes=9, samples=9)
    clustered = torch.zeros(30, dtype=torch.long)
    clustered[10:] = 1
    clustered[0] = 1  # the only image of its class there
    seen = set()
    for indices, tag in batches(clustered, view):
        assert set(clustered[indices].tolist()) == {tag}
        seen |= set(indices.tolist())
    assert seen == set(range(1, 30))


def test_every_batch_of_a_single_cluster_has_its_number() -> None:
    assert {tag for _, tag in plan(DivideConquer(6, 16, clusters=1), 1)} == {0}


def test_phases_follow_from_the_epoch() -> None:
    loss = DivideConquer(6, 16, clusters=3, joint=0.4)
    tags = {epoch: {tag for _, tag in plan(loss, epoch, epochs=20)} for epoch in (1, 8, 9, 19, 20)}
    assert tags[1] == tags[8] == {0, 1, 2}
    assert tags[9] == tags[19] == tags[20] == {JOINT}
    assert plan(loss, 20, epochs=20, warmup=True)[0][1] == 0
    every = {image for indices, _ in plan(loss, 20, epochs=20, steps=40) for image in indices}
    assert every == set(range(30))


def test_slices_that_never_learn_together_have_their_clusters_to_the_end() -> None:
    """Of all images as one cluster, the first slice alone would learn."""
    loss = DivideConquer(6, 16, clusters=3, joint=1.0)
    assert [{tag for _, tag in plan(loss, epoch, epochs=20)} for epoch in (1, 20)] == [{0, 1, 2}] * 2


def test_clusters_are_made_anew_every_other_epoch_and_keep_their_numbers() -> None:
    loss = DivideConquer(6, 16, clusters=3)
    plan(loss, 1)
    first = loss.clustered.clone()
    assert first.shape == (30,)
    plan(loss, 2)
    assert torch.equal(loss.clustered, first)
    loss.clustered = torch.tensor([1, 2, 0])[first]  # other numbers
    plan(loss, 3)
    agreeing = (loss.clustered == torch.tensor([1, 2, 0])[first]).double().mean()
    assert agreeing > 0.8


def test_a_resumed_plan_is_the_same() -> None:
    loss = DivideConquer(6, 16, clusters=3)
    plan(loss, 1)
    resumed = DivideConquer(6, 16, clusters=3)
    resumed.load_state_dict(copy.deepcopy(loss.state_dict()))
    assert plan(resumed, 2) == plan(loss, 2)
    assert plan(resumed, 3) == plan(loss, 3)
