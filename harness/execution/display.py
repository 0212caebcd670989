"""Progress on the screen while trials run: bars on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from harness.execution.text import BestScores, duration, outcome, position
from harness.spec import Event, Progress, Protocol, Result, Trial, printable


class Display:
    """A bar for each running trial, and a summary line. Its `show` is a listener."""

    def __init__(self, console: Console, protocol: Protocol) -> None:
        self.console = console
        self.total = self.done = 0
        self.begun = time.monotonic()
        self.best = BestScores(protocol.select, protocol.folds, select_epochs=protocol.select_epochs)
        self.running: dict[str, TaskID] = {}
        self.warned: set[tuple[str, str]] = set()  # ids of trials, and what they were warned of
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

    @contextmanager
    def preparing(self) -> Iterator[Callable[[Progress], None]]:
        """A bar for the images that are decoded before the first trial starts."""
        task: TaskID | None = None

        def show(progress: Progress) -> None:
            nonlocal task
            if progress.note:
                self.line(progress.note)
                return
            if task is None:
                task = self.live.add_task("images", status="")
            self.live.update(task, total=progress.steps, completed=progress.step, status=position(progress))

        with self:
            try:
                yield show
            finally:
                if task is not None:
                    self.live.remove_task(task)

    def expect(self, trials: int) -> None:
        """Set how many trials are still to come."""
        self.total = self.done + trials
        self._sum_up()

    def show(self, trial: Trial, event: Event) -> None:
        if isinstance(event, Progress):
            self._progress(trial, event)
            return
        self.done += 1
        if trial.id in self.running:
            self.live.remove_task(self.running.pop(trial.id))
        if isinstance(event, Result):
            self.best.add(event, {event.purpose})
        self.line(f"[{self.done}/{self.total}] {trial.name}  {outcome(event)}")
        self._sum_up()

    def line(self, text: str) -> None:
        # soft_wrap: a line stays a line where the output is a file; no markup: names are the user's
        self.console.print(printable(text), soft_wrap=True, markup=False, highlight=False)

    def _progress(self, trial: Trial, event: Progress) -> None:
        if trial.id not in self.running:
            self.running[trial.id] = self.live.add_task(trial.name, status="", total=1)
            self._sum_up()
        total, done = event.epochs * event.steps, (event.epoch - 1) * event.steps + event.step
        self.live.update(self.running[trial.id], total=total, completed=done, status=printable(position(event)))
        if event.note:
            self.line(f"{trial.name}  {event.note}")
        if event.collapsed:
            self._warn(trial, "collapsed", event, "all images have nearly the same embedding")
        if event.is_idle:
            self._warn(trial, "loss of 0 in every step", event, "nothing is learned")
        if not self.console.is_terminal and event.closes_epoch:
            self.line(f"{trial.name}  {position(event)}")

    def _warn(self, trial: Trial, what: str, event: Progress, meaning: str) -> None:
        """Say when it began, once per trial."""
        if (trial.id, what) not in self.warned:
            self.warned.add((trial.id, what))
            stage = "" if event.stage == "train" else f"{event.stage} "
            self.line(f"{trial.name}  {what} in {stage}epoch {event.epoch}: {meaning}")

    def _sum_up(self) -> None:
        """done / running / waiting, the best so far of each loss, and the time left."""
        if self.summary is None:
            self.summary = self.live.add_task("all trials", status="", total=1)
        words = [f"{self.done} done, {len(self.running)} running, {self.total - self.done - len(self.running)} waiting"]
        if self.done:
            left = (time.monotonic() - self.begun) / self.done * (self.total - self.done)
            words.append(f"about {duration(left)} left")
        if self.best.scores:
            words.append(str(self.best))
        self.live.update(self.summary, total=max(1, self.total), completed=self.done, status="  ".join(words))
