"""What every loss promises, as checks that run on any Loss class: CHECKS maps a promise to its check.

A check takes the class and raises an error that says how the promise is broken. The tests run the checks on every loss
of this package, `harness check-loss` runs them on any loss. Random draws (anchors, sampled negatives) come from torch's
global generator, which is seeded before each call.
"""

import copy
import inspect
import pickle
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError
from torch.utils._python_dispatch import TorchDispatchMode

from losses import Family, torch_state
from losses.base import Batch, Loss, Z, unit
from losses.contract_hooks import builds_its_head, plans_the_same_again, plans_what_an_epoch_needs
from losses.small import CLASSES, DIM, SEED, Method, Student, compared, loss_of, make, new, teacher_of, usual, value_of

MANY = 256  # numbers, of a parameter
MANY_CLASSES = 11_318  # of Stanford Online Products
MANY_DIM, MANY_IMAGES = 512, 60


def value_and_gradient(loss: "Loss | Method | Student", x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    value = value_of(loss, x, y)
    value.backward()
    # without a gradient: a loss may ignore the embeddings of a batch in which there is nothing to compare
    return value.detach(), x.grad if x.grad is not None else torch.zeros_like(x)


def batches(extreme: float = 1e15) -> dict[str, tuple[Tensor, Tensor]]:
    """The usual batch and degenerate ones, by what is special about them. `extreme`: the longest embeddings."""
    x, y = usual()
    holes = x.clone()
    holes[[0, 3, 4]] = 0
    return {
        "a usual batch": (x, y),
        "one class": (x, torch.zeros_like(y)),
        "one image of a class": (x, torch.tensor([0, 0, 1, 1, 2, 2, 3, 4])),
        "every image alone": (x[:CLASSES], torch.arange(CLASSES)),
        "a single image": (x[:1], y[:1]),
        "identical embeddings": (x[:1].expand(8, DIM).clone(), y),
        "rows of zeros": (holes, y),
        "nothing but zeros": (torch.zeros_like(x), y),
        "constant rows": (torch.full_like(x, 0.1), y),
        f"embeddings of length {extreme:.0e}": (x * extreme, y),
        f"embeddings of length {1 / extreme:.0e}": (x / extreme, y),
        "classes not seen before": (x, torch.tensor([4, 4, 5, 5, 4, 4, 5, 5])),
    }


def says_what_it_is(loss: type[Loss]) -> None:
    for attribute in ("title", "cite"):
        assert isinstance(getattr(loss, attribute, None), str), f"its class has no {attribute}"
    families = get_args(Family)
    assert loss.family in families, f"its family is {loss.family!r}; it must be one of {', '.join(families)}"
    assert loss.__doc__, "its class has no docstring: the formula belongs there"
    assert loss.distance in ("cosine", "euclidean"), f"its distance is {loss.distance!r}; cosine or euclidean"
    for knob in loss.added:
        assert knob in inspect.signature(loss.__init__).parameters, f"`added` names {knob}, which is no knob"


def searches_where_it_may(loss: type[Loss]) -> None:
    for knob, space in loss.space.items():
        for seed in range(10):
            drawn: dict[str, Any] = {knob: space.sample(random.Random(seed))}
            value = value_of(make(loss, torch.float32, **drawn), *usual())
            assert value.isfinite(), f"its value is {value.item()} with {drawn}"


def gives_a_finite_scalar(loss: type[Loss]) -> None:
    # the features of a network are never as long as embeddings could become
    for what, (x, y) in batches(1e7 if loss.head_dim else 1e15).items():
        instance = make(loss)
        if instance.dim_below_batch and len(x) <= DIM:
            refuses(instance, x, y)
            continue
        value, gradient = value_and_gradient(instance, x, y)
        assert value.shape == (), f"{what}: the shape of its value is {tuple(value.shape)}"
        assert value.isfinite(), f"{what}: its value is {value.item()}"
        assert gradient.isfinite().all(), f"{what}: the gradient of the embeddings is not finite"
        for name, parameter in instance.named_parameters():
            sound = parameter.grad is None or parameter.grad.isfinite().all()
            assert sound, f"{what}: the gradient of {name} is not finite"


def learns_from_what_its_family_needs(loss: type[Loss]) -> None:
    """Of single images and of a single class, unless it compares the images of a batch."""
    if loss.family == "pair":
        return
    for what in ("every image alone", "one class"):
        _, gradient = value_and_gradient(make(loss), *batches()[what])
        assert gradient.abs().sum() > 0, f"{what}: it learns nothing, so its family is pair, not {loss.family}"


def refuses(instance: "Loss | Method | Student", x: Tensor, y: Tensor) -> None:
    message = ""
    try:
        instance(x, y)
    except ValueError as error:
        message = str(error)
    assert message, f"it accepts {len(x)} images in {DIM} dimensions, although dim_below_batch says that it does not"
    assert "dim" in message, f"it refuses a small batch without naming dim: {message}"


def is_not_negative(loss: type[Loss]) -> None:
    if not loss.non_negative:
        return
    for what, (x, y) in batches().items():
        instance = make(loss)
        if not (instance.dim_below_batch and len(x) <= DIM):
            value = value_of(instance, x, y).item()
            assert value >= 0, f"{what}: its value is {value}"


def shows_a_network_that_diverged(loss: type[Loss]) -> None:
    x, y = usual()
    x[[1, 2, 5, 6]] = torch.nan
    assert not value_of(make(loss), x, y).isfinite(), "half of the embeddings are NaN, and its value is finite"


def keeps_gradients_in_bounds(loss: type[Loss]) -> None:
    for what in ("rows of zeros", "identical embeddings"):
        _, gradient = value_and_gradient(make(loss), *batches()[what])
        assert gradient.abs().max() < 1e3, f"{what}: its largest gradient is {gradient.abs().max():.3g}"


def has_the_gradient_of_its_value(loss: type[Loss]) -> None:
    instance = make(loss, torch.float64, **loss.exact)
    x, y = usual(torch.float64)
    # a parameter of many numbers would take as many evaluations
    names = [
        name for name, parameter in instance.named_parameters() if parameter.requires_grad and parameter.numel() <= MANY
    ]

    def value(x: Tensor, *parameters: Tensor) -> Tensor:
        torch.manual_seed(SEED)
        return torch.func.functional_call(instance, dict(zip(names, parameters, strict=True)), (x, y))

    parameters = [instance.get_parameter(name).detach().clone().requires_grad_() for name in names]
    try:
        torch.autograd.gradcheck(value, (x.requires_grad_(), *parameters))
    except GradcheckError as error:  # it prints matrices
        raise AssertionError("finite differences of its value give another gradient") from error


def does_not_depend_on_the_order(loss: type[Loss]) -> None:
    """A loss that draws at random: its mean over 200 seeds does not, within four standard errors."""
    instance = make(loss, torch.float64)
    x, y = usual(torch.float64)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    seeds = range(200) if not torch.equal(value_of(instance, x, y, 0), value_of(instance, x, y, 1)) else range(1)
    with torch.no_grad():
        before, after = (
            torch.stack([value_of(instance, x[rows], y[rows], seed + shift) for seed in seeds])
            for rows, shift in ((torch.arange(len(y)), 0), (order, 1000))
        )
    allowed = 1e-9 * before.abs().mean()
    if len(seeds) > 1:
        allowed = 4 * ((before.var() + after.var()) / len(seeds)).sqrt()
    difference = (before.mean() - after.mean()).abs()
    assert difference <= allowed, f"shuffling the batch changes its value by {difference.item():.3g}"


def agrees_in_float32_and_float64(loss: type[Loss]) -> None:
    x, y = usual()
    single, double = value_of(make(loss), x, y), value_of(make(loss).double(), x.double(), y)
    torch.testing.assert_close(single, double.float(), rtol=1e-4, atol=1e-5)


def survives_copying_pickling_and_its_state_dict(loss: type[Loss]) -> None:
    instance = make(loss)
    expected = value_of(instance, *usual())
    other = new(loss)
    other.load_state_dict(instance.state_dict())
    for how, twin in {
        "deepcopy": copy.deepcopy(instance),
        "pickle": pickle.loads(pickle.dumps(instance)),
        "state_dict": other,
    }.items():
        assert torch.equal(value_of(twin, *usual()), expected), f"its value changes after {how}"


def brings_a_class_together(loss: type[Loss]) -> None:
    """Training points in five dimensions with it raises their Recall@1 by more than 0.15."""
    torch.manual_seed(0)
    y = torch.arange(CLASSES).repeat_interleave(6)
    points = nn.Parameter(torch.randn(CLASSES, DIM)[y] + 1.2 * torch.randn(len(y), DIM))
    instance = make(loss)
    before = recall_at_1(compared(instance, points).detach(), y, loss.distance)
    groups = [{"params": [points]}]
    if owned := list(instance.parameters()):
        groups.append({"params": owned, "lr": 0.02 * instance.lr_factor})  # type: ignore[dict-item]
    optimizer = torch.optim.Adam(groups, lr=0.02)
    for _ in range(200):
        optimizer.zero_grad()
        instance(points, y).backward()
        optimizer.step()
    after = recall_at_1(compared(instance, points).detach(), y, loss.distance)
    assert after > before + 0.15, f"Recall@1 went from {before:.2f} to {after:.2f}"


def recall_at_1(points: Tensor, y: Tensor, distance: str) -> float:
    x = points if distance == "euclidean" else unit(points)
    nearest = torch.cdist(x, x).fill_diagonal_(torch.inf).argmin(dim=1)
    return (y[nearest] == y).double().mean().item()


def stays_small_with_many_classes(loss: type[Loss]) -> None:
    """All that a step allocates, freed or not, is at most half a gigabyte plus 20 times the loss's parameters. A matrix
    of all pairs of classes and its gradient would take a gigabyte."""
    dim = 32 if loss.dim_below_batch else MANY_DIM
    torch.manual_seed(0)
    instance = new(loss, MANY_CLASSES, dim)
    x = torch.randn(MANY_IMAGES, dim, requires_grad=True)
    y = torch.randint(MANY_CLASSES, (MANY_IMAGES // 6,)).repeat_interleave(6)
    z: Z = x
    batch = Batch(x.detach(), y, teacher=teacher_of(y))
    if isinstance(instance, Method):  # of a method the loss alone: its head's maps are as large as the network's
        made = instance.z(x)
        parts = {"embedding": made} if isinstance(made, Tensor) else made
        leaves = {name: part.detach().requires_grad_() for name, part in parts.items()}
        z = leaves["embedding"] if isinstance(made, Tensor) else leaves
    with Allocated() as counted:
        loss_of(instance).value(z, y, batch).backward()
    owned = sum(parameter.numel() * parameter.element_size() for parameter in instance.parameters())
    allowed = 2**29 + 20 * owned
    assert counted.bytes <= allowed, f"a step allocates {counted.bytes / 1e6:.0f} MB; allowed: {allowed / 1e6:.0f}"


class Allocated(TorchDispatchMode):
    """Counts the bytes of every new tensor: an upper bound of what is in memory at once."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors(out) if tensor._base is None)
        return out


def tensors(out: Any) -> Iterator[Tensor]:
    if isinstance(out, Tensor):
        yield out
    elif isinstance(out, tuple | list):
        for item in out:
            yield from tensors(item)


def leaves_torch_as_it_is(loss: type[Loss]) -> None:
    with torch_state.kept():
        before = torch_state.current()
        value_and_gradient(make(loss), *usual())
        after = torch_state.current()
    for name, value in after.items():
        assert value == before[name], f"it changes torch's {name} from {before[name]} to {value}, for all that follows"


CHECKS: Mapping[str, Callable[[type[Loss]], None]] = {
    "says what it is": says_what_it_is,
    "is finite with anything search may draw": searches_where_it_may,
    "gives a finite scalar and finite gradients on any batch": gives_a_finite_scalar,
    "learns from what its family needs": learns_from_what_its_family_needs,
    "is not negative": is_not_negative,
    "shows a network that diverged": shows_a_network_that_diverged,
    "keeps gradients in bounds on degenerate batches": keeps_gradients_in_bounds,
    "has the gradient of its value": has_the_gradient_of_its_value,
    "does not depend on the order of the batch": does_not_depend_on_the_order,
    "agrees in float32 and float64": agrees_in_float32_and_float64,
    "survives copying, pickling and its state dict": survives_copying_pickling_and_its_state_dict,
    "leaves torch's settings as they are": leaves_torch_as_it_is,
    "brings a class together": brings_a_class_together,
    "stays small with 11,318 classes": stays_small_with_many_classes,
    "builds a head that compares any classes": builds_its_head,
    "plans the same batches again, also resumed": plans_the_same_again,
    "plans what an epoch needs": plans_what_an_epoch_needs,
}
