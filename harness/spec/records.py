"""Result, Failure and Stopped: what is stored, and how records of older versions are read."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.spec import schema
from harness.spec.measurement import Work, ensemble_id, recipe_id, trial_of
from harness.spec.trial import Trial

SCHEMA = 1  # of a stored result
# schema -> what makes a record of it one of the next schema
UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}

COLLAPSED = 0.999  # an embedding in which images of different classes have this mean cosine tells nothing apart

Metrics = Mapping[str, float]
Purpose = Literal["search", "grid", "run", "pretraining", "teacher"]


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
    # (preparing them), wait (for another trial), teacher (waiting for its weights, or making them again). "total" is
    # the work: all but images, wait and teacher. Records without "wait" are older: no validate, waiting counts as
    # pretrain, and a baseline's total is the wall clock.
    seconds: Mapping[str, float]
    parameters: int
    artifacts: Mapping[str, Mapping[str, str]]  # files in the storage: path and sha256
    provenance: Mapping[str, Any]
    ensemble: int = 0  # how many networks are joined; 0: a single trial
    members: tuple[str, ...] = ()  # ids of the trials the networks are taken from
    recipe: str = ""  # of NMI, where a stored run was measured again with another one
    # count, without_match (left out of the retrieval metrics), sha256 of the file beside the record with the values of
    # each query, where there is one. Empty in older records, whose Recall@K counted queries without a match as misses.
    queries: Mapping[str, Any] = field(default_factory=dict)
    per_query: bytes = field(default=b"", repr=False, compare=False)  # that file, on its way to the store

    @property
    def id(self) -> str:
        """Follows from the content: recipe and trial, size and members, or the trial alone."""
        if self.recipe:
            return recipe_id(self.recipe, self.trial.id)
        return ensemble_id(self.ensemble, self.members) if self.is_ensemble else self.trial.id

    @property
    def is_ensemble(self) -> bool:
        return self.ensemble > 0

    @property
    def is_single(self) -> bool:
        """A network as its trial measured it: neither an ensemble nor measured again, and no pre-training."""
        return not self.is_ensemble and not self.recipe and not self.trial.is_pretraining

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
    def sources(self) -> Mapping[str, str]:
        """The checksums of the files of a user's own loss, by their paths. Older records have none."""
        sources: Mapping[str, str] = self.provenance.get("sources", {})
        return sources

    @property
    def pretraining(self) -> Mapping[str, Any]:
        """The shared pre-training that its network starts from: its id and its seconds. Empty if there is none, or if
        the trial did it itself, as older ones did: its seconds say so."""
        shared: Mapping[str, Any] = self.provenance.get("pretraining", {})
        return shared

    @property
    def teacher(self) -> Mapping[str, Any]:
        """The trial whose network it learned from: its id, the title of its loss, and its seconds and training images,
        also those of its pre-training. Empty if it has none."""
        teacher: Mapping[str, Any] = self.provenance.get("teacher", {})
        return teacher

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
        fields = dataclasses.asdict(self)
        del fields["per_query"]  # a file of its own
        if not fields["queries"]:  # an older record stays as it is
            del fields["queries"]
        return {"schema": SCHEMA, "id": self.id, **fields, "trial": self.trial.to_json()}

    @classmethod
    def from_json(cls, data: Any) -> "Result":
        """A stored result; a ValueError says why the data is not one."""
        try:
            data = upgrade(data)
            schema.check(data, schema.RESULT)
            names = {item.name for item in dataclasses.fields(cls)} - {"per_query"}
            known = {name: data[name] for name in names if name in data}
            tuples = {name: tuple(known.get(name, ())) for name in ("curve", "members")}
            result = cls(**{**known, **tuples, "trial": Trial.from_json(data["trial"])})
            _check(result)
        except ValueError as error:
            raise ValueError(f"not a result of this harness: {error}") from None
        if data["id"] != result.id:
            raise ValueError(f"its trial hashes to {result.id}, not to its id {data['id']}")
        return result


def upgrade(data: Any) -> dict[str, Any]:
    """The record in today's schema."""
    if not isinstance(data, dict) or not schema.is_whole(data.get("schema")):
        raise ValueError("it has no schema")
    while data["schema"] in UPGRADES:
        data = UPGRADES[data["schema"]](data)
    if data["schema"] != SCHEMA:
        raise ValueError(f"it has schema {data['schema']}, this version reads up to {SCHEMA}")
    return data


def _check(result: Result) -> None:
    """A ValueError if the parts of a record contradict each other."""
    if "R@1" not in result.metrics and not result.trial.is_pretraining:
        raise ValueError("metrics: R@1 is missing")
    if result.is_ensemble or result.recipe:
        if len(result.members) < max(1, result.ensemble):
            raise ValueError(f"members: it is made from at least {max(1, result.ensemble)} runs, and names fewer")
        if result.trial.id not in result.members:
            raise ValueError(f"members: its trial {result.trial.id} is not among them")
    if result.recipe and not ("NMI" in result.metrics and "NMI" in result.conventions):
        raise ValueError(f"recipe={schema.shown(result.recipe)}: it has no NMI")


def has_curves(curve: Iterable[Mapping[str, float]]) -> bool:
    """Whether the training classes were measured after every epoch, as --curves asks."""
    return all("train R@1" in row for row in curve if row["epoch"])


def has_epochs(curve: Iterable[Mapping[str, float]], metric: str) -> bool:
    """Whether a metric was measured on the held-out classes after every epoch."""
    return all(metric in row for row in curve if row["epoch"])


@dataclass(frozen=True)
class Stopped:
    """A search trial that a scheduler ended early. It is never selected; a run without a scheduler runs it in full."""

    trial: Trial
    epochs: int  # completed
    metrics: Metrics  # after the last of them

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "id": self.trial.id, **dataclasses.asdict(self), "trial": self.trial.to_json()}

    @classmethod
    def from_json(cls, data: Any) -> "Stopped":
        """A stored record; a ValueError says why the data is not one."""
        try:
            data = upgrade(data)
            schema.check(data, schema.STOPPED)
            trial = Trial.from_json(data["trial"])
        except ValueError as error:
            raise ValueError(f"not a stopped trial of this harness: {error}") from None
        if data["id"] != trial.id:
            raise ValueError(f"its trial hashes to {trial.id}, not to its id {data['id']}")
        return cls(trial, data["epochs"], data["metrics"])


@dataclass(frozen=True)
class Failure:
    """A trial or a measurement that raised or died: its error in one line, its traceback, and the log file of its
    worker."""

    work: Work
    error: str
    traceback: str
    log: str = ""
    disk_error: str = ""  # "No space left on device": every other trial would fail in the same way

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "id": self.work.id,
            "name": self.work.name,
            "trial": trial_of(self.work).to_json(),
            "error": self.error,
            "traceback": self.traceback,
            "log": self.log,
            "disk_error": self.disk_error,
        }
