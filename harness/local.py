"""The serial executor: one trial after another in this process."""

import traceback
from collections.abc import Iterable, Iterator

from harness import train
from harness.spec import Failure, Job, Progress, Result, Trial


def execute(jobs: Iterable[Job]) -> Iterator[tuple[Trial, Progress | Result | Failure]]:
    """What happens, as it happens. A trial that raises ends in a Failure and does not stop the others."""
    for job in jobs:
        running = train.run(job)
        try:
            while True:
                yield job.trial, next(running)
        except StopIteration as end:
            yield job.trial, end.value
        except Exception as error:
            story = f"{type(error).__name__}: {error}".splitlines()[0]
            yield job.trial, Failure(job.trial, story, traceback.format_exc())
