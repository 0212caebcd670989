"""The margin loss and its distance-weighted negatives against loops, by hand, and against pytorch-metric-learning."""

import math

import pytest
import torch
from torch import Tensor

import losses
from losses.base import Choice, distances, unit
from tests.losses.factories import defaults, on_circle, random_batch, unit_rows

Margin = losses.get("margin")


def any_negatives(labels: Tensor, seed: int = 0) -> Tensor:
    """(n, n): a random sample of another class for every pair."""
    generator = torch.Generator().manual_seed(seed)
    other = (labels[:, None] != labels).double()
    return torch.multinomial(other, len(labels), replacement=True, generator=generator)


def reference(loss: torch.nn.Module, x: Tensor, labels: Tensor, negatives: Tensor) -> float:
    rows, y, n_of, beta = unit_rows(x), labels.tolist(), negatives.tolist(), loss.beta.tolist()
    total, active = 0.0, 0
    for a in range(len(y)):
        b = beta[y[a]] if len(beta) > 1 else beta[0]
        for p in range(len(y)):
            if p == a or y[p] != y[a]:
                continue
            pull = max(0.0, loss.margin + (math.dist(rows[a], rows[p]) - b))
            push = max(0.0, loss.margin - (math.dist(rows[a], rows[n_of[a][p]]) - b))
            active += (pull > 0) + (push > 0)
            total += pull + push + loss.nu * b
    return total / max(active, 1)


def test_defaults_are_the_published_ones() -> None:
    assert defaults("margin") == {
        "margin": 0.2,
        "beta": 1.2,
        "betas": "class",
        "nu": 0.0,
        "cutoff": 0.5,
        "nonzero_cutoff": 1.4,
        "lr_factor": 1.0,
    }


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "knobs", [{}, {"betas": "shared", "beta": 0.9}, {"betas": "fixed", "margin": 0.5}, {"nu": 0.1}]
)
def test_equals_the_loop(seed: int, knobs: dict[str, float | str]) -> None:
    x, y = random_batch(seed, classes=4)
    loss = Margin(4, 4, **knobs).double()
    loss.beta.data += 0.3 * torch.linspace(0, 1, len(loss.beta), dtype=torch.float64)
    negatives = any_negatives(y, seed)
    assert loss(x, y, negatives).item() == pytest.approx(reference(loss, x, y, negatives), rel=1e-9)


def test_gradients_are_those_of_finite_differences() -> None:
    x, y = random_batch(1, classes=4)
    loss, negatives = Margin(4, 4, nu=0.1).double(), any_negatives(y)
    assert torch.autograd.gradcheck(lambda x, _: loss(x, y, negatives), (x.requires_grad_(), loss.beta))


def test_by_hand() -> None:
    """Opposite positives, 2 apart, and a negative at 90 degrees, sqrt(2) from both, just beyond 1.2 + 0.2."""
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    y, negatives = torch.tensor([0, 0, 1]), torch.full((3, 3), 2)
    loss = Margin(2, 2).double()
    assert loss(x, y, negatives).item() == pytest.approx(0.2 + 2 - 1.2)  # two pairs with a loss, equal
    loss.beta.data = torch.tensor([1.3, 9.0])  # of the anchor's class, 0
    assert loss(x, y, negatives).item() == pytest.approx((2 * (2 - 1.3 + 0.2) + 2 * (1.3 - math.sqrt(2) + 0.2)) / 4)


def test_only_pairs_with_a_loss_are_in_the_mean() -> None:
    x, y = on_circle(0, 20, 0, 180), torch.tensor([0, 0, 1, 2])
    far, near = torch.full((4, 4), 3), torch.full((4, 4), 2)
    assert Margin(3, 2)(x, y, far) == 0  # positives at 20 degrees, negatives at 180 and 160
    value = Margin(3, 2)(x, y, near).item()
    d20 = 2 * math.sin(math.radians(10))
    assert value == pytest.approx(((1.2 - 0 + 0.2) + (1.2 - d20 + 0.2)) / 2, rel=1e-6)


@pytest.mark.parametrize(("betas", "size", "learned"), [("class", 3, True), ("shared", 1, True), ("fixed", 1, False)])
def test_betas_are_learned_as_asked(betas: str, size: int, learned: bool) -> None:
    loss = Margin(3, 4, betas=betas)
    assert loss.beta.tolist() == pytest.approx([1.2] * size)
    assert loss.beta.requires_grad == learned


