"""What a person sees while trials run: bars on a terminal, plain lines elsewhere."""

from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from harness.spec import Failure, Progress, Result, Trial


class Display:
    """Told of every event of every trial; `total` trials are expected in all."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.total = 0
        self.done = 0
        self.bars: dict[str, TaskID] = {}
        self.live = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[status]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.live.stop()

    def show(self, trial: Trial, event: Progress | Result | Failure) -> None:
        if isinstance(event, Progress):
            self._progress(trial, event)
            return
        self.done += 1
        if trial.id in self.bars:
            self.live.remove_task(self.bars.pop(trial.id))
        self._line(f"[{self.done}/{self.total}] {trial.name}  {outcome(event)}")

    def _progress(self, trial: Trial, event: Progress) -> None:
        if self.console.is_terminal:
            if trial.id not in self.bars:
                self.bars[trial.id] = self.live.add_task(trial.name, status="", total=1)
            total, done = event.epochs * event.steps, (event.epoch - 1) * event.steps + event.step
            self.live.update(self.bars[trial.id], total=total, completed=done, status=status(event))
        elif event.stage != "evaluate" and event.step == event.steps:
            self._line(f"{trial.name}  {status(event)}")

    def _line(self, text: str) -> None:
        # soft_wrap: a line stays a line where the output is a file; no markup: names are the user's
        self.console.print(text, soft_wrap=True, markup=False, highlight=False)


def status(event: Progress) -> str:
    left = timedelta(seconds=round(event.seconds_left))
    if event.stage == "evaluate":
        return f"evaluating  {event.images_per_second:.0f} images/s  {left} left"
    stage = "" if event.stage == "train" else f"{event.stage} "
    return (
        f"{stage}epoch {event.epoch}/{event.epochs}  loss {event.loss:.3f}  "
        f"{event.images_per_second:.0f} images/s  {left} left"
    )


def outcome(event: Result | Failure) -> str:
    if isinstance(event, Failure):
        return f"failed: {event.error}"
    shown = "  ".join(f"{name} {100 * event.metrics[name]:.1f}" for name in ("R@1", "NMI") if name in event.metrics)
    return f"{shown}  {event.seconds['total']:.0f} s"
