"""Dataset, Protocol, LossSpec and Experiment: what trials are planned from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.spec.field import Field
from losses import Family
from losses.space import Choice, Range

KeepWeights = Literal["best", "all", "none"]
Scheduler = Literal["none", "asha"]


@dataclass(frozen=True)
class Dataset:
    """A dataset as configs/datasets/<name>.toml describes it, or a user's own. Counts of 0 are not known yet."""

    name: str
    title: str
    cite: str
    version: int
    layout: str  # "embedded", or the layout of its files: a reader of data/readers.py
    recall_at: tuple[int, ...]
    protocol: str  # the default one
    folder: str = ""  # under the data root; of a user's own data the path itself
    train_classes: int = 0
    test_classes: int = 0
    train_images: int = 0
    test_images: int = 0
    query_images: int = 0  # of the test images; 0: every test image is query and gallery
    split_seed: int = 0  # of the validation folds; of an embedded dataset also of its two halves
    sha256: str = ""  # of an embedded dataset's file, or of the contents of all images; empty: not known yet
    copies: bool = False  # identical test images belong to it: they are counted, not refused
    note: str = ""
    order: int = 0  # of its tables among the others; 0: after those with an order, by name
    archives: tuple[Mapping[str, str], ...] = ()  # what `harness data download` fetches: url, checksum
    manual: str = ""  # the way to get it by hand
    resized: Mapping[str, int] = field(default_factory=dict)  # fingerprints of known copies -> their short side, in px
    path: str = ""  # of a user's own: what --dataset names
    fingerprint: str = ""  # a hash of the paths, classes, sides and sizes of its files

    @property
    def is_own(self) -> bool:
        """A user's own, not one of the shipped datasets."""
        return bool(self.path)

    @property
    def images_per_class(self) -> float:
        """Of its training classes; infinite while it is not known."""
        return self.train_images / self.train_classes if self.train_classes and self.train_images else math.inf


@dataclass(frozen=True)
class Tuned:
    """A protocol's values for one loss on one dataset, and where they come from."""

    values: Mapping[str, Any]  # knobs, lr, weight_decay
    source: str = ""
    trials: int = 0  # of the random search on validation classes that found them; 0: they are published, or by hand
    found_with: Mapping[str, Any] = field(default_factory=dict)  # its settings; (low, high): a value in between


@dataclass(frozen=True)
class Protocol:
    """A protocol as configs/protocols/<name>.toml describes it: the settings every loss shares, and what selects."""

    name: str
    title: str
    source: str
    select: str  # the metric that chooses among search trials, on validation classes
    folds: int  # validation folds a configuration is scored on: its score is their mean
    settings: Mapping[str, Any]
    search: Mapping[str, Range | Choice]  # lr, weight_decay, lr_factor, ...: what random search draws from
    tuned: Mapping[str, Mapping[str, Tuned]] = field(default_factory=dict)  # dataset, or any -> loss -> values
    special: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # dataset -> settings that differ there
    few_images: Mapping[str, Any] = field(default_factory=dict)  # settings that differ where classes are small:
    few_below: int = 0  # where a training class has fewer images than this, on average
    select_epochs: bool = False  # a search also chooses after which epoch final runs stop
    families: Mapping[str, int] = field(default_factory=dict)  # family of losses -> its samples_per_class

    def values(self, dataset: str, loss: str) -> dict[str, Any]:
        """What the protocol gives for one loss on one dataset, or on any: knobs, and settings of PER_LOSS."""
        layers = (self.tuned.get(which, {}).get(loss) for which in ("any", dataset))
        return {key: value for layer in layers if layer for key, value in layer.values.items()}

    def of_family(self, family: str) -> dict[str, Any]:
        """What the protocol gives for a family of losses."""
        return {"samples_per_class": self.families[family]} if family in self.families else {}

    def shared(self, dataset: str, images_per_class: float = math.inf) -> dict[str, Any]:
        """What every loss has on one dataset. Stronger last: [train], [few_images], [dataset.NAME]."""
        few = self.few_images if images_per_class < self.few_below else {}
        return {**self.settings, **few, **self.special.get(dataset, {})}


@dataclass(frozen=True)
class LossSpec:
    """What the planner needs to know about a loss, as data."""

    name: str
    title: str
    cite: str
    version: int | str  # of a user's own file: its hash
    knobs: Mapping[str, Field]
    space: Mapping[str, Any]  # knob -> Range | Choice
    family: Family = "pair"  # what it learns from, and so what a batch must hold
    # of a user's own loss: the texts of its file, which is the first, and of the modules beside it that it imports
    sources: Mapping[str, str] = field(default_factory=dict)
    option: str = ""  # of a user's own loss: as it was named, ./mine.py:MyLoss
    added: Mapping[str, Any] = field(default_factory=dict)  # knobs newer than records: the value that means "as before"
    shipped: bool = False  # a loss of this package
    dim_below_batch: bool = False  # it refuses a batch with no more images than dimensions
    head_dim: int = 0  # of a method that builds its own head: its published dimension

    @property
    def has_teacher(self) -> bool:
        """Whether one of its knobs names the loss of a trial that it learns from."""
        return "teacher" in self.knobs and self.knobs["teacher"].kind is str


@dataclass(frozen=True)
class Experiment:
    """What a run consists of: every name is resolved, images and weights are identified."""

    dataset: Dataset
    protocol: Protocol
    losses: tuple[LossSpec, ...]
    name: str = ""  # given by the user, to find it again
    trials: int = 0
    seeds: int = 1
    ensembles: tuple[int, ...] = ()  # sizes
    keep_weights: KeepWeights = "best"  # of final runs
    curves: bool = False  # final runs measure held-out and training classes after each epoch
    scheduler: Scheduler = "none"  # for search trials
    data_root: str = ""
    skip_bad_images: bool = False
    weights_file: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)  # --set epochs=4
    knobs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # --set group.anchors=1
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # --grid group.anchors=0,1 --grid epochs=4,8
