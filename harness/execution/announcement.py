"""The plans of drivers, in plans/ of the storage, where `harness status` reads them: of drivers at work, and of drivers
that ended before their trials did."""

import contextlib
import os
import platform
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from harness.execution import heartbeat
from harness.execution.pulse import Pulse
from harness.spec import StorageError, Work, schema
from harness.storage import Storage, alive
from harness.storage import heartbeat as heartbeat_file

FOLDER = "plans"
INTERVAL = 10.0  # seconds at least between two signs of life of a driver
SILENCE = 120.0  # seconds without one, after which a driver is gone: a network's file system may be a minute late

PLAN = schema.Table(
    needed={
        "node": schema.TEXT,
        "pid": schema.COUNT,
        "started": schema.AMOUNT,
        "time": schema.AMOUNT,
        "command": schema.TEXT,
        "dataset": schema.TEXT,
        "protocol": schema.TEXT,
        "trials": schema.List(schema.TEXT),
        "unnamed": schema.COUNT,
        "total": schema.COUNT,
        "waits_for": schema.TEXT,
        "interrupted": schema.BOOLEAN,
    }
)


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """The plan of a driver."""

    id: str
    node: str
    pid: int
    started: float
    time: float  # of its last sign of life
    command: str  # without passwords
    dataset: str
    protocol: str
    trials: tuple[str, ...]  # names of the trials and ensembles that have to run
    unnamed: int = 0  # final runs and ensembles that follow, whose values are not chosen yet
    total: int = 0  # in all; those that turn out not to be needed, because they are stored, count as done
    waits_for: str = ""  # in words, while nothing can run
    interrupted: bool = False  # the driver ended, and said so, before its trials did

    @property
    def file(self) -> str:
        return f"{FOLDER}/{self.id}.json"

    @property
    def is_alive(self) -> bool:
        """Whether its driver is at work. A killed one on another node is known by its silence alone."""
        return not self.interrupted and self.silence <= SILENCE and alive(self.node, self.pid)

    @property
    def silence(self) -> float:
        """In seconds."""
        return time.time() - self.time

    def unfinished(self, ended: Mapping[str, float]) -> list[str]:
        """Its trials that have not ended since it began, given the time of each trial's last record by its id. A trial
        with an older record was to run again."""
        return [name for name in self.trials if ended.get(id_of(name), -1.0) < self.started]


def id_of(name: str) -> str:
    """The id of a trial, of which its name is the last part."""
    return name.rsplit("-", 1)[-1]


class Announced:
    """The plan of this process, kept in the storage while its trials run. Heartbeats name its id."""

    def __init__(self, storage: Storage, command: str, dataset: str, protocol: str) -> None:
        self.storage = storage
        now = time.time()
        self.plan = Announcement(
            id=uuid.uuid4().hex,
            node=platform.node(),
            pid=os.getpid(),
            started=now,
            time=now,
            command=command,
            dataset=dataset,
            protocol=protocol,
            trials=(),
        )
        self.pulse = Pulse(self.write, max(INTERVAL, heartbeat.interval(storage)))

    @property
    def id(self) -> str:
        return self.plan.id

    def update(self, work: Iterable[Work], unnamed: int) -> None:
        """Say what has to run, by what is known now: the end of a search names more."""
        names = tuple(one.name for one in work)
        total = max(self.plan.total, len(names) + unnamed)
        self.plan = replace(self.plan, trials=names, unnamed=unnamed, total=total)
        self.write()

    def wait(self, text: str) -> None:
        self.plan = replace(self.plan, waits_for=text)
        self.write()

    def write(self, *, interrupted: bool = False) -> None:
        write(self.storage, replace(self.plan, time=time.time(), interrupted=interrupted))


@contextlib.contextmanager
def announced(storage: Storage, command: str, dataset: str, protocol: str) -> Iterator[Announced]:
    """Announce the plan of this process while its trials run. It stays if not all of them end: it says what is left."""
    plan = Announced(storage, command, dataset, protocol)
    plan.pulse.start()
    try:
        yield plan
    except BaseException:
        plan.pulse.end()
        plan.write(interrupted=True)
        remove_heartbeats(storage, plan.plan)
        raise
    plan.pulse.end()
    storage.remove(plan.plan.file)


def remove_heartbeats(storage: Storage, plan: Announcement) -> None:
    """Of the few trials that run: each removal is a request on an object store, and a signal leaves seconds."""
    ours = {heartbeat_file(id_of(name)) for name in plan.trials}
    with contextlib.suppress(OSError, StorageError):  # then the next run removes them
        storage.remove_all(ours.intersection(storage.names(heartbeat.FOLDER)))


@contextlib.contextmanager
def getting_ready(
    storage: Storage, command: str, dataset: str, protocol: str, work: Iterable[Work], unnamed: int
) -> Iterator[None]:
    """Announce this process while it prepares images and starts Ray. Nothing of it stays: no trial has begun."""
    plan = Announced(storage, command, dataset, protocol)
    plan.update(work, unnamed)
    plan.wait("getting ready: no trial has begun yet")
    plan.pulse.start()
    try:
        yield
    finally:
        plan.pulse.end()
        storage.remove(plan.plan.file)


def write(storage: Storage, plan: Announcement) -> None:
    record = asdict(plan)
    del record["id"]  # the name of its file
    with contextlib.suppress(OSError, StorageError):  # then the checkpoint fails too, and says so
        storage.write_json(plan.file, record)


def read(storage: Storage) -> list[Announcement]:
    """All plans, the latest first. A file that holds none is passed over."""
    plans = [plan for plan in (_plan(storage, name) for name in storage.names(FOLDER)) if plan]
    return sorted(plans, key=lambda plan: plan.started, reverse=True)


def _plan(storage: Storage, name: str) -> Announcement | None:
    record: Any = storage.read_json(name)
    try:
        schema.check(record, PLAN)
    except ValueError:
        return None
    known = {field: record[field] for field in PLAN.needed}
    id = name.removeprefix(f"{FOLDER}/").removesuffix(".json")
    return Announcement(**{**known, "id": id, "trials": tuple(record["trials"])})
