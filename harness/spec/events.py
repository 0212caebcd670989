"""What passes between the driver and its workers: Job, Progress, Event."""

import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from harness.spec.experiment import Dataset
from harness.spec.measurement import Measurement, Work
from harness.spec.records import COLLAPSED, Failure, Metrics, Result, Stopped
from harness.spec.trial import Trial

Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Progress:
    """Where a running trial is. `step == steps` closes an epoch, and its checkpoint is written."""

    stage: str  # "images" | "pretrain" | "teacher" | "warmup" | "train" | "evaluate" | "rank" | "cluster"
    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    images_per_second: float
    seconds_left: float  # of its stage; 0: none, or not known
    metrics: Metrics = field(default_factory=dict)  # at the end of an epoch, if they were measured
    cosine: float = 0.0  # mean cosine of images of different classes in the last batch
    note: str = ""  # a line for the user
    subset: str = ""  # "2/3": which networks of an ensemble are joined now

    @classmethod
    def idle(cls, stage: str, note: str = "") -> "Progress":
        """Before the first step of a stage: the trial waits for another one, or has something to say."""
        return cls(stage, 1, 1, 0, 1, math.nan, 0.0, 0.0, note=note)

    @property
    def collapsed(self) -> bool:
        """All images are nearly the same to the network. A new embedding layer may begin like this, so a warm-up does
        not count."""
        return self.stage != "warmup" and self.cosine >= COLLAPSED

    @property
    def is_idle(self) -> bool:
        """The loss was 0 in every step of the epoch that this closes: nothing was learned in it."""
        return self.closes_epoch and self.loss == 0

    @property
    def closes_epoch(self) -> bool:
        return self.stage in ("pretrain", "warmup", "train") and self.step == self.steps


Event = Progress | Result | Stopped | Failure
Listener = Callable[[Work, Event], None]  # is called with every event of every trial and measurement


@dataclass(frozen=True)
class Job:
    """All that a worker needs: it never reads configs/."""

    trial: Trial  # of a measurement: its first run's
    dataset: Dataset
    storage: str  # a folder or URI that every node sees: checkpoints, shared pre-training, embeddings
    threads: int = 1  # of torch; numbers depend on it
    keep_weights: bool = False  # of a final run
    sources: Mapping[str, str] = field(default_factory=dict)  # the files of a user's own loss: LossSpec.sources
    device: str | None = None  # None: a GPU if there is one
    origin: Mapping[str, Any] = field(default_factory=dict)  # of the command: what a worker cannot know
    validate: bool = False  # evaluate after each epoch, for a scheduler that stops hopeless search trials
    select_epochs: bool = False  # evaluate after each epoch without exception: the number of epochs is chosen by it
    curves: bool = False  # of a final run: evaluate after each epoch, for the record alone
    nmi: bool = True  # measure NMI: k-means may take longer than all other metrics
    data_root: str = ""  # where the dataset's folder is looked for
    skip_bad_images: bool = False
    weights_file: str = ""  # the file that weights=file:HASH names
    plan: str = ""  # the id of its driver's plan, which its heartbeat names
    teaches: bool = False  # its network is the teacher of other trials
    needs: tuple[Result, ...] = ()  # the stored results of what the trial needs
    measurement: Measurement | None = None  # in place of training
    class_names: tuple[str, ...] = ()  # of the test classes of a measurement

    @property
    def work(self) -> Work:
        return self.measurement or self.trial


def finish(steps: Generator[Item, None, Value], on_item: Callable[[Item], Any] = lambda _: None) -> Value:
    """Run a generator to its end, calling `on_item` with each item. Returns the generator's return value."""
    while True:
        try:
            item = next(steps)
        except StopIteration as end:
            return end.value
        on_item(item)
