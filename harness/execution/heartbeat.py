"""A running trial's sign of life, in running/ of the storage: `harness status` reads it without Ray."""

import contextlib
import math
import os
import platform
import time
from dataclasses import asdict, dataclass
from typing import Any

from harness.spec import Progress, Trial
from harness.storage import Storage, alive
from harness.storage import heartbeat as heartbeat_file

FOLDER = "running"
INTERVAL = 1.0  # minimum seconds between two heartbeats within an epoch
SILENCE = 300  # seconds without a heartbeat before a trial counts as lost


@dataclass(frozen=True)
class Heartbeat:
    """Where a trial runs and how far it is."""

    name: str
    node: str
    pid: int
    log: str  # of its worker, on its node
    time: float
    progress: Progress | None  # None: it is starting

    @property
    def lost(self) -> bool:
        """Its process is gone, or has been silent for long."""
        return not alive(asdict(self)) or self.silence > SILENCE

    @property
    def silence(self) -> float:
        """In seconds."""
        return time.time() - self.time


def write(storage: Storage, trial: Trial, progress: Progress | None, log: str = "") -> None:
    record = asdict(Heartbeat(trial.name, platform.node(), os.getpid(), log, time.time(), progress))
    if progress is not None and math.isnan(progress.loss):
        record["progress"]["loss"] = None  # JSON has no NaN
    with contextlib.suppress(OSError):  # on a full disk the checkpoint fails, and says so
        storage.write_json(heartbeat_file(trial.id), record)


def read(storage: Storage) -> list[Heartbeat]:
    """The heartbeats of all trials that are running or lost, by name."""
    records = [record for record in map(storage.read_json, storage.names(FOLDER)) if record]
    return sorted((_heartbeat(record) for record in records), key=lambda heartbeat: heartbeat.name)


def _heartbeat(record: dict[str, Any]) -> Heartbeat:
    progress = record["progress"]
    if progress is not None:
        loss = math.nan if progress["loss"] is None else progress["loss"]
        progress = Progress(**{**progress, "loss": loss})
    return Heartbeat(**{**record, "progress": progress})


def sweep(storage: Storage) -> None:
    """Remove the heartbeats of processes that are gone."""
    for name in storage.names(FOLDER):
        record = storage.read_json(name)
        if record and not alive(record):
            storage.remove(name)
