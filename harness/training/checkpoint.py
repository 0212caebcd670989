"""A trial at the end of an epoch, stored so that it can continue from there."""

import dataclasses
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from harness.spec import Trial
from harness.storage import DamagedError, Storage
from harness.storage import checkpoint as file_name

Curve = list[dict[str, float]]
Seconds = dict[str, float]  # by what was done in them: see Result.seconds


@dataclass(frozen=True)
class Checkpoint:
    """A stage at the end of an epoch. An epoch's random draws follow from its number, so no generator's state is
    stored."""

    stage: str = ""
    epoch: int = 0
    seconds: Seconds = field(default_factory=dict)  # of all attempts and stages so far
    curve: Curve = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=dict)  # epoch, score, and the state of model and loss
    attempts: list[Mapping[str, Any]] = field(default_factory=list)  # their conditions: see TrialSetup

    def of(self, stage: str) -> "Checkpoint":
        """Itself if it is one of this stage, else the stage's beginning, after what came before."""
        return self if self.stage == stage else Checkpoint(stage, seconds=self.seconds, curve=self.curve)

    def after(self, **seconds: float) -> "Checkpoint":
        """The same, so many seconds of this later."""
        return dataclasses.replace(self, seconds=added(self.seconds, seconds))

    def check(self, trial: Trial, last_epoch: int) -> None:
        """A DamagedError unless it is one of a stage with so many epochs."""
        epochs = [row.get("epoch") for row in self.curve if row.get("epoch")]
        if self.epoch > last_epoch or epochs != list(range(1, self.epoch + 1)):
            raise unusable(trial, f"it is at epoch {self.epoch} of {last_epoch} with {len(epochs)} epochs in its curve")

    @classmethod
    def read(cls, storage: Storage, trial: Trial, images: str) -> "Checkpoint":
        """The stored checkpoint, or an empty one. A DamagedError if the file is not one of this trial on these images,
        which their digest names."""
        content = storage.read_sealed(file_name(trial.id), *owners(trial, images))
        if content is None:
            return cls()
        try:
            stored = cls(**torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))
        except MemoryError:  # says nothing of the file
            raise
        except Exception as error:  # torch raises many kinds
            raise unusable(trial, f"{type(error).__name__}: {error}") from None
        for part in dataclasses.fields(cls):
            if type(getattr(stored, part.name)) is not type(getattr(cls(), part.name)):
                raise unusable(trial, f"its {part.name} is a {type(getattr(stored, part.name)).__name__}")
        if stored.stage not in stages_of(trial):
            raise unusable(trial, f"the trial has no stage {stored.stage!r}")
        return stored

    def write(self, storage: Storage, trial: Trial, images: str) -> None:
        buffer = io.BytesIO()
        torch.save(vars(self), buffer)
        storage.write_sealed(file_name(trial.id), owners(trial, images)[0], buffer.getvalue())


def owners(trial: Trial, images: str) -> tuple[str, str]:
    """What the file of a trial's checkpoint says it belongs to, and what earlier versions said."""
    return f"checkpoint of {trial.id} on images {images[:12]}", f"checkpoint of {trial.id}"


def unusable(trial: Trial, reason: str) -> DamagedError:
    return DamagedError(file_name(trial.id), f"is damaged, or of another version: {reason.splitlines()[0]}")


def stages_of(trial: Trial) -> tuple[str, ...]:
    before = {"pretrain": trial.pretrain_epochs, "warmup": trial.warmup_epochs}
    return (*(stage for stage, epochs in before.items() if epochs), "train")


def added(seconds: Seconds, more: Seconds) -> Seconds:
    """The sum of both, name by name."""
    return {name: seconds.get(name, 0.0) + more.get(name, 0.0) for name in {**seconds, **more}}
