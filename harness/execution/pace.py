"""How long trials take, and so how long the rest of them will."""

import time
from collections.abc import Collection
from dataclasses import dataclass, field

from harness.spec import Measurement, Progress, Work


@dataclass
class Running:
    """A trial or measurement that runs: its last report, and when that and the first one came."""

    work: Work
    event: Progress
    begun: float = field(default_factory=lambda: time.monotonic())
    heard: float = field(default_factory=lambda: time.monotonic())

    def hear(self, event: Progress) -> None:
        self.event, self.heard = event, time.monotonic()

    def elapsed(self, now: float) -> float:
        return now - self.begun

    def left(self, now: float) -> float:
        """What its last report said is left of its present stage, less the time since then."""
        return max(0.0, self.event.seconds_left - (now - self.heard))


class Pace:
    """The durations of the losses' trials that have ended. Baselines and measurements are quick, and say nothing of the
    others."""

    def __init__(self) -> None:
        self.durations: list[float] = []
        self.at_once = 1  # the most trials that ran at a time

    def began(self, running: int) -> None:
        self.at_once = max(self.at_once, running)

    def ended(self, running: Running) -> None:
        if not isinstance(running.work, Measurement) and not running.work.is_baseline:
            self.durations.append(running.elapsed(time.monotonic()))

    def typical(self, running: Collection[Running], now: float) -> float:
        """Seconds of a trial: of those that have ended, else as the running ones foresee it; 0 if nothing is known."""
        foreseen = [
            trial.elapsed(now) + trial.left(now)
            for trial in running
            if trial.event.stage == "train" and trial.event.seconds_left > 0
        ]
        durations = self.durations or foreseen
        return sum(durations) / len(durations) if durations else 0.0

    def left(self, running: Collection[Running], waiting: int) -> float:
        """Seconds until all trials have ended, as many at once as ran at once; 0 if nothing is known yet."""
        now = time.monotonic()
        typical = self.typical(running, now)
        if not typical:
            return 0.0
        rests = [max(trial.left(now), typical - trial.elapsed(now), 0.0) for trial in running]
        return max([(sum(rests) + waiting * typical) / self.at_once, *rests])
