"""The nouns: Dataset, Protocol, LossSpec, Experiment, Trial, Result, Failure. Plain frozen values, no torch."""

import dataclasses
import difflib
import hashlib
import json
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal

SCHEMA = 1  # of a stored result
VALIDATION_FOLDS = 4  # val0 .. val3, each a quarter of the training classes

Metrics = Mapping[str, float]


class UserError(Exception):
    """Something the user can mend: one line saying what, where and what is allowed. The CLI prints it and exits 2."""


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """The one way to say that a name is not known: the nearest match, then all that is allowed."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" did you mean {near[0]!r}?" if near else ""
    return UserError(f"no {what} named {name!r};{hint} Known: {', '.join(known) or 'none'}")


@dataclass(frozen=True)
class Field:
    """A named value a user may set: a field of a trial or a knob of a loss, with its type and what is allowed."""

    name: str
    kind: type  # int, float, bool, str, or tuple (of ints)
    default: Any = None
    choices: tuple[Any, ...] = ()
    optional: bool = False
    least: float | None = None
    more_than: float | None = None
    most: float | None = None

    @classmethod
    def of(cls, name: str, hint: Any, default: Any, **limits: Any) -> "Field":
        """From an annotation: int, float, bool, str, tuple[int, ...], `X | None`, Literal[...] or Annotated[X, limit],
        where a limit is what losses.space.AtLeast, Above and AtMost are: a field of ours with its number."""
        if typing.get_origin(hint) is Annotated:
            hint, *given = typing.get_args(hint)
            for limit in given:
                limits |= vars(limit)
        optional = isinstance(hint, types.UnionType) and types.NoneType in typing.get_args(hint)
        if optional:
            (hint,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
        if typing.get_origin(hint) is Literal:
            choices = typing.get_args(hint)
            return cls(name, type(choices[0]), default, choices, optional, **limits)
        return cls(name, typing.get_origin(hint) or hint, default, (), optional, **limits)

    @property
    def allowed(self) -> str:
        """In words, for error messages and listings."""
        if self.choices:
            words = " | ".join(str(choice) for choice in self.choices)
        else:
            words = {
                int: "a whole number",
                float: "a number",
                bool: "true | false",
                str: "text",
                tuple: "whole numbers like 30,50",
            }[self.kind]
            if self.least is not None:
                words += f" of at least {self.least:g}"
            if self.more_than is not None:
                words += f" above {self.more_than:g}"
            if self.most is not None:
                words += f" and at most {self.most:g}"
        return words + (" or none" if self.optional else "")

    def parse(self, text: str) -> Any:
        """The value a user wrote on the command line."""
        word = text.strip()
        if self.optional and word.lower() == "none":
            return None
        try:
            if self.kind is bool:
                return {"true": True, "false": False, "1": True, "0": False}[word.lower()]
            if self.kind is tuple:
                return self.check(tuple(int(part) for part in word.split(",") if part))
            return self.check(self.kind(word))
        except (ValueError, KeyError, UserError):
            raise UserError(f"{self.name}={text}: allowed is {self.allowed}") from None

    def check(self, value: Any) -> Any:
        """The value in its proper type, or a UserError."""
        if value is None and self.optional:
            return None
        if self.kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if self.kind is tuple and isinstance(value, list):
            value = tuple(value)
        right = isinstance(value, self.kind) and (self.kind is bool or not isinstance(value, bool))
        if right and self.kind is tuple:
            right = all(isinstance(item, int) for item in value)
        if right and self.kind in (int, float):
            right = (
                math.isfinite(value)
                and (self.least is None or value >= self.least)
                and (self.more_than is None or value > self.more_than)
                and (self.most is None or value <= self.most)
            )
        if not right or (self.choices and value not in self.choices):
            raise UserError(f"{self.name}={value}: allowed is {self.allowed}")
        return value


@dataclass(frozen=True)
class Dataset:
    """A dataset as configs/datasets/<name>.toml describes it, or a user's own. Counts of 0 are not known yet."""

    name: str
    title: str
    cite: str
    version: int
    layout: str  # a name of data.readers.LAYOUTS
    recall_at: tuple[int, ...]
    protocol: str  # the default one
    folder: str = ""  # under the data root; of a user's own data the path itself
    train_classes: int = 0
    test_classes: int = 0
    train_images: int = 0
    test_images: int = 0
    query_images: int = 0  # where queries and gallery are apart: so many of the test images are queries
    split_seed: int = 0  # of the validation folds; of an embedded dataset also of its two halves
    sha256: str = ""  # of an embedded dataset
    note: str = ""
    order: int = 0  # of its tables among the others; 0: after those with an order, by name
    archives: tuple[Mapping[str, str], ...] = ()  # what `harness data download` fetches: url, checksum
    manual: str = ""  # the way to get it by hand
    fingerprint: str = ""  # of what was found: paths, classes and sizes of its files


