"""The serial executor: one trial after another in this process."""

import time
from collections.abc import Sequence
from dataclasses import replace

from harness.execution import heartbeat
from harness.spec import Job, Listener, Progress
from harness.storage import Storage
from harness.storage import heartbeat as heartbeat_file
from harness.training import trial as training


def execute(jobs: Sequence[Job], listener: Listener, device: str | None = None) -> None:
    """Report every event as it happens. Without a device, a GPU is used if there is one."""
    for job in jobs:
        job = replace(job, device=device)
        storage = Storage(job.storage)
        heartbeat.write(storage, job, None)
        last = time.monotonic()
        try:
            for event in training.events(job):
                if isinstance(event, Progress) and time.monotonic() - last >= heartbeat.INTERVAL:
                    heartbeat.write(storage, job, event)
                    last = time.monotonic()
                listener(job.trial, event)
        finally:
            storage.remove(heartbeat_file(job.trial.id))
