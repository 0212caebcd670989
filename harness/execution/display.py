"""What a person sees while trials run: bars on a terminal, plain lines elsewhere."""

import time
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from harness.spec import Event, Failure, Progress, Result, Stopped, Trial


class Display:
    """Told of every event of every trial: a bar for each running one, and a line that sums up."""

    def __init__(self, console: Console, select: str) -> None:
        self.console = console
        self.select = select
        self.total = self.done = 0
        self.begun = time.monotonic()
        self.best: dict[str, float] = {}  # of each loss, on validation classes
        self.running: dict[str, TaskID] = {}
        self.live = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[status]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.summary: TaskID | None = None

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.live.stop()

    def expect(self, trials: int) -> None:
        """So many are still to come."""
        self.total = self.done + trials
        self._sum_up()

    def show(self, trial: Trial, event: Event) -> None:
        if isinstance(event, Progress):
            self._progress(trial, event)
            return
        self.done += 1
        if trial.id in self.running:
            self.live.remove_task(self.running.pop(trial.id))
        if isinstance(event, Result) and trial.fold != "test":
            self.best[trial.loss] = max(event.metrics[self.select], self.best.get(trial.loss, 0.0))
        self.line(f"[{self.done}/{self.total}] {trial.name}  {outcome(event)}")
        self._sum_up()

    def line(self, text: str) -> None:
        # soft_wrap: a line stays a line where the output is a file; no markup: names are the user's
        self.console.print(text, soft_wrap=True, markup=False, highlight=False)

    def _progress(self, trial: Trial, event: Progress) -> None:
        if trial.id not in self.running:
            self.running[trial.id] = self.live.add_task(trial.name, status="", total=1)
            self._sum_up()
        total, done = event.epochs * event.steps, (event.epoch - 1) * event.steps + event.step
        self.live.update(self.running[trial.id], total=total, completed=done, status=status(event))
        if not self.console.is_terminal and event.closes_epoch:
            self.line(f"{trial.name}  {status(event)}")

    def _sum_up(self) -> None:
        """done / running / waiting, the best so far of each loss, and the time left."""
        if self.summary is None:
            self.summary = self.live.add_task("all trials", status="", total=1)
        words = [f"{self.done} done, {len(self.running)} running, {self.total - self.done - len(self.running)} waiting"]
        if self.done:
            left = (time.monotonic() - self.begun) / self.done * (self.total - self.done)
            words.append(f"about {timedelta(seconds=round(left))} left")
        if self.best:
            shown = ", ".join(f"{loss} {100 * value:.1f}" for loss, value in sorted(self.best.items()))
            words.append(f"best validation {self.select}: {shown}")
        self.live.update(self.summary, total=max(1, self.total), completed=self.done, status="  ".join(words))


def status(event: Progress) -> str:
    if event.stage == "images" and not event.step:
        return "waiting for the images, which another trial prepares"
    left = timedelta(seconds=round(event.seconds_left))
    if event.stage == "images":
        return f"preparing images  {event.step}/{event.steps}  {event.images_per_second:.0f} images/s  {left} left"
    if event.stage == "evaluate":
        return f"evaluating  {event.images_per_second:.0f} images/s  {left} left"
    if event.stage == "rank":
        return f"ranking  {event.step}/{event.steps} queries  {left} left"
    if event.stage == "cluster":
        return f"clustering for NMI  start {event.epoch}/{event.epochs}  step {event.step}/{event.steps}"
    stage = "" if event.stage == "train" else f"{event.stage} "
    return (
        f"{stage}epoch {event.epoch}/{event.epochs}  loss {event.loss:.3f}  "
        f"{event.images_per_second:.0f} images/s  {left} left"
    )


def outcome(event: Result | Stopped | Failure) -> str:
    if isinstance(event, Failure):
        return f"failed: {event.error}"
    if isinstance(event, Stopped):
        return f"stopped by the scheduler after epoch {event.epochs}"
    shown = "  ".join(f"{name} {100 * event.metrics[name]:.1f}" for name in ("R@1", "NMI") if name in event.metrics)
    return f"{shown}  {event.seconds['total']:.0f} s"
