"""A running trial's sign of life, in running/ of the storage: `harness status` reads it without Ray."""

import contextlib
import os
import platform
import time
from dataclasses import asdict, dataclass
from typing import Any

from harness.execution.pulse import Pulse
from harness.execution.text import position
from harness.spec import Job, Progress, StorageError, schema
from harness.storage import Storage, alive
from harness.storage import heartbeat as heartbeat_file

FOLDER = "running"
INTERVAL = 1.0  # seconds at least between two heartbeats of a trial in a folder
INTERVAL_OF_REQUESTS = 20.0  # the same on an object store, where each is a request
SILENCE = 300  # seconds without a heartbeat before a trial counts as lost: many times either

HEARTBEAT = schema.Table(
    needed={
        "name": schema.TEXT,
        "plan": schema.TEXT,
        "node": schema.TEXT,
        "pid": schema.COUNT,
        "log": schema.TEXT,
        "time": schema.AMOUNT,
        "position": schema.TEXT,
    }
)


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """Where a trial runs and how far it is."""

    name: str
    plan: str  # of its driver: a trial whose driver is gone is not running
    node: str
    pid: int
    log: str  # of its worker, on its node
    time: float
    position: str  # in words

    @property
    def is_gone(self) -> bool:
        """Its process is known to have died. Where its driver lives, it starts again."""
        return not alive(self.node, self.pid)

    @property
    def is_silent(self) -> bool:
        return self.silence > SILENCE

    @property
    def silence(self) -> float:
        """In seconds."""
        return time.time() - self.time


class Heart:
    """Writes the heartbeats of a running trial beside its training, which waits for no storage.

    A heartbeat says when the trial was last heard, not when it was written: a training that hangs falls silent.
    """

    def __init__(self, storage: Storage, job: Job, log: str = "") -> None:
        self.storage = storage
        self.job = job
        self.log = log
        self.heard: tuple[float, Progress | None] = (time.time(), None)  # when, and how far the trial was
        self.written: tuple[float, Progress | None] | None = None
        self.pulse = Pulse(self.beat, interval(storage), at_once=True)
        self.pulse.start()

    def hear(self, progress: Progress) -> None:
        self.heard = (time.time(), progress)

    def beat(self) -> None:
        heard = self.heard
        if heard is not self.written:
            self.written = heard
            write(self.storage, self.job, self.log, *heard)

    def end(self) -> None:
        """Nothing is written after this, unless the storage hangs."""
        self.pulse.end()


def interval(storage: Storage) -> float:
    """Seconds at least between two signs of life in a storage."""
    return INTERVAL if storage.local else INTERVAL_OF_REQUESTS


def write(storage: Storage, job: Job, log: str, heard: float, progress: Progress | None) -> None:
    """Say how far a trial is; without progress, that it is starting."""
    beat = Heartbeat(
        name=job.work.name,
        plan=job.plan,
        node=platform.node(),
        pid=os.getpid(),
        log=log,
        time=heard,
        position=position(progress) if progress else "starting",
    )
    with contextlib.suppress(OSError, StorageError):  # then the checkpoint fails too, and says so
        storage.write_json(heartbeat_file(job.work.id), asdict(beat))


def read(storage: Storage) -> list[Heartbeat]:
    """All heartbeats, by the trials' names. A file that holds none is passed over."""
    beats = [beat for beat in (read_file(storage, name) for name in storage.names(FOLDER)) if beat]
    return sorted(beats, key=lambda beat: beat.name)


def read_file(storage: Storage, name: str) -> Heartbeat | None:
    record: Any = storage.read_json(name)
    try:
        schema.check(record, HEARTBEAT)
    except ValueError:
        return None
    return Heartbeat(**{field: record[field] for field in HEARTBEAT.needed})