@dataclass(frozen=True)
class Protocol:
    """A protocol as configs/protocols/<name>.toml describes it: the settings every loss shares, and what selects."""

    name: str
    title: str
    source: str
    select: str  # the metric that chooses among search trials, on validation classes
    folds: int  # validation folds a configuration is scored on: its score is their mean
    settings: Mapping[str, Any]
    search: Mapping[str, tuple[float, float]]  # lr, weight_decay, lr_factor, drawn uniformly in the logarithm
    tuned: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)  # dataset -> loss -> values
    special: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # dataset -> settings that differ there

    def values(self, dataset: str, loss: str) -> dict[str, Any]:
        """What the protocol gives for one loss on one dataset, or on any: knobs, lr, weight_decay."""
        layers = (self.tuned.get(which, {}).get(loss, {}) for which in ("any", dataset))
        return {key: value for layer in layers for key, value in layer.items() if key != "source"}

    def shared(self, dataset: str) -> dict[str, Any]:
        """What every loss has on one dataset."""
        return {**self.settings, **self.special.get(dataset, {})}


@dataclass(frozen=True)
class LossSpec:
    """What the planner needs to know of a loss, as data."""

    name: str
    title: str
    cite: str
    version: int | str  # of a user's own file: its hash
    knobs: Mapping[str, Field]
    space: Mapping[str, Any]  # knob -> Range | Choice
    source: str = ""  # the text of a user's own file; empty for a registered loss


@dataclass(frozen=True)
class Experiment:
    """What `harness run` was asked for."""

    dataset: Dataset
    protocol: Protocol
    losses: tuple[LossSpec, ...]
    trials: int = 0
    seeds: int = 1
    ensembles: tuple[int, ...] = ()  # sizes
    keep_weights: Literal["best", "all", "none"] = "best"  # of final runs
    curves: bool = False  # final runs measure held-out and training classes after each epoch
    scheduler: Literal["none", "asha"] = "none"  # for search trials
    data_root: str = ""
    skip_bad_images: bool = False
    weights_file: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)  # --set epochs=4
    knobs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # --set group.anchors=1
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # --grid group.anchors=0,1 --grid epochs=4,8


