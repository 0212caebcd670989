"""A bridge: `pml:CircleLoss` is the loss of that name in pytorch-metric-learning, with its constructor's knobs."""

import inspect
from functools import cache
from importlib.metadata import version
from typing import Any

from torch import Tensor

from losses.base import Loss

PREFIX = "pml:"
PACKAGE = "pytorch-metric-learning"
FILLED = {"num_classes": "num_classes", "embedding_size": "dim", "descriptors_dim": "dim"}  # their name -> ours

SHARED = ("base_metric_loss_function", "base_loss_wrapper", "generic_pair_loss", "mixins")  # modules of theirs


@cache
def bridge(name: str) -> type[Loss]:
    """The loss called `name` there, as a Loss of ours; a KeyError that says why where there is none."""
    try:
        from pytorch_metric_learning import losses as theirs
    except ImportError:
        raise KeyError(f"{PREFIX}{name} needs {PACKAGE}: pip install 'metric-loss-harness[pml]'") from None
    base, abstract = theirs.BaseMetricLossFunction, (theirs.BaseMetricLossFunction, theirs.GenericPairLoss)
    classes = {key: one for key, one in vars(theirs).items() if isinstance(one, type) and issubclass(one, base)}
    known = sorted(key for key, one in classes.items() if one not in abstract)
    if name not in known:
        raise KeyError(f"{PACKAGE} {version(PACKAGE)} has no loss named {name!r}; it has: {', '.join(known)}")
    original = getattr(theirs, name)
    arguments = constructor(original)
    filled = {key: FILLED[key] for key, one in arguments.items() if key in FILLED and one.default is one.empty}
    knobs = {key: one for key, one in arguments.items() if key not in filled and kind(one) is not None}

    class Bridged(Loss):
        __doc__ = f"{name} of {PACKAGE}, as it is there."

        title = f"{name} (PML)"
        cite = PACKAGE
        non_negative = False  # what its paper says is not known here

        def __init__(self, num_classes: int, dim: int, *, lr_factor: float = 1.0, **given: Any) -> None:
            super().__init__(num_classes, dim)
            self.lr_factor = lr_factor
            sizes = {key: getattr(self, ours) for key, ours in filled.items()}
            whole = {key: fitting(value, knobs[key].default) for key, value in given.items()}
            self.original = original(**sizes, **whole)

        def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
            value: Tensor = self.original(embeddings, labels)
            return value

    Bridged.version = version(PACKAGE)
    Bridged.__name__ = Bridged.__qualname__ = name  # pickle finds it as losses.pml.CircleLoss
    Bridged.__module__ = __name__
    Bridged.__init__.__signature__ = signature(knobs)  # type: ignore[attr-defined]
    return Bridged


def constructor(original: type) -> dict[str, inspect.Parameter]:
    """Its arguments and those it passes on to the losses it is made of; not what all of them share (reducers,
    regularisers), which are objects."""
    found: dict[str, inspect.Parameter] = {}
    for part in original.__mro__:
        home, _, module = part.__module__.rpartition(".")
        if home == "pytorch_metric_learning.losses" and module not in SHARED:
            for one in inspect.signature(part.__init__).parameters.values():  # type: ignore[misc]
                if one.name != "self" and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
                    found.setdefault(one.name, one)
    return found


def kind(one: inspect.Parameter) -> type | None:
    """What a knob takes: where theirs has 0 or 1 for a margin any number is meant; None for what is no plain value.
    One without a default is taken for a number."""
    if one.default is one.empty:
        return float
    return {bool: bool, int: float, float: float, str: str}.get(type(one.default))


def signature(knobs: dict[str, inspect.Parameter]) -> inspect.Signature:
    """As a loss of ours declares its knobs."""
    fixed = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", "num_classes", "dim")
    ]
    own = [inspect.Parameter("lr_factor", inspect.Parameter.KEYWORD_ONLY, default=1.0, annotation=float)]
    theirs = [
        one.replace(
            kind=one.KEYWORD_ONLY,
            annotation=kind(one),
            default=float(one.default) if type(one.default) is int else one.default,
        )
        for one in knobs.values()
    ]
    return inspect.Signature([*fixed, *own, *theirs])


def fitting(value: Any, default: Any) -> Any:
    """A whole number where theirs has one: 10 centres, not 10.0."""
    whole = type(default) is int or default is inspect.Parameter.empty
    return int(value) if whole and isinstance(value, float) and value.is_integer() else value


def __getattr__(name: str) -> type[Loss]:
    """losses.pml.CircleLoss, for pickle."""
    try:
        return bridge(name)
    except KeyError as error:
        raise AttributeError(error.args[0]) from None
