"""BIER against loops over pairs, and their identities."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import losses
from losses import boosting
from losses.small import SmallTrunk
from tests.losses.factories import defaults, dot, random_batch, unit_rows

Bier = losses.get("bier")
DIM = 16  # learners of 3, 5 and 8


def log_one_plus_exp(x: float) -> float:
    return math.log1p(math.exp(x))


def reference(x: Tensor, labels: Tensor, sizes: list[int], knobs: dict[str, Any]) -> float:
    """Learner by learner, pair by pair, as the released code has it."""
    y = labels.tolist()
    n = len(y)
    alpha, beta, cost = knobs["alpha"], knobs["beta"], knobs["cost"]
    P = sum(y[i] == y[j] for i in range(n) for j in range(n))
    N = n * n - P
    weights = {(i, j): 1.0 for i in range(n) for j in range(n)}
    memory = dict.fromkeys(weights, 0.5 if knobs["boosting"] == "simple" else 0.0)
    total = 0.0
    for number, part in enumerate(x.split(sizes, dim=1), start=1):
        rows = unit_rows(part)
        for i, j in weights:
            s = dot(rows[i], rows[j])
            u = alpha * (s - beta) * (1 if y[i] == y[j] else -cost)
            if i != j:
                total += log_one_plus_exp(-u) * weights[i, j] * (1 / P if y[i] == y[j] else 1 / N)
            if knobs["boosting"] == "simple":
                memory[i, j] += knobs["shrinkage"] * u
                weights[i, j] = (1 if y[i] == y[j] else 2) / (1 + math.exp(memory[i, j]))
            elif knobs["boosting"] == "eta":
                eta = 2 / (number + 1)
                memory[i, j] = (1 - eta) * memory[i, j] + eta * s
                v = alpha * (memory[i, j] - beta) * (1 if y[i] == y[j] else -cost)
                weights[i, j] = 1 / (1 + math.exp(v))
    return total / len(sizes)


def value(x: Tensor, y: Tensor, sizes: list[int], **changes: Any) -> Tensor:
    knobs = {"alpha": 2.0, "beta": 0.5, "cost": 25.0, "boosting": "simple", "shrinkage": 0.06, **changes}
    return boosting.deviance(x, y, sizes, **knobs)


def test_defaults_are_the_released_ones() -> None:
    shared = {"alpha": 2.0, "beta": 0.5, "cost": 25.0, "boosting": "simple", "shrinkage": 0.06}
    assert defaults("bier") == {**shared, "diversity": 0.0, "norm_weight": 100}
    assert boosting.sizes(512) == [96, 160, 256]
    assert Bier.head_dim == 512


@pytest.mark.parametrize("dim", [5, 16, 17, 100, 128])
def test_learners_share_any_dimension(dim: int) -> None:
    sizes = boosting.sizes(dim)
    assert sum(sizes) == dim
    assert all(abs(size - dim * part / 16) < 1 for size, part in zip(sizes, (3, 5, 8), strict=True))


def test_a_dimension_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="dim=2: too small for 3 learners"):
        Bier(3, 2)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["simple", "eta", "none"])
@pytest.mark.parametrize("cost", [1.0, 25.0])
def test_equals_the_loop(seed: int, kind: str, cost: float) -> None:
    x, y = random_batch(seed, dim=DIM)
    knobs = {"alpha": 2.0, "beta": 0.5, "cost": cost, "boosting": kind, "shrinkage": 0.3}
    found = value(x, y, boosting.sizes(DIM), **knobs)
    assert found.item() == pytest.approx(reference(x, y, boosting.sizes(DIM), knobs), rel=1e-9)
    loss = Bier(3, DIM, **knobs)
    assert torch.equal(loss({"embedding": x}, y), found)


@pytest.mark.parametrize("kind", ["simple", "eta"])
def test_one_learner_is_the_deviance_whatever_the_boosting(kind: str) -> None:
    x, y = random_batch(0)
    torch.testing.assert_close(value(x, y, [4], boosting=kind), value(x, y, [4], boosting="none"))


def test_a_learner_at_the_boundary_leaves_half_weights_by_eta() -> None:
    """s_1 = beta for every pair: B_2 = 1/2."""
    x, y = random_batch(1, dim=4)
    # two unit vectors at cosine 1/2 for any pair: all the same in three dimensions and one of their own
    n = len(y)
    first = torch.eye(n, dtype=x.dtype) + (math.sqrt(n + 1) - 1) / n
    both = torch.cat([first, x], dim=1)
    cosine = torch.nn.functional.cosine_similarity(first[0], first[1], dim=0)
    assert cosine.item() == pytest.approx(0.5)
    halved = value(first, y, [n], boosting="none") + value(x, y, [4], boosting="none") / 2
    torch.testing.assert_close(value(both, y, [n, 4], boosting="eta"), halved / 2)


@pytest.mark.parametrize("M", [1, 2, 3, 5])
def test_learners_before_weigh_a_pair_by_their_mean_cosine_of_which_the_last_counts_most(M: int) -> None:
    """By eta: S_M is the sum of 2m / (M (M + 1)) s_m. The last of M + 1 learners is the value's difference to M."""
    x, y = random_batch(1, dim=4 * (M + 1))
    parts = [torch.nn.functional.normalize(part) for part in x.split(4, dim=1)]
    shares = [2 * m / (M * (M + 1)) for m in range(1, M + 1)]
    assert sum(shares) == pytest.approx(1)
    S = sum(share * part @ part.T for share, part in zip(shares, parts, strict=False))
    same = y[:, None] == y
    sign = torch.where(same, 1.0, -25.0).double()
    V = (same.double() / same.sum() + (~same).double() / (~same).sum()).fill_diagonal_(0)
    u = 2 * (parts[-1] @ parts[-1].T - 0.5) * sign
    last = (torch.nn.functional.softplus(-u) * torch.sigmoid(-2 * (S - 0.5) * sign) * V).sum()
    every, others = (value(x[:, : 4 * count], y, [4] * count, boosting="eta") * count for count in (M + 1, M))
    torch.testing.assert_close(every - others, last)