def _setting(**limits: Any) -> Any:
    return field(metadata={"settable": True, **limits})


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A complete description of one training run. Its hash is its name."""

    dataset: str
    dataset_version: int
    fingerprint: str
    protocol: str
    loss: str  # "none" for the baselines
    loss_version: int | str
    knobs: Mapping[str, Any]

    fold: Literal["val0", "val1", "val2", "val3", "test"] = _setting()
    seed: int = _setting(least=0)

    backbone: str = _setting()  # a timm name, or "pixels" for the raw-pixel baseline
    weights: str = _setting()  # none | package | hub:TAG | file:HASH
    dim: int | None = _setting(least=1)  # None: the backbone's own width
    pooling: Literal["avg", "max", "avgmax"] = _setting()
    layer_norm: bool = _setting()  # without affine, before the embedding
    freeze_bn: bool = _setting()

    resize: int = _setting(least=1)
    aspect: Literal["square", "kept"] = _setting()  # resize x resize, or the short side = resize
    crop: int = _setting(least=1)
    augment: Literal["none", "crop", "resized-crop", "drawings"] = _setting()
    crop_scale: float = _setting(more_than=0)  # of resized-crop: the smallest share of the image's area
    classes_per_batch: int = _setting(least=1)
    samples_per_class: int = _setting(least=1)

    pretrain_epochs: int = _setting(least=0)
    pretrain_lr: float = _setting(more_than=0)
    pretrain_eps: float = _setting(more_than=0)  # the optimizer's epsilon
    pretrain_batch: int = _setting(least=2)

    epochs: int = _setting(least=0)
    optimizer: Literal["adam", "radam", "rmsprop"] = _setting()  # radam: decoupled decay; rmsprop: momentum 0.9
    lr: float = _setting(more_than=0)
    weight_decay: float = _setting(least=0)
    head_lr_factor: float = _setting(more_than=0)  # for the embedding layer and what the loss owns
    schedule: Literal["drops", "one-cycle", "reloads"] = _setting()
    drops: tuple[int, ...] = _setting()  # epochs after which lr is multiplied by 0.1; of reloads: set to lr/10
    checkpoint: Literal["last", "best-test"] = _setting()  # best-test chooses an epoch on the held-out classes
    precision: Literal["fp32", "amp"] = _setting()  # amp has an effect on CUDA only

    @cached_property
    def id(self) -> str:
        """First 12 hex digits of the sha256 of its canonical JSON."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """What people see, and files are called: group-emoji-val0-1f2e3d4c5b6a."""
        what = self.backbone if self.loss == "none" else self.loss.replace(":", "-")
        return f"{what}-{self.dataset}-{self.fold}-{self.id}"

    def to_json(self) -> dict[str, Any]:
        # not dataclasses.asdict: it copies deeply, and thousands of trials are named in a run
        data = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return {**data, "knobs": dict(self.knobs), "drops": list(self.drops)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Trial":
        names = {item.name for item in dataclasses.fields(cls)}
        if set(data) != names:
            raise ValueError(f"not a trial: fields {', '.join(sorted(names ^ set(data)))} are missing or unknown")
        for part in ("dataset", "loss"):  # folders are called so
            if not re.fullmatch(r"(?!\.+$)[\w.:-]+", str(data[part])):
                raise ValueError(f"not a trial: {part}={data[part]!r}")
        trial = cls(**{**data, "drops": tuple(data["drops"])})
        for name, one in SETTINGS.items():
            one.check(getattr(trial, name))
        return trial


_HINTS = typing.get_type_hints(Trial)
SETTINGS: Mapping[str, Field] = {
    item.name: Field.of(
        item.name,
        _HINTS[item.name],
        None,
        **{key: limit for key, limit in item.metadata.items() if key != "settable"},
    )
    for item in dataclasses.fields(Trial)
    if "settable" in item.metadata
}


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one trial gave, or an ensemble of trials that differ in their seed only, or a trial measured again. Written
    once; metrics are unrounded fractions."""

    trial: Trial  # of an ensemble: its first member's
    title: str
    cite: str
    metrics: Metrics
    conventions: Mapping[str, str]  # how metrics that have several definitions were computed
    curve: tuple[Mapping[str, float], ...]  # one row an epoch
    seconds: Mapping[str, float]  # "train" leaves evaluation out, "total" does not
    parameters: int
    artifacts: Mapping[str, Mapping[str, str]]  # files in the storage: path and sha256
    provenance: Mapping[str, Any]
    ensemble: int = 0  # how many networks are joined; 0: a single trial
    members: tuple[str, ...] = ()  # ids of the trials the networks are taken from
    recipe: str = ""  # of NMI, where a stored run was measured again with another one

    @property
    def id(self) -> str:
        if self.recipe:
            return hashlib.sha256(f"{self.recipe} of {self.trial.id}".encode()).hexdigest()[:12]
        return ensemble_id(self.ensemble, self.members) if self.ensemble else self.trial.id

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "id": self.id, **dataclasses.asdict(self), "trial": self.trial.to_json()}

    def _check(self) -> None:
        """A TypeError or KeyError where a record has not what everybody who reads results counts on."""
        numbers = [*self.metrics.values(), *self.seconds.values(), self.parameters, self.ensemble]
        numbers += [value for row in self.curve for value in row.values()]
        numbers += [self.seconds["total"], self.metrics["R@1"], *(row["epoch"] for row in self.curve)]
        threads = self.provenance.get("threads")
        right = all(isinstance(one, int | float) for one in numbers) and isinstance(threads, int | None)
        right = right and all(isinstance(text, str) for text in (self.title, self.cite, self.recipe, *self.members))
        right = right and all(re.fullmatch(r"R@[1-9]\d*|(?!R@).+", name) for name in self.metrics)
        if not right or not all(isinstance(part, dict) for part in (self.conventions, self.artifacts)):
            raise TypeError("a number, a text or a metric's name is not one")

    @classmethod
    def from_json(cls, data: Any) -> "Result":
        """Raises ValueError for what is not a result of ours."""
        if not isinstance(data, dict) or "schema" not in data:
            raise ValueError("not a result of this harness")
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']}, this version reads {SCHEMA}")
        try:
            needed = {item.name for item in dataclasses.fields(cls) if item.default is dataclasses.MISSING}
            fields = {item.name: data[item.name] for item in dataclasses.fields(cls) if item.name in {*needed, *data}}
            tuples = {name: tuple(fields.get(name, ())) for name in ("curve", "members")}
            result = cls(**{**fields, **tuples, "trial": Trial.from_json(fields["trial"])})
            result._check()
            finite = all(math.isfinite(value) for value in result.metrics.values())
            id = result.id
        except (KeyError, TypeError, AttributeError, UserError) as error:
            raise ValueError(f"not a result of this harness: {error}") from None
        if not finite:
            raise ValueError("a metric is not a finite number")
        if data.get("id") != id:
            raise ValueError(f"its trial hashes to {id}, not to its id {data.get('id')}")
        return result


