"""The plans of running drivers, in plans/ of the storage, where `harness status` reads them."""

import contextlib
import os
import platform
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from harness.execution import heartbeat
from harness.spec import Trial
from harness.storage import Storage, alive

FOLDER = "plans"


@dataclass(frozen=True)
class Announcement:
    """The plan of a running driver."""

    node: str
    pid: int
    started: float
    trials: tuple[str, ...]  # names of the trials that have to run
    unnamed: int = 0  # final runs that follow, whose values are not chosen yet


def write(storage: Storage, trials: Sequence[Trial], unnamed: int = 0) -> str:
    """Write the plan of this process. Returns the file's name; the caller removes it when the trials have ended."""
    name = f"{FOLDER}/{uuid.uuid4().hex}.json"
    names = tuple(trial.name for trial in trials)
    with contextlib.suppress(OSError):  # on a full disk the checkpoint fails, and says so
        storage.write_json(name, asdict(Announcement(platform.node(), os.getpid(), time.time(), names, unnamed)))
    return name


def read(storage: Storage) -> list[Announcement]:
    """The plans of drivers that are still running."""
    records = [record for record in map(storage.read_json, storage.names(FOLDER)) if record]
    return [
        Announcement(
            record["node"], record["pid"], record["started"], tuple(record["trials"]), record.get("unnamed", 0)
        )
        for record in records
        if alive(record)
    ]


def sweep(storage: Storage) -> None:
    """Remove the files that killed drivers and workers have left."""
    living = 0
    for name in storage.names(FOLDER):
        record = storage.read_json(name)
        if record and alive(record):
            living += 1
        else:
            storage.remove(name)
    if not living:
        storage.remove_folder("tune")
        for name in storage.names("checkpoints", parts=True):
            storage.remove(name)
    heartbeat.sweep(storage)
