"""What every registered loss promises (losses/contract.py), and that the checks find a loss that breaks its promise."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import losses
from harness import config
from losses import contract
from losses.base import (
    Choice,
    Loss,
    Range,
    cosines,
    distances,
    gram,
    log_one_plus_sum,
    log_sum_exp_of_others,
    squared_distances,
    unit,
)
from losses.contract import CHECKS, DIM

OF_THE_TABLES = {
    *("angular", "contrastive", "deep_spectral", "facility_location", "group", "lifted_structure", "margin"),
    *("multi_similarity", "n_pairs", "normalized_softmax", "proxy_nca", "ranked_list", "soft_triple", "softmax"),
    *("triplet", "arcface", "proxy_anchor"),
}


def test_the_losses_of_the_papers_tables_are_registered() -> None:
    assert set(losses.names()) >= OF_THE_TABLES


def test_importing_the_registry_does_not_import_torch() -> None:
    import subprocess
    import sys

    code = "import sys, losses; losses.names(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("promise", CHECKS)
@pytest.mark.parametrize("name", losses.names())
def test_keeps_the_contract(name: str, promise: str) -> None:
    CHECKS[promise](losses.get(name))


@pytest.mark.parametrize("name", losses.names())
def test_what_search_draws_is_allowed(name: str) -> None:
    spec = config.loss(name)
    assert set(spec.space) <= set(spec.knobs)
    for knob, where in spec.space.items():
        drawn = [where.sample(random.Random(seed)) for seed in range(20)]
        assert all(spec.knobs[knob].check(value) == value for value in drawn)


# Written down here from the papers and the released code, see each docstring.
DEFAULTS: dict[str, dict[str, Any]] = {
    "angular": {"alpha": 45.0, "weight": 2.0},
    "arcface": {"scale": 64.0, "margin": 0.5, "lr_factor": 1.0},
    "contrastive": {"margin": 1.0},
    "deep_spectral": {},
    "facility_location": {"gamma": 1.0, "swaps": 5},
    "group": {
        **{"anchors": 2, "steps": 1, "temperature": 24.0, "similarity": "pearson", "negatives": "clamp", "bias": True},
        **{"zero_diagonal": True, "cross_entropy": 0.0, "classes": "all", "objective": "cross_entropy"},
    },
    "lifted_structure": {"margin": 1.0},
    "margin": {
        **{"margin": 0.2, "beta": 1.2, "betas": "class", "cutoff": 0.5, "nonzero_cutoff": 1.4, "nu": 0.0},
        "lr_factor": 1.0,
    },
    "multi_similarity": {"alpha": 2.0, "beta": 50.0, "base": 0.5, "epsilon": 0.1},
    "n_pairs": {"l2": 0.02},
    "normalized_softmax": {"temperature": 0.05, "lr_factor": 1.0},
    "proxy_anchor": {"alpha": 32.0, "delta": 0.1, "lr_factor": 100.0},
    "proxy_nca": {"scale": 3.0, "proxy_scale": 3.0, "lr_factor": 1.0},
    "ranked_list": {"alpha": 1.2, "margin": 0.4, "T_n": 10.0, "T_p": 0.0},
    "soft_triple": {"centres": 10, "gamma": 0.1, "scale": 20.0, "margin": 0.01, "tau": 0.2, "lr_factor": 100.0},
    "softmax": {},
    "triplet": {"margin": 0.2, "mining": "semihard"},
}


@pytest.mark.parametrize("name", losses.names())
def test_defaults_are_the_published_ones(name: str) -> None:
    defaults = {knob: field.default for knob, field in config.loss(name).knobs.items()}
    assert {**defaults, **DEFAULTS[name]} == defaults


# --- the checks find what they look for: a loss that keeps its promises, and what each broken one breaks ---


class Sound(Loss):
    """Mean squared distance to the class's own point, which is learned, less a margin to the others."""

    title, cite = "Sound", "tests"
    space = {"margin": Range(0.1, 1.0)}

    def __init__(self, num_classes: int, dim: int, *, margin: float = 0.5) -> None:
        super().__init__(num_classes, dim)
        self.margin = margin
        self.points = nn.Parameter(torch.randn(num_classes, dim))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        s = cosines(embeddings, self.points)
        own = s.gather(1, labels[:, None])
        return (s - own + self.margin).relu().square().mean()


class Infinite(Sound):
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return super().forward(embeddings, labels) / embeddings.abs().sum()


class PerImage(Sound):
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return unit(embeddings).sum(dim=1)


class Negative(Sound):
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return super().forward(embeddings, labels) - 100


class Blind(Sound):
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return super().forward(embeddings.nan_to_num(0), labels)


class Steep(Sound):
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return super().forward(embeddings, labels) + 1e4 * embeddings.square().mean()


class WrongGradient(Sound):
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return super().forward(embeddings, labels) * super().forward(embeddings, labels).detach()