def has_curves(curve: Iterable[Mapping[str, float]]) -> bool:
    """Whether the training classes were measured after every epoch, as --curves asks."""
    return all("train R@1" in row for row in curve)


def ensemble_id(size: int, members: Iterable[str]) -> str:
    return hashlib.sha256(f"{size} of {' '.join(sorted(members))}".encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Stopped:
    """A search trial that a scheduler ended early. It is never selected, and runs in full when asked for without."""

    trial: Trial
    epochs: int  # that it did
    metrics: Metrics  # after the last of them

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "id": self.trial.id, **dataclasses.asdict(self), "trial": self.trial.to_json()}


@dataclass(frozen=True)
class Failure:
    """A trial that raised or died: the one line to show, the whole story, and where its worker logged."""

    trial: Trial
    error: str
    traceback: str
    log: str = ""

    def to_json(self) -> dict[str, Any]:
        names = {"schema": SCHEMA, "id": self.trial.id, "name": self.trial.name}
        return {**names, **dataclasses.asdict(self), "trial": self.trial.to_json()}


@dataclass(frozen=True)
class Progress:
    """Where a running trial is. `step == steps` closes an epoch, and its checkpoint is written."""

    stage: str  # "images" | "pretrain" | "train" | "evaluate"
    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    images_per_second: float
    seconds_left: float
    metrics: Metrics = field(default_factory=dict)  # at the end of an epoch, where somebody wants them

    @property
    def closes_epoch(self) -> bool:
        return self.stage in ("pretrain", "train") and self.step == self.steps


Event = Progress | Result | Stopped | Failure


@dataclass(frozen=True)
class Job:
    """What a worker gets: it never reads configs/."""

    trial: Trial
    dataset: Dataset
    storage: str  # a folder or URI that every node sees: checkpoints, shared pre-training, embeddings
    threads: int | None = None  # None: torch's own choice
    keep_weights: bool = False  # of a final run
    source: str = ""  # the text of a user's own loss
    device: str | None = None  # None: a GPU if there is one
    origin: Mapping[str, Any] = field(default_factory=dict)  # of the command: what a worker cannot know
    validate: bool = False  # evaluate after each epoch, for a scheduler that stops hopeless search trials
    curves: bool = False  # of a final run: evaluate after each epoch, for the record alone
    data_root: str = ""  # where the dataset's folder is looked for
    skip_bad_images: bool = False
    weights_file: str = ""  # where weights=file:HASH lie
