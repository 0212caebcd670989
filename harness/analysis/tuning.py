"""Where the values of a loss come from, if not from a search of its own: the protocol's, and what they were found with;
and how settings differ from the protocol's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import losses
from harness import config
from harness.analysis.results import compared_settings, telling_settings
from harness.spec import BASELINE, BATCH, Trial, Tuned

# Another network, other images or another length of training: published values are meant for the protocol's own.
MEANT_FOR = ("backbone", "weights", "dim", "resize", "crop", "epochs")


@dataclass(frozen=True)
class Difference:
    """A setting of a trial, and what it is elsewhere: a value, or (low, high) for a value in between."""

    name: str
    here: Any
    there: Any

    @property
    def is_range(self) -> bool:
        return isinstance(self.there, tuple) and not isinstance(self.here, tuple)

    @property
    def is_one(self) -> bool:
        """Whether the two are not the same. Of weights a protocol names the kind, a trial also which."""
        if self.is_range:
            low, high = self.there
            return not low <= self.here <= high
        here = str(self.here).partition(":")[0] if self.name == "weights" else self.here
        return bool(here != self.there)


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
    meant for the protocol's own network, images and epochs, and for a method's published dimension."""
    if values.trials:
        return _different(values.found_with, trial)
    protocol = config.protocol(trial.protocol)
    names = [name for name in MEANT_FOR if name != "weights" or "none" in (trial.weights, protocol.settings[name])]
    shared = protocol.shared(trial.dataset)
    shared["dim"] = shared["dim"] or losses.facts(trial.loss).head_dim or None
    return _different({name: shared[name] for name in names}, trial)


def unlike_protocol(trial: Trial) -> list[Difference]:
    """The settings of a trial that are not its protocol's; none if the protocol is gone. Those that the protocol
    searches are each loss's own."""
    protocol = config.find_protocol(trial.protocol)
    if protocol is None:
        return []
    names = [name for name in telling_settings(trial) if name in compared_settings(trial.protocol)]
    if trial.loss not in (BASELINE, *losses.shipped()):  # its batch may be that of its family, which is not known
        names = [name for name in names if name not in BATCH]
    candidates = []
    for images_per_class in images_per_class_of(trial.dataset):
        protocols = config.usual(protocol, trial.dataset, trial.loss, images_per_class)
        candidates.append(_different({name: protocols[name] for name in names}, trial))
    return min(candidates, key=len)


def unusual_knobs(trial: Trial) -> set[str]:
    """The knobs of a trial that are neither its protocol's nor its loss's default; of losses of this package, whose
    defaults are known."""
    protocol = config.find_protocol(trial.protocol)
    if protocol is None or trial.loss not in losses.shipped():
        return set()
    usual = {**losses.defaults(trial.loss), **config.usual(protocol, trial.dataset, trial.loss)}
    return {name for name, value in trial.knobs.items() if name in usual and usual[name] != value}


def images_per_class_of(dataset: str) -> tuple[float, ...]:
    """Known of shipped datasets only; a user's own may have few or many."""
    shipped = config.find_dataset(dataset)
    return (shipped.images_per_class,) if shipped else (float("inf"), 0.0)


def _different(there: Mapping[str, Any], trial: Trial) -> list[Difference]:
    """What is not the same in a trial."""
    compared = [Difference(name, getattr(trial, name), value) for name, value in there.items()]
    return [difference for difference in compared if difference.is_one]
