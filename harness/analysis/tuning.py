"""Where the values of a loss come from, if not from a search of its own: the protocol's, and what they were found with;
and how settings differ from the protocol's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import losses
from harness import config
from harness.analysis.results import compared_settings, telling_settings
from harness.spec import BATCH, Trial, Tuned

# Another network, other images or another length of training: published values are meant for the protocol's own.
MEANT_FOR = ("backbone", "weights", "dim", "resize", "crop", "epochs")


@dataclass(frozen=True)
class Difference:
    """A setting of a trial, and what it is elsewhere: a value, or (low, high) for a value in between."""

    name: str
    here: Any
    there: Any


def tuned(trial: Trial) -> Tuned | None:
    """The protocol's values for a trial's loss on its dataset; None if it has none, or the trial has none of them
    because others were set or chosen."""
    protocol = config.find_protocol(trial.protocol)
    values = protocol.tuned.get(trial.dataset, {}).get(trial.loss) if protocol else None
    return values if values and any(_has(trial, name, value) for name, value in values.values.items()) else None


def _has(trial: Trial, name: str, value: Any) -> bool:
    mine = trial.knobs[name] if name in trial.knobs else getattr(trial, name, None)
    return bool(mine == value)


def found_elsewhere(trial: Trial, values: Tuned) -> list[Difference]:
    """The settings of a trial that are not those its protocol's values were found with. Values that no search found are
    meant for the protocol's own network, images and epochs."""
    if values.trials:
        return _different(values.found_with, {name: getattr(trial, name) for name in values.found_with})
    protocol = config.protocol(trial.protocol)
    names = [name for name in MEANT_FOR if name != "weights" or "none" in (trial.weights, protocol.settings[name])]
    shared = protocol.shared(trial.dataset)
    return _different({name: shared[name] for name in names}, {name: getattr(trial, name) for name in names})


def unlike_protocol(trial: Trial) -> list[Difference]:
    """The settings of a trial that are not its protocol's; none if the protocol is gone. Those that the protocol
    searches are each loss's own."""
    protocol = config.find_protocol(trial.protocol)
    if protocol is None:
        return []
    names = [name for name in telling_settings(trial) if name in compared_settings(trial.protocol)]
    if (
        trial.loss not in losses.shipped() and not trial.is_baseline
    ):  # the batch may be its family's, which is not known
        names = [name for name in names if name not in BATCH]
    here = {name: getattr(trial, name) for name in names}
    candidates = [
        _different({name: there[name] for name in names}, here)
        for there in (
            config.usual(protocol, trial.dataset, trial.loss, size) for size in _images_per_class(trial.dataset)
        )
    ]
    return min(candidates, key=len)


def _images_per_class(dataset: str) -> tuple[float, ...]:
    """Known of shipped datasets only; a user's own may have few or many."""
    shipped = config.find_dataset(dataset)
    return (shipped.images_per_class,) if shipped else (float("inf"), 0.0)


def _different(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[Difference]:
    return [Difference(name, here[name], value) for name, value in there.items() if not _fits(name, here[name], value)]


def _fits(name: str, here: Any, there: Any) -> bool:
    if name == "weights":  # a protocol names the kind, a trial also which
        return str(here).partition(":")[0] == there
    if isinstance(there, tuple) and not isinstance(here, tuple):
        low, high = there
        return bool(low <= here <= high)
    return bool(here == there)