class Ordered(Sound):
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return super().forward(embeddings[: len(labels) // 2 + 1], labels[: len(labels) // 2 + 1])


class Imprecise(Sound):
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return super().forward(embeddings, labels) + (1e-3 if embeddings.dtype == torch.float32 else 0.0)


class Forgetful(Sound):
    def __init__(self, num_classes: int, dim: int) -> None:
        super().__init__(num_classes, dim)
        self.offset = torch.rand(())

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return super().forward(embeddings, labels) + self.offset


class Idle(Sound):
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return super().forward(embeddings.detach(), labels) + 0 * embeddings.sum()


class Huge(Sound):
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return super().forward(embeddings, labels) + 0 * (self.points @ self.points.T).square().sum()


class Nameless(Sound):
    title = None  # type: ignore[assignment]


class Unsearchable(Sound):
    space = {"margin": Range(1e38, 1e39)}


BROKEN = {
    "says what it is": Nameless,
    "is finite with anything search may draw": Unsearchable,
    "gives a finite scalar and finite gradients on any batch": Infinite,
    "is not negative": Negative,
    "shows a network that diverged": Blind,
    "keeps gradients in bounds on degenerate batches": Steep,
    "has the gradient of its value": WrongGradient,
    "does not depend on the order of the batch": Ordered,
    "agrees in float32 and float64": Imprecise,
    "survives copying, pickling and its state dict": Forgetful,
    "brings a class together": Idle,
    "stays small with 11,318 classes": Huge,
}


@pytest.mark.parametrize("promise", CHECKS)
def test_a_sound_loss_passes_and_a_broken_one_is_found(promise: str) -> None:
    CHECKS[promise](Sound)
    with pytest.raises((AssertionError, RuntimeError)):
        CHECKS[promise](BROKEN[promise])


def test_a_loss_that_is_no_scalar_is_found() -> None:
    with pytest.raises(RuntimeError):
        contract.gives_a_finite_scalar(PerImage)


# --- the contract's base ---


def test_a_loss_needs_two_classes() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        losses.get("triplet")(1, DIM)


def test_unit_has_the_gradient_of_the_direction_at_any_scale() -> None:
    x = torch.tensor([[3.0, 4.0], [3e-200, 4e-200], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    y = unit(x)
    assert y.tolist() == [pytest.approx([0.6, 0.8]), pytest.approx([0.6, 0.8]), [0.0, 0.0]]
    y[:, 0].sum().backward()
    # d(a/|x|)/da = b^2/|x|^3
    assert x.grad[:, 0].tolist() == [pytest.approx(16 / 125), pytest.approx(16 / 125 * 1e200), 0.0]


def test_the_shared_geometry_passes_gradcheck() -> None:
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    w = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    same = torch.eye(4, dtype=torch.bool)
    for geometry in (unit, squared_distances, gram):
        assert torch.autograd.gradcheck(geometry, (x,))
    assert torch.autograd.gradcheck(lambda x: distances(x)[~same], (x,))
    assert torch.autograd.gradcheck(cosines, (x, w))
    assert torch.autograd.gradcheck(lambda x: log_sum_exp_of_others(gram(x), same), (x,))
    assert torch.autograd.gradcheck(lambda x: log_one_plus_sum(gram(x), ~same), (x,))


def test_distances_are_those_of_a_loop_and_equal_rows_are_at_none() -> None:
    x = torch.randn(6, 4, dtype=torch.float64) + 100
    x[3] = x[1]
    expected = [[sum((a - b) ** 2 for a, b in zip(p, q, strict=True)) ** 0.5 for q in x.tolist()] for p in x.tolist()]
    torch.testing.assert_close(distances(x), torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(squared_distances(x).sqrt(), distances(x))
    assert distances(x.float())[1, 3] == 0
    x.requires_grad_()
    distances(x)[1, 3].backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


@pytest.mark.parametrize(("offset", "apart"), [(0.0, 1e-2), (0.0, 5e-3), (100.0, 1.0)])
def test_distances_in_float32_are_those_of_float64_also_when_small_or_far_from_the_origin(
    offset: float, apart: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(8, 64, generator=generator), dim=1) * (1 if apart < 1 else 10)
    step = torch.nn.functional.normalize(torch.randn(8, 64, generator=generator), dim=1)
    both = torch.cat([x, x + apart * step]) + offset
    by_differences = (both.double()[:, None] - both.double()).square().sum(dim=2).sqrt()
    torch.testing.assert_close(distances(both).double(), by_differences, rtol=3e-2, atol=0)


def test_cosines_are_those_of_a_loop_and_a_row_of_zeros_has_none() -> None:
    x, w = torch.randn(3, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    w[2] = 0
    expected = torch.nn.functional.cosine_similarity(x[:, None], w[None], dim=2)
    torch.testing.assert_close(cosines(x, w), expected)
    assert (cosines(x, w)[:, 2] == 0).all()


def test_sums_in_log_space_are_those_of_plain_ones() -> None:
    values, same = torch.randn(4, 4, dtype=torch.float64), torch.tensor([[True, False] * 2] * 4)
    plain = values.exp().masked_fill(same, 0).sum(dim=1)
    torch.testing.assert_close(log_sum_exp_of_others(values, same), plain.log())
    torch.testing.assert_close(log_one_plus_sum(values, ~same), (1 + plain).log())
    assert torch.equal(log_one_plus_sum(values, same & ~same), torch.zeros(4, dtype=torch.float64))


def test_range_and_choice_stay_inside_and_repeat_with_their_seed() -> None:
    for where in (Range(1e-5, 1e-1, log=True), Range(2, 3), Choice(1, "a", None)):
        drawn = [where.sample(random.Random(seed)) for seed in range(50)]
        assert drawn == [where.sample(random.Random(seed)) for seed in range(50)]
        if isinstance(where, Range):
            assert all(where.low <= value <= where.high for value in drawn)
        else:
            assert set(drawn) == set(where.values)
    logs = [Range(1e-4, 1.0, log=True).sample(random.Random(seed)) for seed in range(400)]
    assert 0.4 < sum(value < 1e-2 for value in logs) / 400 < 0.6
