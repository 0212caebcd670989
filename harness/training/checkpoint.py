"""A trial at the end of an epoch, stored so that it can continue from there."""

import dataclasses
import io
from dataclasses import dataclass
from typing import Any

import torch

from harness.spec import Trial
from harness.storage import Storage
from harness.storage import checkpoint as file_name


@dataclass
class Checkpoint:
    """A stage at the end of an epoch. An epoch's random draws follow from its number, so no generator's state is
    stored."""

    stage: str = ""
    epoch: int = 0
    seconds: float = 0.0
    curve: list[dict[str, float]] = dataclasses.field(default_factory=list)
    state: dict[str, Any] = dataclasses.field(default_factory=dict)
    best: dict[str, Any] = dataclasses.field(default_factory=dict)  # epoch, score, and the state of model and loss
    earlier: dict[str, float] = dataclasses.field(default_factory=dict)  # seconds of the stages before this one

    def of(self, stage: str) -> "Checkpoint":
        """Itself if it is one of this stage, else the stage's beginning, after what came before."""
        return self if self.stage == stage else Checkpoint(stage, curve=self.curve, earlier=self.earlier)

    def after(self, stage: str, seconds: float, curve: list[dict[str, float]]) -> "Checkpoint":
        """The moment between two stages: the first took so many seconds, and its curve is part of the record."""
        return Checkpoint(curve=curve, earlier={**self.earlier, stage: seconds})

    @classmethod
    def read(cls, storage: Storage, trial: Trial) -> "Checkpoint":
        """The stored checkpoint, or an empty one."""
        content = storage.read(file_name(trial.id))
        if not content:
            return cls()
        return cls(**torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))

    def write(self, storage: Storage, trial: Trial) -> None:
        buffer = io.BytesIO()
        torch.save(vars(self), buffer)
        storage.write(file_name(trial.id), buffer.getvalue())