def test_without_shrinkage_later_learners_have_constant_weights() -> None:
    x, y = random_batch(2, dim=DIM)
    sizes = boosting.sizes(DIM)
    same = y[:, None] == y
    total = value(x[:, : sizes[0]], y, [sizes[0]], boosting="none")
    w = torch.where(same, 1, 2) * torch.sigmoid(torch.tensor(-0.5, dtype=x.dtype))
    shares = (same.double() / same.sum() + (~same).double() / (~same).sum()).fill_diagonal_(0)
    for part in x.split(sizes, dim=1)[1:]:
        rows = torch.nn.functional.normalize(part)
        u = 2 * (rows @ rows.T - 0.5) * torch.where(same, 1, -25)
        total = total + (torch.nn.functional.softplus(-u) * w * shares).sum()
    torch.testing.assert_close(value(x, y, sizes, shrinkage=0.0), total / 3)


def test_the_cosine_of_what_is_compared_weighs_learners_by_their_squared_dimension() -> None:
    x, _ = random_batch(3, dim=DIM)
    sizes = boosting.sizes(DIM)
    rows = torch.nn.functional.normalize(Bier(3, DIM).represent({"embedding": x}))
    parts = [torch.nn.functional.normalize(part) for part in x.split(sizes, dim=1)]
    expected = sum(d**2 * part @ part.T for d, part in zip(sizes, parts, strict=True)) / sum(d**2 for d in sizes)
    torch.testing.assert_close(rows @ rows.T, expected)
    lengths = Bier(3, DIM).represent({"embedding": x}).norm(dim=1)
    torch.testing.assert_close(lengths, lengths[:1].expand_as(lengths))


# --- diversity ---


