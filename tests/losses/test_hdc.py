"""HDC against a loop over pairs, which pairs its levels keep, and where its levels begin."""

import math

import pytest
import torch
from torch import Tensor

import losses
from losses.hdc import Levels, hardest, taps
from losses.small import SmallTrunk
from tests.losses.factories import defaults, random_batch, unit_rows

Hdc = losses.get("hdc")
DIM = 12  # levels of 4


def terms(x: Tensor, labels: Tensor, margin: float, factor: float) -> dict[tuple[int, int], float]:
    """A level's loss of every pair."""
    rows, y = unit_rows(x), labels.tolist()
    found = {}
    for i in range(len(y)):
        for j in range(i + 1, len(y)):
            d2 = math.dist(rows[i], rows[j]) ** 2
            found[i, j] = d2 if y[i] == y[j] else factor * max(0.0, margin - d2)
    return found


def reference(x: Tensor, labels: Tensor, shares: tuple[float, ...], cascade: str, factor: float = 10.0) -> float:
    y = labels.tolist()
    levels = [terms(part, labels, 1.0, factor) for part in x.tensor_split(3, dim=1)]
    total = 0.0
    near = [terms(part, labels, 5.0, 1.0) for part in x.tensor_split(3, dim=1)]  # of which none is beyond the margin
    before: list[dict[bool, list[tuple[int, int]]]] = []
    for level, share in enumerate(shares):
        kept = {}
        for positive in (True, False):
            pairs = [pair for pair in levels[0] if (y[pair[0]] == y[pair[1]]) == positive]
            count = math.floor(share * len(pairs))
            among, by = pairs, near[level]
            if cascade == "previous":
                among = before[-1][positive] if before else pairs
                by = near[max(level - 1, 0)]
            kept[positive] = sorted(among, key=lambda pair, by=by: by[pair], reverse=True)[:count]
        before.append(kept)
        with_loss = {kind: [levels[level][pair] for pair in kept[kind] if levels[level][pair] > 0] for kind in kept}
        count = len(with_loss[True]) + 2 * len(with_loss[False])
        total += (sum(with_loss[True]) + sum(with_loss[False])) / 2 / count if count else 0.0
    return total


def test_defaults_are_the_released_ones() -> None:
    assert defaults("hdc") == {
        "margin": 1.0,
        "factor": 10.0,
        "first": 1.0,
        "second": 0.5,
        "third": 0.2,
        "cascade": "own",
        "weights": "1,1,1",
    }
    assert Hdc.head_dim == 384


@pytest.mark.parametrize("cascade", ["own", "previous"])
@pytest.mark.parametrize("shares", [(1.0, 0.5, 0.2), (1.0, 1.0, 1.0), (0.5, 0.25, 0.1)])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_loop(seed: int, shares: tuple[float, ...], cascade: str) -> None:
    x, y = random_batch(seed, dim=DIM)
    first, second, third = shares
    loss = Hdc(3, DIM, first=first, second=second, third=third, cascade=cascade)
    assert loss(x, y).item() == pytest.approx(reference(x, y, shares, cascade), rel=1e-9)


def test_a_share_of_all_is_a_contrastive_loss_at_each_level() -> None:
    x, y = random_batch(3, dim=DIM)
    expected = 0.0
    for part in x.tensor_split(3, dim=1):
        found = terms(part, y, 1.0, 10.0)
        positive = [value for (i, j), value in found.items() if y[i] == y[j] and value > 0]
        negative = [value for (i, j), value in found.items() if y[i] != y[j] and value > 0]
        expected += (sum(positive) + sum(negative)) / 2 / (len(positive) + 2 * len(negative))
    for cascade in ("own", "previous"):
        value = Hdc(3, DIM, second=1.0, third=1.0, cascade=cascade)(x, y)
        assert value.item() == pytest.approx(expected, rel=1e-9)


def test_a_level_that_alone_keeps_pairs_is_a_contrastive_loss() -> None:
    x, y = random_batch(4, dim=DIM)
    found = terms(x[:, :4], y, 1.0, 10.0)
    kinds = {kind: [v for (i, j), v in found.items() if (y[i] == y[j]) == kind and v > 0] for kind in (True, False)}
    expected = sum(map(sum, kinds.values())) / 2 / (len(kinds[True]) + 2 * len(kinds[False]))
    assert Hdc(3, DIM, second=1e-9, third=1e-9)(x, y).item() == pytest.approx(expected, rel=1e-9)


def kept(x: Tensor, y: Tensor, cascade: str, third: float = 0.2) -> tuple[list[Tensor], Tensor]:
    loss = Hdc(3, DIM, first=0.9, third=third, cascade=cascade)
    rows, columns = torch.triu_indices(len(y), len(y), 1)
    positive = y[rows] == y[columns]
    levels = [torch.tensor(list(terms(part, y, 5.0, 1.0).values())) for part in x.tensor_split(3, dim=1)]
    return loss.keep(levels, positive), positive


@pytest.mark.parametrize("cascade", ["own", "previous"])
def test_levels_keep_their_share_of_each_kind(cascade: str) -> None:
    sets, positive = kept(*random_batch(5, n=20, dim=DIM), cascade)
    for pairs, share in zip(sets, (0.9, 0.5, 0.2), strict=True):
        for kind in (positive, ~positive):
            assert int((pairs & kind).sum()) == math.floor(share * int(kind.sum()))


