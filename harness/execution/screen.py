"""The screen of a run, drawn anew several times a second: a summary, the best scores, and a row per running trial."""

import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from harness.execution.pace import Pace, Running
from harness.execution.text import BestScores, duration, loss_value, phase
from harness.spec import Measurement, Progress, Work, printable

NARROWEST, WIDEST = 10, 100  # of a bar, in characters
NARROWEST_NAME = 12
GAP, NARROW_GAP, NARROW = 2, 1, 100  # between columns; on a terminal that is narrower than this
ID = 6  # digits of an id: as many as tell trials apart, and as `harness show` needs
COLUMNS = ("loss", "id", "fold", "seed", "phase", "value", "speed", "left")
DROPPED = ("speed", "value", "id", "seed", "fold", "left")  # in this order where the terminal is too narrow
RIGHT = ("seed", "value", "speed", "left")  # aligned to the right

Cells = Mapping[str, str]  # column -> text


def label(work: Work) -> str:
    """The loss of a trial, or which baseline it is; of a measurement also what is made of it."""
    if isinstance(work, Measurement):
        return work.label
    if work.is_baseline:
        return "pixels" if work.is_pixels else "untrained"
    return work.loss


def seed(work: Work) -> str:
    """A measurement has none: it is of several networks."""
    return "" if isinstance(work, Measurement) else f"seed {work.seed}"


@dataclass
class Screen:
    """What is shown now. Reports change it, and each redraw reads it."""

    title: str = ""
    best: BestScores | None = None
    pace: Pace = field(default_factory=Pace)
    running: dict[str, Running] = field(default_factory=dict)  # by the trial's id
    images: Progress | None = None  # being prepared, before trials start
    total: int = 0
    done: int = 0
    widths: dict[str, int] = field(default_factory=dict)  # of columns: they grow, so that bars do not tremble

    def render(self, width: int, height: int) -> RenderableType:
        """At most `height` lines."""
        if self.images is not None:
            return self.table([(image_cells(self.images), self.images)], width)
        if not self.total:
            return Text()
        running = list(self.running.values())
        lines: list[RenderableType] = [Text(self.headline(running), "bold", no_wrap=True, overflow="ellipsis")]
        lines.append(self.summary(running, width))
        if self.best is not None and self.best.scores:
            lines += [Text(line) for line in textwrap.wrap(str(self.best), width, break_on_hyphens=False)]
        room = height - len(lines) - 1
        shown = running if len(running) <= room else running[: max(1, room - 1)]
        now, same = time.monotonic(), self.same(running)
        lines.append(self.table([(trial_cells(trial, same, now), trial.event) for trial in shown], width))
        if len(shown) < len(running):
            lines.append(Text(f"and {len(running) - len(shown)} more"))
        return Group(*lines)

    def headline(self, running: Sequence[Running]) -> str:
        """What is the same for all rows below."""
        return " · ".join(filter(None, (printable(self.title), *self.same(running).values())))

    def same(self, running: Sequence[Running]) -> dict[str, str]:
        """The fold and the seed, where all running trials have the same."""
        facts: dict[str, set[str]] = {
            "fold": {one.work.fold for one in running},
            "seed": {seed(one.work) for one in running},
        }
        return {name: next(iter(values)) for name, values in facts.items() if len(values) == 1 and any(values)}

    def summary(self, running: Sequence[Running], width: int) -> RenderableType:
        waiting = self.total - self.done - len(running)
        words = f"{self.done} of {self.total} done, {len(running)} running, {waiting} waiting"
        left = self.pace.left(running, waiting)
        if left >= 1:
            words += f", about {duration(left)} left"
        room = width - len(words) - gap(width)
        if room < NARROWEST:
            return Text(words, no_wrap=True, overflow="ellipsis")
        line = Table.grid(padding=(0, gap(width), 0, 0))
        line.add_row(words, ProgressBar(max(1, self.total), self.done, width=min(room, WIDEST)))
        return line

    def table(self, rows: Sequence[tuple[Cells, Progress]], width: int) -> Table:
        """A line per row, none longer than `width`: the bars fill what the columns leave."""
        table = Table.grid(padding=(0, gap(width), 0, 0))
        for cells, _ in rows:
            for name, text in cells.items():
                self.widths[name] = max(cell_len(text), self.widths.get(name, 0))
        shown = fitting([name for name in COLUMNS if any(cells.get(name) for cells, _ in rows)], self.widths, width)
        widths = {name: self.widths[name] for name in shown}
        room = width - taken(widths, width)
        if room < NARROWEST and "loss" in widths:
            widths["loss"] = max(NARROWEST_NAME, widths["loss"] - (NARROWEST - room))
        bar = min(WIDEST, max(NARROWEST, width - taken(widths, width)))
        for cells, progress in rows:
            words = {name: aligned(cells.get(name, ""), name, size) for name, size in widths.items()}
            parts: list[RenderableType] = [Text(text, no_wrap=True) for text in words.values()]
            before = sum(name in ("loss", "id", "fold", "seed") for name in words)
            table.add_row(*parts[:before], bar_of(progress, bar), *parts[before:])
        return table


def trial_cells(running: Running, same: Mapping[str, str], now: float) -> Cells:
    """The columns of a running trial. What is the same for all of them is in the headline."""
    work, event = running.work, running.event
    left = running.left(now)
    return {
        "loss": printable(label(work)),
        "id": work.id[:ID],
        "fold": "" if "fold" in same else work.fold,
        "seed": "" if "seed" in same else seed(work),
        "phase": printable(phase(event)),
        "value": loss_value(event),
        "speed": speed(event),
        "left": f"{duration(left)} left" if left else "",
    }


def image_cells(progress: Progress) -> Cells:
    left = f"{duration(progress.seconds_left)} left"
    return {"phase": phase(progress), "speed": speed(progress), "left": left}


def speed(progress: Progress) -> str:
    return f"{progress.images_per_second:.0f} images/s" if progress.images_per_second else ""


def bar_of(progress: Progress, width: int) -> ProgressBar:
    total, done = progress.epochs * progress.steps, (progress.epoch - 1) * progress.steps + progress.step
    return ProgressBar(max(1, total), done, width=width)


def aligned(text: str, column: str, width: int) -> str:
    """A text in its column; one that is too long ends in an ellipsis."""
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + "…"
    space = " " * (width - cell_len(text))
    return space + text if column in RIGHT else text + space


def fitting(columns: Sequence[str], widths: Mapping[str, int], width: int) -> list[str]:
    """The columns that leave room for a bar."""
    for shown in fewer(columns):
        if taken({name: widths[name] for name in shown}, width) + NARROWEST <= width:
            return shown
    return shown


def fewer(columns: Sequence[str]) -> Iterator[list[str]]:
    """All columns, then ever fewer."""
    shown = list(columns)
    yield shown
    for name in DROPPED:
        shown = [column for column in shown if column != name]
        yield shown


def taken(widths: Mapping[str, int], width: int) -> int:
    """What columns, and the gaps between them and a bar, take of a terminal's width."""
    return sum(widths.values()) + gap(width) * len(widths)


def gap(width: int) -> int:
    return GAP if width >= NARROW else NARROW_GAP