def probabilities(x: Tensor, labels: Tensor, a: int, cutoff: float, nonzero: float) -> list[float]:
    """Section 4: proportional to the inverse of the density of distances on the sphere."""
    rows, y, d = unit_rows(x), labels.tolist(), x.shape[1]
    weights = []
    for n in range(len(y)):
        D = max(cutoff, math.dist(rows[a], rows[n]))
        density = D ** (d - 2) * (1 - D * D / 4) ** ((d - 3) / 2)
        weights.append(1 / density if y[n] != y[a] and nonzero > D else 0.0)
    return [w / sum(weights) for w in weights]


@pytest.mark.parametrize("dim", [3, 8])
def test_negatives_are_drawn_by_the_inverse_of_the_density_of_their_distance(dim: int) -> None:
    """One class of 400 copies of an anchor: each of its pairs draws a negative."""
    torch.manual_seed(0)
    others = torch.randn(9, dim, dtype=torch.float64) + torch.ones(dim, dtype=torch.float64)
    copies = 400
    x = torch.cat([torch.ones(copies, dim, dtype=torch.float64), others])
    y = torch.cat([torch.zeros(copies, dtype=torch.long), torch.tensor([1, 1, 1, 2, 2, 3, 3, 3, 3])])
    drawn = Margin(4, dim).draw(distances(unit(x)), y)[:copies, :copies]
    expected = probabilities(x, y, 0, 0.5, 1.4)
    seen = torch.bincount(drawn.flatten(), minlength=len(x)) / copies**2
    assert min(p for p in expected if p) < 0.1 < max(expected)  # a case that tells
    assert seen.tolist() == pytest.approx(expected, abs=0.005)


def test_without_a_cutoff_of_its_own_it_follows_beta_and_the_margin() -> None:
    for knobs in ({"beta": 0.7, "margin": 0.1}, {"beta": 1.3, "margin": 0.4}):
        follows = Margin(3, 4, nonzero_cutoff=None, **knobs)
        assert follows.nonzero_cutoff == knobs["beta"] + knobs["margin"]
    assert Margin(3, 4, beta=0.7).nonzero_cutoff == 1.4
    assert Margin.space["nonzero_cutoff"] == Choice(None)


def test_never_draws_beyond_the_cutoff_but_where_there_is_nothing_else() -> None:
    x, y = on_circle(0, 5, 80, 100, 180), torch.tensor([0, 0, 1, 2, 3])
    torch.manual_seed(0)
    draws = [Margin(4, 2).draw(distances(x), y)[0, 1].item() for _ in range(50)]
    assert set(draws) == {2}  # 100 degrees is at 1.53
    near = Margin(2, 3)
    D = torch.tensor([[0.0, 0.5, 1.39, 1.42], [0.5, 0.0, 1.42, 1.42], [1.39, 1.42, 0.0, 1.0], [1.42, 1.42, 1.0, 0.0]])
    labels = torch.tensor([0, 0, 1, 1])
    assert {int(near.draw(D, labels)[0, 1]) for _ in range(50)} == {2}  # the one at 1.42 is beyond 1.4
    alone, y = x[[0, 1, 3, 4]], torch.tensor([0, 0, 1, 2])
    draws = [Margin(4, 2).draw(distances(alone), y)[0, 1].item() for _ in range(100)]
    assert set(draws) == {2, 3}
    assert 30 < draws.count(2) < 70


def test_the_draw_follows_the_global_seed() -> None:
    x, y = random_batch(3, n=30, classes=4)
    loss = Margin(4, 4).double()
    values = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        values.append(loss(x, y).item())
    assert values[0] == values[1] != values[2]


@pytest.mark.parametrize("betas", ["class", "shared"])
def test_equals_pytorch_metric_learning_given_the_same_pairs(betas: str) -> None:
    from pytorch_metric_learning import losses as pml

    x, y = random_batch(2, n=20, classes=4)
    loss, negatives = Margin(4, 4, betas=betas).double(), any_negatives(y)
    theirs = pml.MarginLoss(learn_beta=True, num_classes=4 if betas == "class" else None)
    a, p = torch.where((y[:, None] == y).fill_diagonal_(False))
    value, expected = loss(x.requires_grad_(), y, negatives), theirs(x, y, (a, p, negatives[a, p]))
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)  # their beta is in float32
    ours, others = torch.autograd.grad(value, (x, loss.beta)), torch.autograd.grad(expected, (x, theirs.beta))
    torch.testing.assert_close(ours[0], others[0])
    torch.testing.assert_close(ours[1].float(), others[1])


def test_a_nan_that_is_in_no_pair_of_its_class_is_drawn_and_seen() -> None:
    x, y = random_batch(0, classes=4)
    y[5] = 4
    x[5] = torch.nan
    torch.manual_seed(0)
    assert Margin(5, 4)(x, y).isnan()
