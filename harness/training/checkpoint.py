"""A trial at the end of an epoch, stored so that it can go on from there."""

import dataclasses
import io
from dataclasses import dataclass
from typing import Any

import torch

from harness import storage as store_names
from harness.spec import Trial
from harness.storage import Storage


@dataclass
class Checkpoint:
    """A trial at the end of an epoch. What is random in an epoch follows from its number, so no generator's state is
    part of it."""

    stage: str = ""
    epoch: int = 0
    seconds: float = 0.0
    curve: list[dict[str, float]] = dataclasses.field(default_factory=list)
    state: dict[str, Any] = dataclasses.field(default_factory=dict)
    best: dict[str, Any] = dataclasses.field(default_factory=dict)  # epoch, score, and the state of model and loss

    @classmethod
    def read(cls, storage: Storage, trial: Trial) -> "Checkpoint":
        """The stored one, or a blank one."""
        content = storage.read(store_names.checkpoint(trial.id))
        return cls(**torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)) if content else cls()

    def write(self, storage: Storage, trial: Trial) -> None:
        buffer = io.BytesIO()
        torch.save(vars(self), buffer)
        storage.write(store_names.checkpoint(trial.id), buffer.getvalue())
