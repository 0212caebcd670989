"""The contract of a loss, and the geometry that several losses share."""

import inspect
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from losses import Family
from losses.hooks import Batch, Planned, Trunk, View, Z
from losses.space import Choice, Count, Limit, Positive, Range, Rates

__all__ = [
    "Batch",
    "Choice",
    "Count",
    "Limit",
    "Loss",
    "Planned",
    "Positive",
    "Range",
    "Rates",
    "Trunk",
    "View",
    "Z",
    "cosines",
    "distances",
    "gram",
    "log_one_plus_sum",
    "log_sum_exp_of_others",
    "squared_distances",
    "unit",
]


class Loss(nn.Module):
    """A metric-learning loss: raw embeddings (n, dim) and labels (n,) in 0..num_classes-1 to a scalar.

    A loss owns its parameters (classifier, proxies, centres) and normalises the embeddings itself where its paper
    does. A linear classifier, if it has one, is called `classifier`, so that pre-training can pass its weights on.
    Knobs are keyword arguments with a type and a default. A `Literal` lists the allowed values, `Positive` is a number
    above 0, `Count` an integer from 0 on, and `Annotated[float, Limit(least=0, most=1)]` states other limits.

    A method that is more than a loss overrides one of four hooks, `head`, `represent`, `plan` and a third argument of
    `forward`. A loss without them gets the usual embedding layer and the usual batches. A knob called `teacher` names
    the loss of a trial that is trained first: `batch.teacher` is its network.
    """

    title: ClassVar[str]
    cite: ClassVar[str]  # authors, venue and year, as a table prints them
    family: ClassVar[Family] = "pair"  # what it learns from, and so what a batch must hold
    bibtex: ClassVar[str] = ""  # the complete entry; every loss of this package has one
    version: ClassVar[int | str] = 1  # raised by a change that alters the loss's numbers
    space: ClassVar[dict[str, Range | Choice]] = {}  # what random search may vary
    added: ClassVar[dict[str, Any]] = {}  # knobs added after records existed: the value that means "as before"
    non_negative: ClassVar[bool] = True
    dim_below_batch: ClassVar[bool] = False  # it refuses a batch with no more images than dimensions
    decay: ClassVar[bool] = True  # whether weight decay applies to its parameters
    exact: ClassVar[dict[str, Any]] = {}  # knob values that make the gradient exact, where by default it is not
    distance: ClassVar[Literal["cosine", "euclidean"]] = "cosine"  # euclidean: lengths count when images are compared
    head_dim: ClassVar[int] = 0  # of a method with its own head: its published dimension
    extras: ClassVar[str] = ""  # what a method has that a loss has not, as sentences for a table's footnote

    lr_factor: float = 1.0  # learning rate of its parameters, relative to the head's

    def __init__(self, num_classes: int, dim: int) -> None:
        super().__init__()
        if num_classes < 2:
            raise ValueError(f"num_classes={num_classes}: a loss compares classes and needs at least 2")
        self.num_classes = num_classes
        self.dim = dim

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """A loss that names a third argument, `batch`, gets the Batch too. `embeddings` is what its head gives."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def value(self, z: Z, labels: Tensor, batch: Batch) -> Tensor:
        """`forward`, with the batch if it names one."""
        more = {"batch": batch} if "batch" in inspect.signature(self.forward).parameters else {}
        value = self(z, labels, **more)
        if not isinstance(value, Tensor) or value.numel() != 1:
            returned = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise TypeError(f"forward returned {returned}; it must return one number as a tensor, e.g. the mean")
        return value

    def head(self, trunk: Trunk) -> nn.Module:
        """The module from normalised images to embeddings (n, dim), or to a dict with more, in place of the embedding
        layer. It depends on the knobs and on `dim`, not on the training classes, and does not own the trunk."""
        raise NotImplementedError(f"{type(self).__name__} has no head of its own")

    def represent(self, z: Z) -> Tensor:
        """What is compared at test time, (n, D), from what the head gives; it depends on the knobs alone. Its length is
        then made 1, unless `distance` is euclidean."""
        assert isinstance(z, Tensor), f"{type(self).__name__} does not say which part of its head's output is compared"
        return z

    def plan(self, epoch: int, view: View) -> Sequence[Planned] | None:
        """Called before an epoch, the first of which is 1. Its batches, or None for the usual ones. What it remembers
        is in buffers, so that a resumed run is the same."""
        return None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """An empty buffer takes any shape: how many images a plan is for is not known before it is made."""
        for name, buffer in self._buffers.items():
            stored = state_dict.get(prefix + name)
            if buffer is not None and stored is not None and not buffer.numel():
                self._buffers[name] = buffer.new_empty(stored.shape)
        super()._load_from_state_dict(state_dict, prefix, *args)


def unit(x: Tensor) -> Tensor:
    """Rows divided by their L2 norm. A row of zeros stays zero and gets no gradient.

    Dividing by the largest entry first keeps the squares from overflowing or vanishing; it does not change the
    gradient, because the direction of a vector does not depend on its length.
    """
    largest = x.detach().abs().amax(dim=1, keepdim=True)
    alive = largest != 0  # also true of a NaN, which must show, not become 0
    scaled = x / torch.where(alive, largest, 1)
    squared = scaled.square().sum(dim=1, keepdim=True)
    return torch.where(alive, scaled * torch.where(alive, squared, 1).rsqrt(), 0)


def cosines(x: Tensor, w: Tensor) -> Tensor:
    """Cosine similarities of the rows of x (n, d) and of the parameters w (m, d), as (n, m); 0 for a row of zeros.

    Products with raw w are divided by its lengths: no second copy of up to 11,318 x 512 numbers.
    """
    lengths = w.norm(dim=1)
    return unit(x) @ w.T * lengths.masked_fill(lengths == 0, torch.inf).reciprocal()


def gram(x: Tensor) -> Tensor:
    """x x^T whose gradient takes one matrix product instead of two: a transpose gives the other half."""
    half = x @ x.detach().T
    return half + (half.T - half.detach())


def squared_distances(x: Tensor) -> Tensor:
    """Squared Euclidean distances of the rows of x (n, d), as (n, n).

    They come from one matrix product: at 512 x 512 about 15 times faster than from differences. Rows closer than the
    product's rounding error have distance 0 and gradient 0; for unit-length embeddings in float32 that is closer than
    0.0014. Moving the origin to the batch's mean changes no distance and keeps that error small.
    """
    x = x - x.detach().mean(dim=0)
    lengths = x.square().sum(dim=1)
    both = lengths[:, None] + lengths
    squared = both - 2 * gram(x)
    equal = squared.detach() <= 8 * torch.finfo(x.dtype).eps * both.detach()  # false for a NaN, which must show
    return squared.masked_fill(equal.fill_diagonal_(True), 0)


def distances(x: Tensor) -> Tensor:
    """Euclidean distances of the rows of x (n, d), as (n, n); the gradient at distance 0 is 0."""
    squared = squared_distances(x)
    equal = squared.detach() == 0
    return squared.masked_fill(equal, 1).sqrt().masked_fill(equal, 0)


def log_one_plus_sum(exponents: Tensor, of: Tensor) -> Tensor:
    """log(1 + sum of e^exponents) over the true entries of each row of `of`; 0 for a row without any.

    Computed as minus the log-softmax of a 0 put before them: the 1 keeps an empty row's gradient from being 0/0, and
    unlike logsumexp it is not slow where an exponential vanishes.
    """
    return -F.pad(exponents.masked_fill(~of, -torch.inf), (1, 0)).log_softmax(dim=1)[:, 0]


def log_sum_exp_of_others(values: Tensor, same: Tensor) -> Tensor:
    """log of the sum of exp(values) along each row over samples of other classes, (n,); very low where there are none.

    A term below exp(-40) = 4e-18 times the row's largest counts as that much and gets no gradient: subnormal numbers
    make exponentials and products many times slower on a CPU.
    """
    largest = values.detach().masked_fill(same, torch.finfo(values.dtype).min).amax(dim=1, keepdim=True)
    terms = (values - largest).masked_fill(same, -40).clamp_min(-40).exp()
    return terms.sum(dim=1).log() + largest.squeeze(1)
