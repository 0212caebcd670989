"""What every registered loss promises."""

import copy
import inspect
import pickle
import random

import pytest
import torch
from torch import Tensor

import losses
from harness import config
from losses.base import Choice, Loss, Range, squared_distances, unit

CLASSES, DIM = 6, 5
EVERY = pytest.mark.parametrize("name", losses.names())


def make(name: str, dtype: torch.dtype = torch.float32) -> Loss:
    torch.manual_seed(0)
    return losses.get(name)(CLASSES, DIM).to(dtype)


def value_and_gradient(loss: Loss, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    torch.manual_seed(7)  # random draws such as anchors held fixed
    x = x.detach().requires_grad_()
    value = loss(x, y)
    value.backward()
    # a loss may not use the embeddings at all where a batch gives it nothing to compare
    return value.detach(), x.grad if x.grad is not None else torch.zeros_like(x)


def test_the_core_losses_are_registered() -> None:
    assert {"group", "triplet", "proxy_nca", "normalized_softmax", "softmax"} <= set(losses.names())


def test_importing_the_registry_does_not_import_torch() -> None:
    import subprocess
    import sys

    code = "import sys, losses; losses.names(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@EVERY
def test_says_what_it_is(name: str) -> None:
    spec = config.loss(name)
    assert spec.title
    assert spec.cite
    assert spec.version >= 1
    assert inspect.getdoc(losses.get(name))
    assert set(spec.space) <= set(spec.knobs)


@EVERY
def test_what_search_draws_is_allowed(name: str) -> None:
    spec = config.loss(name)
    rng = random.Random(0)
    for knob, where in spec.space.items():
        drawn = [where.sample(rng) for _ in range(20)]
        assert all(spec.knobs[knob].check(value) == value for value in drawn)
        losses.get(name)(CLASSES, DIM, **{knob: drawn[0]})


def batch(kind: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, DIM, generator=generator, dtype=dtype)
    y = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    match kind:
        case "one class":
            y = torch.zeros(8, dtype=torch.long)
        case "one image of a class":
            y = torch.tensor([0, 0, 1, 1, 2, 2, 3, 4])
        case "every image alone":
            x, y = x[:6], torch.arange(6)
        case "a single image":
            x, y = x[:1], y[:1]
        case "identical embeddings":
            x = x[:1].expand(8, DIM).clone()
        case "zero rows":
            x[[0, 3, 4]] = 0
        case "all zero":
            x = torch.zeros_like(x)
        case "constant rows":
            x = torch.full_like(x, 0.1)
        case "huge":
            x = x * 1e15
        case "tiny":
            x = x * 1e-15
    return x, y


KINDS = (
    "usual",
    "one class",
    "one image of a class",
    "every image alone",
    "a single image",
    "identical embeddings",
    "zero rows",
    "all zero",
    "constant rows",
    "huge",
    "tiny",
)


@EVERY
@pytest.mark.parametrize("kind", KINDS)
def test_any_batch_gives_a_finite_scalar_and_finite_gradients(name: str, kind: str) -> None:
    loss = make(name)
    value, gradient = value_and_gradient(loss, *batch(kind))
    assert value.shape == ()
    assert value.isfinite()
    assert gradient.isfinite().all()
    for parameter in loss.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()


@EVERY
def test_a_network_that_diverged_is_seen_in_the_loss(name: str) -> None:
    x, y = batch("usual")
    x[[1, 2, 5, 6]] = torch.nan
    torch.manual_seed(0)
    assert not make(name)(x, y).isfinite()


DEFAULTS = {
    "group": {"anchors": 2, "steps": 1, "temperature": 24.0, "similarity": "pearson", "negatives": "clamp"},
    "triplet": {"margin": 0.2},
    "proxy_nca": {"scale": 3.0, "proxy_scale": 3.0},
    "normalized_softmax": {"temperature": 0.05},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_the_published_ones(name: str) -> None:
    """Written down here from the papers and the released code, see each docstring."""
    defaults = {knob: field.default for knob, field in config.loss(name).knobs.items()}
    if name == "group":
        expected = {**DEFAULTS[name], "zero_diagonal": True, "cross_entropy": 0.0, "classes": "all", "bias": True}
        assert defaults == {**expected, "objective": "cross_entropy"}
    else:
        assert {**defaults, **DEFAULTS[name]} == defaults


@EVERY
@pytest.mark.parametrize("kind", ["zero rows", "identical embeddings"])
def test_degenerate_rows_do_not_blow_the_gradient_up(name: str, kind: str) -> None:
    _, gradient = value_and_gradient(make(name), *batch(kind))
    assert gradient.abs().max() < 1e3


@EVERY
def test_float32_agrees_with_float64(name: str) -> None:
    loss, precise = make(name), make(name).double()
    anchors = {"anchors": torch.tensor([True, False] * 4)} if name == "group" else {}
    x, y = batch("usual")
    torch.testing.assert_close(loss(x, y, **anchors), precise(x.double(), y, **anchors).float(), rtol=1e-4, atol=1e-5)


@EVERY
def test_survives_copying_pickling_and_its_state_dict(name: str) -> None:
    loss = make(name)
    x, y = batch("usual")
    expected = value_and_gradient(loss, x, y)[0]
    other = losses.get(name)(CLASSES, DIM)
    other.load_state_dict(loss.state_dict())
    for twin in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss)), other):
        assert torch.equal(value_and_gradient(twin, x, y)[0], expected)


@EVERY
def test_training_points_with_it_brings_a_class_together(name: str) -> None:
    from harness.evaluate import recall_at_k

    torch.manual_seed(0)
    y = torch.arange(CLASSES).repeat_interleave(6)
    centres = torch.randn(CLASSES, DIM)
    points = torch.nn.Parameter(centres[y] + 1.2 * torch.randn(len(y), DIM))
    loss = make(name)
    before = recall_at_k(unit(points.detach()), y, (1,))[1]
    optimizer = torch.optim.Adam([points, *loss.parameters()], lr=0.02)
    for _ in range(200):
        optimizer.zero_grad()
        loss(points, y).backward()
        optimizer.step()
    assert recall_at_k(unit(points.detach()), y, (1,))[1] > before + 0.15


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


def test_unit_and_distances_pass_gradcheck() -> None:
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(unit, (x,))
    assert torch.autograd.gradcheck(lambda x: squared_distances(x, x.flip(0)[1:]), (x,))


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
