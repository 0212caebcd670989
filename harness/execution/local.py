"""The serial executor: one trial after another in this process."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

from harness.execution.heartbeat import Heart
from harness.spec import Job, Listener, Progress
from harness.storage import Storage
from harness.storage import heartbeat as heartbeat_file
from harness.training import trial as training

Handler = Callable[[int, FrameType | None], Any]


def execute(jobs: Iterable[Job | None], listener: Listener, device: str | None = None) -> None:
    """Report every event as it happens. Without a device, a GPU is used if there is one."""
    with signals_seen() as interrupted:
        for job in jobs:
            assert job is not None, "nothing runs that could make another job ready"
            execute_one(replace(job, device=device), listener, interrupted)


def execute_one(job: Job, listener: Listener, interrupted: Callable[[], bool]) -> None:
    storage = Storage(job.storage)
    heart = Heart(storage, job)
    try:
        for event in training.events(job, interrupted):
            if isinstance(event, Progress):
                heart.hear(event)
            else:
                heart.end()
            listener(job.work, event)
    finally:
        heart.end()
        storage.remove(heartbeat_file(job.work.id))


@contextmanager
def signals_seen() -> Iterator[Callable[[], bool]]:
    """Tells whether a signal has interrupted this process: a loss may raise KeyboardInterrupt without one."""
    seen: list[int] = []

    def note(handler: Handler, number: int, frame: FrameType | None) -> None:
        seen.append(number)
        handler(number, frame)

    handlers: dict[int, Handler] = {}
    if threading.current_thread() is threading.main_thread():  # only it may set handlers, and only it is interrupted
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler):
                handlers[number] = handler
                signal.signal(number, partial(note, handler))
    try:
        yield lambda: bool(seen)
    finally:
        for changed, handler in handlers.items():
            signal.signal(changed, handler)
