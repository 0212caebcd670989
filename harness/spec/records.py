"""Result, Failure and Stopped: what is stored, and how records of older versions are read."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.spec.trial import Trial, short_hash

SCHEMA = 1  # of a stored result
# schema -> what makes a record of it one of the next schema
UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}

COLLAPSED = 0.999  # an embedding in which images of different classes have this mean cosine tells nothing apart

Metrics = Mapping[str, float]
Purpose = Literal["search", "grid", "run"]


@dataclass(frozen=True, kw_only=True)
class Result:
    """The outcome of one trial, of an ensemble of trials that differ in their seed only, or of a trial measured again.
    Written once; metrics are unrounded fractions."""

    trial: Trial  # of an ensemble: its first member's
    title: str
    cite: str
    metrics: Metrics
    conventions: Mapping[str, str]  # how metrics that have several definitions were computed
    curve: tuple[Mapping[str, float], ...]  # one row per epoch; epoch 0 is the warm-up
    # train, warmup, pretrain (done here, not by another trial), validate (after epochs), evaluate (at the end), images
    # (preparing them), wait (for another trial). "total" is the work: all but images and wait. Records without "wait"
    # are older: no validate, waiting counts as pretrain, and a baseline's total is the wall clock.
    seconds: Mapping[str, float]
    parameters: int
    artifacts: Mapping[str, Mapping[str, str]]  # files in the storage: path and sha256
    provenance: Mapping[str, Any]
    ensemble: int = 0  # how many networks are joined; 0: a single trial
    members: tuple[str, ...] = ()  # ids of the trials the networks are taken from
    recipe: str = ""  # of NMI, where a stored run was measured again with another one

    @property
    def id(self) -> str:
        """Follows from the content: recipe and trial, size and members, or the trial alone."""
        if self.recipe:
            return short_hash(f"{self.recipe} of {self.trial.id}")
        return ensemble_id(self.ensemble, self.members) if self.is_ensemble else self.trial.id

    @property
    def is_ensemble(self) -> bool:
        return self.ensemble > 0

    @property
    def is_single(self) -> bool:
        """A trained network as its trial measured it: neither an ensemble nor measured again."""
        return not self.is_ensemble and not self.recipe

    @property
    def is_final(self) -> bool:
        """A single run of a loss on test classes."""
        return self.is_single and self.trial.is_final

    @property
    def purpose(self) -> Purpose:
        """What its trial was run for. Records from before this was stored: validation runs were searches."""
        stored: Purpose | None = self.provenance.get("purpose")
        return stored or ("run" if self.trial.on_test else "search")

    @property
    def label(self) -> str:
        """The loss as a table names it."""
        return f"{self.title}, {self.ensemble}-ensemble" if self.is_ensemble else self.title

    @property
    def has_curves(self) -> bool:
        return has_curves(self.curve)

    @property
    def idle_epochs(self) -> tuple[int, ...]:
        """The epochs in which the loss was 0 in every step, so that nothing was learned."""
        return tuple(int(row["epoch"]) for row in self.curve if row.get("loss") == 0)

    @property
    def has_collapsed(self) -> bool:
        """Whether all its test images have nearly the same embedding; conventions["collapsed"] has the number."""
        return "collapsed" in self.conventions

    @property
    def collapsed_in(self) -> int | None:
        """The epoch from which on the embedding was collapsed; None if it has not collapsed, or the curve does not
        say when."""
        if not self.has_collapsed:
            return None
        first = None
        for row in reversed(self.curve):
            if row["epoch"] == 0 or row.get("cosine", 0.0) < COLLAPSED:
                break
            first = int(row["epoch"])
        return first

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "id": self.id, **dataclasses.asdict(self), "trial": self.trial.to_json()}

    @classmethod
    def from_json(cls, data: Any) -> "Result":
        """A stored result; a ValueError says why the data is not one."""
        data = upgrade(data)
        try:
            needed = {item.name for item in dataclasses.fields(cls) if item.default is dataclasses.MISSING}
            fields = {item.name: data[item.name] for item in dataclasses.fields(cls) if item.name in {*needed, *data}}
            tuples = {name: tuple(fields.get(name, ())) for name in ("curve", "members")}
            result = cls(**{**fields, **tuples, "trial": Trial.from_json(fields["trial"])})
            _check(result)
            id = result.id
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a result of this harness: {error}") from None
        if data.get("id") != id:
            raise ValueError(f"its trial hashes to {id}, not to its id {data.get('id')}")
        return result


def upgrade(data: Any) -> dict[str, Any]:
    """The record in today's schema."""
    if not isinstance(data, dict) or not isinstance(data.get("schema"), int):
        raise ValueError("not a result of this harness")
    while data["schema"] in UPGRADES:
        data = UPGRADES[data["schema"]](data)
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema {data['schema']}, this version reads up to {SCHEMA}")
    return data


def _check(result: Result) -> None:
    """A ValueError if a record lacks what every reader of results relies on."""

    def require(condition: bool, complaint: str) -> None:
        if not condition:
            raise ValueError(f"not a result of this harness: {complaint}")

    require("R@1" in result.metrics, "it has no R@1")
    require("total" in result.seconds, "it has no total seconds")
    numbers = {**result.metrics, **result.seconds, "parameters": result.parameters, "ensemble": result.ensemble}
    for row in result.curve:
        require("epoch" in row, "a row of its curve has no epoch")
        numbers |= {f"{name} of the curve": value for name, value in row.items()}
    for name, value in numbers.items():
        require(isinstance(value, int | float), f"{name}={value!r} is not a number")
    for name, value in result.metrics.items():
        require(re.fullmatch(r"R@[1-9]\d*|(?!R@).+", name) is not None, f"{name!r} is not the name of a metric")
        require(math.isfinite(value), f"the metric {name}={value!r} is not finite")
    for text in (result.title, result.cite, result.recipe, *result.members):
        require(isinstance(text, str), f"{text!r} is not text")
    for part in (result.conventions, result.artifacts):
        require(isinstance(part, dict), f"{part!r} is not a table")
    threads = result.provenance.get("threads")
    require(threads is None or isinstance(threads, int), f"threads={threads!r} is not an integer")


def has_curves(curve: Iterable[Mapping[str, float]]) -> bool:
    """Whether the training classes were measured after every epoch, as --curves asks."""
    return all("train R@1" in row for row in curve if row["epoch"])


def ensemble_id(size: int, members: Iterable[str]) -> str:
    return short_hash(f"{size} of {' '.join(sorted(members))}")


@dataclass(frozen=True)
class Stopped:
    """A search trial that a scheduler ended early. It is never selected; a run without a scheduler runs it in full."""

    trial: Trial
    epochs: int  # completed
    metrics: Metrics  # after the last of them

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "id": self.trial.id, **dataclasses.asdict(self), "trial": self.trial.to_json()}


@dataclass(frozen=True)
class Failure:
    """A trial that raised or died: its error in one line, its traceback, and the log file of its worker."""

    trial: Trial
    error: str
    traceback: str
    log: str = ""
    disk_error: str = ""  # "No space left on device": every other trial would fail in the same way

    def to_json(self) -> dict[str, Any]:
        names = {"schema": SCHEMA, "id": self.trial.id, "name": self.trial.name}
        return {**names, **dataclasses.asdict(self), "trial": self.trial.to_json()}