def projections(seed: int = 0) -> tuple[Tensor, Tensor]:
    """g (n, 16) of random features, and W (16, 6)."""
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(7, 6, generator=generator, dtype=torch.float64)
    W = torch.randn(DIM, 6, generator=generator, dtype=torch.float64)
    return h @ W.T, W


def slow_activation(g: Tensor, W: Tensor, norm_weight: float) -> float:
    sizes = boosting.sizes(DIM)
    parts = [part.tolist() for part in g.split(sizes, dim=1)]
    total = 0.0
    for p in range(3):
        for q in range(p + 1, 3):
            terms = [(a * b) ** 2 for i in range(len(g)) for a in parts[p][i] for b in parts[q][i]]
            total += sum(terms) / len(terms)
    for weight in W.split(sizes):
        lengths = [(sum(w * w for w in unit) - 1) ** 2 for unit in weight.tolist()]
        total += norm_weight * sum(lengths) / len(lengths)
    return total


def test_the_activation_loss_equals_the_loop() -> None:
    g, W = projections()
    loss = Bier(3, DIM, diversity=1.0, norm_weight=3.0)
    assert loss.diversity_loss(g, W).item() == pytest.approx(slow_activation(g, W, 3.0), rel=1e-9)


def test_the_activation_loss_scales_with_the_square_of_a_learner() -> None:
    g, W = projections()
    loss = Bier(3, DIM, diversity=1.0, norm_weight=0.0)
    scaled = torch.cat([3 * g[:, :3], g[:, 3:]], dim=1)
    alone = loss.diversity_loss(torch.cat([g[:, :3], torch.zeros_like(g[:, 3:])], dim=1), W)
    others = loss.diversity_loss(torch.cat([torch.zeros_like(g[:, :3]), g[:, 3:]], dim=1), W)
    assert alone == 0  # it is in pairs with learners that are 0
    with_first = loss.diversity_loss(g, W) - others
    torch.testing.assert_close(loss.diversity_loss(scaled, W), 9 * with_first + others)
    order = torch.tensor([2, 0, 1, *range(3, DIM)])
    torch.testing.assert_close(loss.diversity_loss(g[:, order], W), loss.diversity_loss(g, W))


def head_on_a_small_network(loss: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    trunk = SmallTrunk.of(6)
    return trunk, loss.head(trunk)


def test_learners_that_see_nothing_of_the_features_have_no_activation_loss() -> None:
    """The weights of two of the three annihilate h."""
    loss = Bier(3, DIM, diversity=1.0, norm_weight=0.0)
    _, W = projections()
    h = torch.eye(6, dtype=W.dtype)[:1].expand(7, 6)
    W[:8, 0] = 0
    assert loss.diversity_loss(h @ W.T, W) == 0
    W[0, 0] = 1
    assert loss.diversity_loss(h @ W.T, W) > 0


@pytest.mark.parametrize("name", ["bier", "a_bier"])
def test_the_diversity_loss_is_added_with_its_weight(name: str) -> None:
    x, y = random_batch(0, n=7, dim=DIM)
    g, W = projections()
    loss = losses.get(name)(3, DIM, diversity=0.3).double()
    z = {"embedding": x, "projections": g, "weight": W}
    torch.testing.assert_close(loss(z, y), loss({"embedding": x}, y) + 0.3 * loss.diversity_loss(g, W))


def test_diversity_gives_the_trunk_no_gradient() -> None:
    loss = Bier(3, DIM, diversity=1.0)
    trunk, head = head_on_a_small_network(loss)
    z = head(torch.randn(5, 6))
    loss.diversity_loss(z["projections"], z["weight"]).backward()
    assert all(p.grad is None for stage in trunk.stages for p in stage.parameters())
    assert head.linear.weight.grad.abs().sum() > 0
    assert head.linear.bias.grad is None


def test_a_head_without_diversity_gives_the_embedding_alone() -> None:
    _, head = head_on_a_small_network(Bier(3, DIM))
    assert set(head(torch.randn(2, 6))) == {"embedding"}
