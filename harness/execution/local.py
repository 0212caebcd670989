"""The serial executor: one trial after another in this process."""

from collections.abc import Callable, Sequence

from harness.spec import Event, Job, Trial
from harness.training import trial as train


def execute(jobs: Sequence[Job], tell: Callable[[Trial, Event], None]) -> None:
    """Tell what happens, as it happens."""
    for job in jobs:
        for event in train.events(job):
            tell(job.trial, event)
