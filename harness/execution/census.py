"""How many trials of a run are done, running, waiting and failed, how fast they are and how long they took."""

import time

from harness.execution.pace import Running
from harness.spec import Event, Failure, Progress, Work


class Census:
    """Counted from the events of a run. Another thread may read it at any time."""

    def __init__(self) -> None:
        self.total = 0
        self.left = 0  # have not ended
        self.failed = 0
        self.at_work: dict[str, Running] = {}  # by the ids of trials
        self.seconds = 0.0  # of the trials that have ended

    def expect(self, total: int, left: int) -> None:
        """The run consists of so many trials, as far as is known, and so many of them have not ended."""
        self.total, self.left = total, left

    def hear(self, work: Work, event: Event) -> None:
        """A listener."""
        if isinstance(event, Progress):
            self.at_work.setdefault(work.id, Running(work, event)).hear(event)
            return
        self.left -= 1
        self.failed += isinstance(event, Failure)
        ended = self.at_work.pop(work.id, None)
        if ended is not None:
            self.seconds += ended.elapsed(time.monotonic())

    def lose(self, work: Work) -> None:
        """It does not run any more, and waits until it starts again."""
        lost = self.at_work.pop(work.id, None)
        if lost is not None:
            self.seconds += lost.elapsed(lost.heard)

    @property
    def running(self) -> int:
        return len(self.at_work)

    @property
    def waiting(self) -> int:
        return max(0, self.left - self.running)

    @property
    def done(self) -> int:
        """Also those that were stored before."""
        return self.total - self.left - self.failed

    @property
    def images_per_second(self) -> float:
        """Of all running trials together."""
        return sum(running.event.images_per_second for running in list(self.at_work.values()))

    @property
    def hours(self) -> float:
        """For which trials have run, all together: from the first word of each to its end, or to its last word where
        it was lost."""
        now = time.monotonic()
        return (self.seconds + sum(running.elapsed(now) for running in list(self.at_work.values()))) / 3600