@pytest.mark.parametrize("cascade", ["own", "previous"])
def test_a_smaller_share_never_brings_in_a_pair(cascade: str) -> None:
    batch = random_batch(6, n=20, dim=DIM)
    (*_, more), (*_, fewer) = (kept(*batch, cascade, third)[0] for third in (0.4, 0.1))
    assert (fewer <= more).all()
    assert fewer.any()


def test_a_cascade_narrows_and_the_approximation_need_not() -> None:
    batch = random_batch(6, n=20, dim=DIM)
    one, two, three = kept(*batch, "previous")[0]
    assert (two <= one).all()
    assert (three <= two).all()
    one, two, three = kept(*batch, "own")[0]
    assert not (three <= two).all()


def test_levels_that_agree_keep_the_same_pairs_either_way() -> None:
    x, y = random_batch(7, dim=4)
    same = torch.cat([x, x, x], dim=1)
    for own, previous in zip(kept(same, y, "own")[0], kept(same, y, "previous")[0], strict=True):
        assert torch.equal(own, previous)


def test_a_pair_outside_a_levels_set_gives_it_no_gradient_and_levels_do_not_mix() -> None:
    x, y = random_batch(8, dim=DIM)
    x.requires_grad_()
    (whole,) = torch.autograd.grad(Hdc(3, DIM)(x, y), x)
    changed = torch.cat([x.detach()[:, :4], torch.randn_like(x.detach()[:, 4:])], dim=1).requires_grad_()
    (other,) = torch.autograd.grad(Hdc(3, DIM)(changed, y), changed)
    torch.testing.assert_close(whole[:, :4], other[:, :4])  # level 1 does not depend on levels 2 and 3
    (few,) = torch.autograd.grad(Hdc(3, DIM, third=1e-9)(x, y), x)
    assert few[:, 8:].abs().sum() == 0  # level 3 keeps no pair
    assert whole[:, 8:].abs().sum() > 0
    (one,) = torch.autograd.grad(Hdc(3, DIM, third=0.05)(x, y), x)
    loss, (rows, columns) = Hdc(3, DIM, third=0.05), torch.triu_indices(len(y), len(y), 1)
    levels = [torch.tensor(list(terms(part, y, 5.0, 1.0).values())) for part in x.detach().tensor_split(3, dim=1)]
    third = loss.keep(levels, y[rows] == y[columns])[2]
    touched = set(rows[third].tolist()) | set(columns[third].tolist())
    assert 0 < len(touched) < len(y)
    assert all(not one[image, 8:].any() for image in range(len(y)) if image not in touched)


def test_a_batch_without_a_pair_that_has_a_loss_gives_zero() -> None:
    x = torch.eye(4, dtype=torch.float64).repeat(1, 3).requires_grad_()
    value = Hdc(4, DIM)(x, torch.arange(4))  # distances of 2: beyond the margin
    assert value == 0
    assert torch.autograd.grad(value, x, allow_unused=True)[0] is not None


def test_the_hardest_are_the_largest_among_the_allowed() -> None:
    found = hardest(torch.tensor([5.0, 1.0, 4.0, 3.0]), torch.tensor([True, True, False, True]), 2)
    assert found.tolist() == [True, False, False, True]


@pytest.mark.parametrize(("weights", "numbers"), [("1,1,1", (1, 1, 1)), ("1,1,2", (1, 1, 2)), ("1,2,3", (1, 2, 3))])
def test_squared_distances_at_test_time_are_weighted_by_the_squares(weights: str, numbers: tuple[int, ...]) -> None:
    x, _ = random_batch(9, dim=DIM)
    rows = Hdc(3, DIM, weights=weights).represent(x)
    parts = [torch.nn.functional.normalize(part) for part in x.tensor_split(3, dim=1)]
    expected = sum(w**2 * torch.cdist(part, part) ** 2 for w, part in zip(numbers, parts, strict=True))
    torch.testing.assert_close(torch.cdist(rows, rows) ** 2, expected)


@pytest.mark.parametrize(
    ("sides", "expected"),
    [
        ([112, 56, 28, 14, 14, 7, 7], (3, 4)),  # EfficientNet: the first and the last stage of stride 16
        ([56, 28, 14, 7], (1, 2)),  # ResNet: stride 16 has one stage
        ([28, 28, 14, 14, 14, 14, 14, 7, 7, 7], (2, 6)),  # BN-Inception
        ([7, 7], (0, 1)),
    ],
)
def test_levels_begin_before_the_last_reduction(sides: list[int], expected: tuple[int, int]) -> None:
    assert taps([(8, side, side) for side in sides]) == expected


def test_levels_of_a_transformer_are_at_thirds_of_its_depth() -> None:
    assert taps([(197, 64)] * 12) == (4, 8)


def test_the_head_gives_three_levels_of_the_network() -> None:
    torch.manual_seed(0)
    trunk = SmallTrunk.of(6)
    head = Levels(trunk, [4, 4, 4]).eval()
    x = torch.randn(3, 6)
    first = trunk.stages[0](x)
    second = trunk.stages[1](first)
    parts = [head.branches[0](first.mean((2, 3))), head.branches[1](second.mean((2, 3))), head.last(trunk(x))]
    torch.testing.assert_close(head(x), torch.cat(parts, dim=1))


def test_a_dimension_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="dim=2: must be at least 3"):
        Hdc(3, 2)
