"""The serial executor: one trial after another in this process."""

import time
from collections.abc import Sequence

from harness.execution import heartbeat
from harness.spec import Job, Listener, Progress
from harness.storage import Storage, sign_of_life
from harness.training import trial as training


def execute(jobs: Sequence[Job], listener: Listener) -> None:
    """Report every event as it happens."""
    for job in jobs:
        storage = Storage(job.storage)
        heartbeat.write(storage, job.trial, None)
        last = time.monotonic()
        try:
            for event in training.events(job):
                if isinstance(event, Progress) and time.monotonic() - last >= heartbeat.INTERVAL:
                    heartbeat.write(storage, job.trial, event)
                    last = time.monotonic()
                listener(job.trial, event)
        finally:
            storage.remove(sign_of_life(job.trial.id))
