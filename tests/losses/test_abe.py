"""ABE: its loss against loops, its masks, and where the network is divided."""

import math
from itertools import combinations

import pytest
import torch
from torch import Tensor, nn

import losses
from losses.abe import Attention, places, unstrided
from losses.small import SmallTrunk
from tests.losses.factories import defaults, dot, random_batch, unit_rows

Abe = losses.get("abe")


def reference(x: Tensor, labels: Tensor, learners: int, diversity: float) -> float:
    y, total = labels.tolist(), 0.0
    parts = [unit_rows(part) for part in x.split(x.shape[1] // learners, dim=1)]
    for rows in parts:
        pull, push = [], []
        for i, j in combinations(range(len(y)), 2):
            d2 = math.dist(rows[i], rows[j]) ** 2
            (pull if y[i] == y[j] else push).append(d2 if y[i] == y[j] else max(0.0, 1 - d2))
        total += sum(sum(kind) / len(kind) for kind in (pull, push) if kind) / 2
    for p, q in combinations(parts, 2):
        # for unit vectors [1 - D^2]+ is 2 [cos - 1/2]+
        total += diversity * sum(max(0.0, 2 * dot(p[i], q[i]) - 1) for i in range(len(y))) / len(y)
    return total


def test_defaults_are_the_published_ones() -> None:
    assert defaults("abe") == {"learners": 8, "margin": 1.0, "diversity": 1.0, "apart": 1.0}
    assert Abe.head_dim == 512


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("learners", [1, 2, 4])
@pytest.mark.parametrize("diversity", [0.0, 1.0, 3.0])
def test_equals_the_loop(seed: int, learners: int, diversity: float) -> None:
    x, y = random_batch(seed, dim=8)
    value = Abe(3, 8, learners=learners, diversity=diversity)(x, y)
    assert value.item() == pytest.approx(reference(x, y, learners, diversity), rel=1e-9)


def test_a_single_learner_has_nobody_to_be_apart_from() -> None:
    x, y = random_batch(0, dim=8)
    assert torch.equal(Abe(3, 8, learners=1, diversity=9.0)(x, y), Abe(3, 8, learners=1, diversity=0.0)(x, y))


def test_learners_that_are_equal_cost_what_all_their_pairs_may() -> None:
    x, _ = random_batch(1, dim=3)
    loss = Abe(3, 12, learners=4, apart=0.7)
    assert loss.overlap([torch.nn.functional.normalize(x)] * 4).item() == pytest.approx(0.7 * 4 * 3 / 2)


def test_learners_at_right_angles_cost_nothing() -> None:
    x = torch.eye(4).repeat(1, 1)
    learners = [x[[number] * 3].requires_grad_() for number in range(4)]
    value = Abe(3, 16, learners=4).overlap(learners)
    value.backward()
    assert value == 0
    assert all(not learner.grad.any() for learner in learners)  # type: ignore[union-attr]


def test_the_order_of_learners_does_not_matter() -> None:
    x, y = random_batch(2, dim=8)
    loss = Abe(3, 8, learners=4)
    torch.testing.assert_close(loss(x[:, [4, 5, 0, 1, 6, 7, 2, 3]], y), loss(x, y))


def test_the_squared_distance_at_test_time_is_the_sum_of_the_learners() -> None:
    x, _ = random_batch(3, dim=8)
    rows = Abe(3, 8, learners=2).represent(x)
    parts = [torch.nn.functional.normalize(part) for part in x.split(4, dim=1)]
    expected = sum(torch.cdist(part, part) ** 2 for part in parts)
    torch.testing.assert_close(torch.cdist(rows, rows) ** 2, expected)
    assert rows.square().sum(dim=1).tolist() == pytest.approx([2.0] * len(x))


# --- the network ---


def attention(learners: int = 2) -> Attention:
    torch.manual_seed(0)
    return Attention(SmallTrunk.of(6), learners, 3).eval()


def test_a_mask_of_ones_is_the_plain_network() -> None:
    head, x = attention(), torch.randn(4, 6)
    nn.init.zeros_(head.masks.weight)
    nn.init.constant_(head.masks.bias, 100.0)
    plain = head.linear(head.trunk(x))
    torch.testing.assert_close(head(x), torch.cat([plain, plain], dim=1))


def test_equal_masks_make_equal_learners_and_others_do_not() -> None:
    head, x = attention(), torch.randn(4, 6)
    first, second = head(x).chunk(2, dim=1)
    assert not torch.allclose(first, second)
    nn.init.zeros_(head.masks.weight)
    first, second = head(x).chunk(2, dim=1)
    assert torch.equal(first, second)


def test_a_learner_is_the_rest_of_the_network_on_the_masked_map() -> None:
    head, x = attention(), torch.randn(4, 6)
    S = head.trunk.stages[0](x)
    masks = torch.sigmoid(head.masks(head.attention(S)))
    assert masks.shape == (4, 2 * 6, 8, 8)  # of S's size, although the stage that is copied halves it
    maps = [S * masks[:, :6], S * masks[:, 6:]]
    expected = [head.linear(head.trunk.pool(head.trunk.stages[2](head.trunk.stages[1](part)))) for part in maps]
    torch.testing.assert_close(head(x), torch.cat(expected, dim=1))


def test_the_attention_is_a_copy_that_begins_as_the_network() -> None:
    head = attention()
    (copied,) = head.attention
    original = head.trunk.stages[1]
    assert torch.equal(copied.weight, original.weight)
    assert copied.weight is not original.weight
    assert (copied.stride, original.stride) == ((1, 1), (2, 2))


@pytest.mark.parametrize(
    ("sides", "expected"),
    [
        ([112, 56, 28, 14, 14, 7, 7], (3, 5)),  # EfficientNet: S up to stride 8, then both stages of stride 16
        ([56, 28, 14, 7], (2, 3)),  # ResNet
        ([29, 29, 15, 15, 15, 15, 15, 8, 8, 8], (2, 7)),  # BN-Inception at 227 px: 3c to 4d
        ([2, 1], (1, 2)),
    ],
)
def test_the_network_is_divided_before_its_last_two_reductions(sides: list[int], expected: tuple[int, int]) -> None:
    assert places([(8, side, side) for side in sides]) == expected


def test_a_network_without_maps_is_refused() -> None:
    with pytest.raises(ValueError, match="whose stages give maps"):
        places([(197, 64)] * 12)


def test_a_stage_that_cannot_keep_the_size_of_its_map_is_refused() -> None:
    trunk = SmallTrunk.of(6)
    shrinking = SmallTrunk((trunk.stages[0], nn.Conv2d(6, 6, 3), trunk.stages[2]), 6)
    with pytest.raises(ValueError, match="a map of \\[8, 8\\] becomes \\[6, 6\\]"):
        Attention(shrinking, 2, 3)


def test_a_stage_whose_branches_no_longer_fit_together_is_refused() -> None:
    """Without strides: as of inception_v3, whose pooling is a function."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(6, 6, 3, 2, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.convolution(x), nn.functional.max_pool2d(x, 2)], dim=1)

    trunk = SmallTrunk.of(6)
    with pytest.raises(
        ValueError, match="a map of \\[8, 8\\] does not pass: this backbone's stages cannot keep its size"
    ):
        Attention(SmallTrunk((trunk.stages[0], Branches(), trunk.stages[2]), 6), 2, 3)


def test_pooling_is_left_out_of_a_copy() -> None:
    assert unstrided(nn.AvgPool2d(2, 2))(torch.zeros(1, 1, 4, 4)).shape == (1, 1, 4, 4)


def test_a_dimension_that_learners_cannot_share_is_refused() -> None:
    with pytest.raises(ValueError, match="dim=100: must be a multiple of learners=8"):
        Abe(3, 100)
