"""What a person sees while trials run: a redrawn screen on a terminal, lines with the time of day elsewhere."""

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console, OverflowMethod
from rich.live import Live

from harness.execution.pace import Running
from harness.execution.screen import Screen, label, seed
from harness.execution.text import BestScores, outcome, position
from harness.spec import PRETRAINING, Event, Experiment, Progress, Result, Work, printable

REDRAWS = 4  # per second
SHORT_ID = 8  # digits of an id in a line that fits 80 columns
TENTH = 0.1  # of the images, after which a file gets a line


class Display:
    """A row for each running trial below a summary; a line for what has happened. Its `show` is a listener."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.screen = Screen()
        self.total = self.done = 0
        self.announced = False  # the total stands
        self.name_width = 0
        self.several_seeds = False
        self.warned: set[tuple[str, str]] = set()  # ids of trials, and what they were warned of
        self.log: Path | None = None
        self.live: Live | None = None

    def begin(self, experiment: Experiment, log: Path | None = None) -> None:
        """Say what is compared. Every line also goes to the file `log`, which outlives the terminal."""
        protocol = experiment.protocol
        self.screen.title = f"{experiment.dataset.name} · {protocol.name}"
        self.screen.best = BestScores(protocol.select, protocol.folds, select_epochs=protocol.select_epochs)
        ensembles = [f" x {size}" for size in experiment.ensembles]
        names = [loss.name + more for loss in experiment.losses for more in ("", *ensembles)]
        if {**protocol.settings, **experiment.settings}.get("pretrain_epochs"):
            names.append(PRETRAINING)
        self.name_width = max(map(len, (*names, "untrained")))
        self.several_seeds = experiment.seeds > 1
        self.log = log

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            # not Live's own height limit, which hides the last rows: the screen shows as many as fit
            self.live = Live(
                console=self.console,
                get_renderable=lambda: self.screen.render(self.console.width, self.console.height),
                refresh_per_second=REDRAWS,
                transient=True,
            )
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None

    @contextmanager
    def preparing(self) -> Iterator[Callable[[Progress], None]]:
        """A bar for the images that are decoded before the first trial starts; a file gets a line for each tenth."""
        begun, told, count = time.monotonic(), 0.0, 0

        def show(progress: Progress) -> None:
            nonlocal told, count
            if progress.note:
                self.line(progress.note)
                return
            self.screen.images, count = progress, progress.steps
            share = progress.step / progress.steps
            if share >= told + TENTH and share < 1:
                told = share
                self.event(position(progress))

        with self:
            try:
                yield show
            finally:
                self.screen.images = None
        if count:
            self.line(f"{count} images prepared in {time.monotonic() - begun:.0f} s")

    def expect(self, trials: int) -> None:
        """So many trials are still to come. The total stands from the first call on: trials that turn out not to be
        needed, because their results are stored, count as done."""
        if not self.announced:
            self.announced, self.total = True, self.done + trials
        surplus = self.total - self.done - trials
        if surplus > 0:
            self.done += surplus
            self.line(f"{surplus} of the {self.total} trials need not run")
        self.total = self.done + trials
        self._sum_up()

    def show(self, work: Work, event: Event) -> None:
        if isinstance(event, Progress):
            self._progress(work, event)
            return
        self.done += 1
        running = self.screen.running.pop(work.id, None)
        if isinstance(event, Result):
            if running is not None:
                self.screen.pace.ended(running)
            if self.screen.best is not None:
                self.screen.best.add(event, {event.purpose})
        self._sum_up()
        counter = f"[{self.done:>{len(str(self.total))}}/{self.total}]"
        which = f"{seed(work)}  " if self.several_seeds and seed(work) else ""
        short = f"{label(work):{self.name_width}}  {work.id[:SHORT_ID]}  {work.fold}  {which}{outcome(event)}"
        self.line(f"{counter} {short}", f"[{self.done}/{self.total}] {work.name}  {which}{outcome(event)}")

    def lose(self, work: Work) -> None:
        """A trial does not run any more, and has not ended: its process or node died, or its node is unfit."""
        if self.screen.running.pop(work.id, None) is not None:
            self.event(f"{work.name}  waits to start again")

    def line(self, text: str, plain: str = "") -> None:
        """Print a line; `plain` is its form in a file."""
        if self.console.is_terminal:
            self._print(text)
            self._log(plain or text)
        else:
            self.event(plain or text)

    def event(self, text: str) -> None:
        """A line for files alone: on a terminal the screen shows it."""
        if not self.console.is_terminal:
            self._print(f"{time.strftime('%H:%M:%S')} {text}")
        self._log(text)

    def _print(self, text: str) -> None:
        # a line stays a line where the output is a file; no markup: names are the user's
        wraps = self.console.is_terminal
        overflow: OverflowMethod = "fold" if wraps else "ignore"
        self.console.print(printable(text), soft_wrap=not wraps, overflow=overflow, markup=False, highlight=False)

    def _log(self, text: str) -> None:
        if self.log is None:
            return
        with contextlib.suppress(OSError):  # on a full disk the next result fails, and says so
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {printable(text)}\n")

    def _progress(self, work: Work, event: Progress) -> None:
        if work.id not in self.screen.running:
            self.screen.running[work.id] = Running(work, event)
            self.screen.pace.began(len(self.screen.running))
            self._sum_up()
            self.event(f"{work.name}  begins")
        stage = self.screen.running[work.id].event.stage
        self.screen.running[work.id].hear(event)
        if event.note:
            self.line(f"{work.name}  {event.note}")
        if event.collapsed:
            self._warn(work, "collapsed", event, "all images have nearly the same embedding")
        if event.is_idle:
            self._warn(work, "loss of 0 in every step", event, "nothing is learned")
        if event.closes_epoch or (event.stage == "cluster" != stage):
            self.event(f"{work.name}  {position(event)}")

    def _warn(self, work: Work, what: str, event: Progress, meaning: str) -> None:
        """Say when it began, once per trial."""
        if (work.id, what) not in self.warned:
            self.warned.add((work.id, what))
            stage = "" if event.stage == "train" else f"{event.stage} "
            self.line(f"{work.name}  {what} in {stage}epoch {event.epoch}: {meaning}")

    def _sum_up(self) -> None:
        self.screen.done, self.screen.total = self.done, self.total
