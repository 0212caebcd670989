"""The bridge to pytorch-metric-learning: `pml:CircleLoss` is the loss of that name there, with its own knobs."""

import inspect
from functools import cache
from importlib.metadata import version
from typing import Any

from torch import Tensor

from losses import LossError, UnknownLossError
from losses.base import Loss

PREFIX = "pml:"
PACKAGE = "pytorch-metric-learning"
# arguments of theirs that are no knobs here -> the attribute of Loss that fills them in
FILLED = {
    "num_classes": "num_classes",
    "embedding_size": "dim",
    "descriptors_dim": "dim",
}
# losses of theirs whose values are wrong: name and version -> why
REFUSED = {
    ("SmoothAPLoss", "2.9.0"): "its value is wrong unless a batch has as many classes as images per class, and changes "
    "with the order of the batch",
}
SHARED = ("base_metric_loss_function", "base_loss_wrapper", "generic_pair_loss", "mixins")  # modules of theirs


@cache
def bridge(name: str) -> type[Loss]:
    """Their loss called `name`, as a Loss of ours. A LossError says why there is none."""
    try:
        from pytorch_metric_learning import losses as theirs
    except ImportError:
        raise LossError(f"{PREFIX}{name} needs {PACKAGE}: pip install 'metric-loss-harness[pml]'") from None
    base, abstract = theirs.BaseMetricLossFunction, (theirs.BaseMetricLossFunction, theirs.GenericPairLoss)
    classes = {key: item for key, item in vars(theirs).items() if isinstance(item, type) and issubclass(item, base)}
    known = sorted(key for key, item in classes.items() if item not in abstract)
    if name not in known:
        raise UnknownLossError(name, known, f" in {PACKAGE} {version(PACKAGE)}")
    reason = REFUSED.get((name, version(PACKAGE)))
    if reason:
        raise LossError(f"{PACKAGE} {version(PACKAGE)}: {reason}")
    original = getattr(theirs, name)
    arguments = constructor(original)
    filled = {key: FILLED[key] for key, item in arguments.items() if key in FILLED and item.default is item.empty}
    knobs = {key: item for key, item in arguments.items() if key not in filled and kind(item) is not None}

    class Bridged(Loss):
        __doc__ = f"{name} of {PACKAGE}, unchanged."

        title = f"{name} (PML)"
        cite = PACKAGE
        # their classes do not say; one that is told the number of classes owns a vector for each
        family = "proxy" if "num_classes" in filled else "pair"
        non_negative = False  # unknown: their classes do not say

        def __init__(self, num_classes: int, dim: int, *, lr_factor: float = 1.0, **given: Any) -> None:
            super().__init__(num_classes, dim)
            self.lr_factor = lr_factor
            sizes = {key: getattr(self, ours) for key, ours in filled.items()}
            values = {key: fitting(value, knobs[key].default) for key, value in given.items()}
            self.original = original(**sizes, **values)

        def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
            value: Tensor = self.original(embeddings, labels)
            return value

    Bridged.version = version(PACKAGE)
    Bridged.__name__ = Bridged.__qualname__ = name  # pickle looks it up as losses.pml.CircleLoss
    Bridged.__module__ = __name__
    Bridged.__init__.__signature__ = signature(knobs)  # type: ignore[attr-defined]
    return Bridged


def constructor(original: type) -> dict[str, inspect.Parameter]:
    """The arguments of their class and of the losses it derives from, without those that all of them share (reducers,
    regularisers), which are objects."""
    arguments: dict[str, inspect.Parameter] = {}
    for part in original.__mro__:
        home, _, module = part.__module__.rpartition(".")
        if home == "pytorch_metric_learning.losses" and module not in SHARED:
            for item in inspect.signature(part.__init__).parameters.values():  # type: ignore[misc]
                if item.name != "self" and item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY):
                    arguments.setdefault(item.name, item)
    return arguments


def kind(knob: inspect.Parameter) -> type | None:
    """The type of a knob, or None if its default is no plain value. A knob without a default is a number, and so is
    one whose default is an integer: a margin of 0 or 1 there means any number."""
    if knob.default is knob.empty:
        return float
    return {bool: bool, int: float, float: float, str: str}.get(type(knob.default))


def signature(knobs: dict[str, inspect.Parameter]) -> inspect.Signature:
    """The signature of a constructor that declares these knobs as our losses do."""
    fixed = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", "num_classes", "dim")
    ]
    own = [inspect.Parameter("lr_factor", inspect.Parameter.KEYWORD_ONLY, default=1.0, annotation=float)]
    theirs = [
        knob.replace(
            kind=knob.KEYWORD_ONLY,
            annotation=kind(knob),
            default=float(knob.default) if type(knob.default) is int else knob.default,
        )
        for knob in knobs.values()
    ]
    return inspect.Signature([*fixed, *own, *theirs])


def fitting(value: Any, default: Any) -> Any:
    """An integer where their default is one: 10 centres, not 10.0."""
    whole = type(default) is int or default is inspect.Parameter.empty
    return int(value) if whole and isinstance(value, float) and value.is_integer() else value


def __getattr__(name: str) -> type[Loss]:
    """losses.pml.CircleLoss, for pickle."""
    try:
        return bridge(name)
    except LossError as error:
        raise AttributeError(str(error)) from None
