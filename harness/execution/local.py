"""The serial executor: one trial after another in this process."""

from collections.abc import Callable, Sequence

from harness.spec import Event, Job, Trial
from harness.training.trial import events


def execute(jobs: Sequence[Job], tell: Callable[[Trial, Event], None]) -> None:
    """Report each event as it happens."""
    for job in jobs:
        for event in events(job):
            tell(job.trial, event)
