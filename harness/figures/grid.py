"""How a score depends on the settings and knobs of a grid: a line for one of them, a heat map for two."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harness import commands
from harness.analysis.experiments import Purposes
from harness.analysis.results import score
from harness.figures import style
from harness.figures.groups import Group
from harness.figures.registry import Drawing, Sources, missing
from harness.spec import SETTINGS, Result, Trial

METRIC = "R@1"  # where no record of an experiment says what it selects by
WIDE = 8  # columns of a heat map that fit into a column of a paper
CROWDED = 40  # letters below a heat map that stand aslant
FAR = 30  # values whose largest is so many times the smallest have a logarithmic axis
Values = tuple[Any, ...]  # of a cell, for the keys of the grid


@dataclass(frozen=True)
class Grid:
    """Runs of a loss that differ only in the keys of a grid, by their values for these keys."""

    loss: str
    title: str  # of the loss
    keys: tuple[str, ...]  # knobs, then settings
    metric: str
    runs: Mapping[Values, tuple[Result, ...]]

    def below_best(self) -> dict[Values, tuple[float, float, float]]:
        """Lowest, mean and highest over seeds, as differences to the best mean in percentage points."""
        means = {values: 100 * score(runs, self.metric).score for values, runs in self.runs.items()}
        best = max(means.values())
        below = {}
        for values, runs in self.runs.items():
            percent = [100 * run.metrics[self.metric] for run in runs]
            below[values] = (min(percent) - best, means[values] - best, max(percent) - best)
        return below

    @property
    def all_runs(self) -> list[Result]:
        return [run for runs in self.runs.values() for run in runs]

    @property
    def remarks(self) -> list[str]:
        counts = [len(runs) for runs in self.runs.values()]
        low, high = min(counts), max(counts)
        words = str(low) if low == high else f"{low} to {high}"
        classes = "test" if self.all_runs[0].trial.on_test else "validation"
        below = f"percentage points of {self.metric} on {classes} classes below the best cell"
        return [below, f"{words} seed{'s' if high > 1 else ''} per cell"]


def grid(group: Group, sources: Sources) -> Iterator[Drawing]:
    """Every grid that was run (the paper's Figs. 4 and 5 are two of them)."""
    found = find_grids(group)
    if not found:
        raise missing("grid", group)
    for cells in found:
        yield from draw_grid(group, cells)


def find_grids(group: Group) -> list[Grid]:
    """The grids of the experiments, one loss each. Grids over the same keys are joined, and a cell may have been stored
    before, for another purpose."""
    candidates = [run for run in group.results if run.is_single and not run.trial.is_baseline]
    asked: dict[tuple[tuple[str, ...], str, str], list[Result]] = defaultdict(list)  # grids over the same keys
    for metric, runs in requested(group, candidates):
        by_loss: dict[str, list[Result]] = defaultdict(list)
        for run in runs:
            by_loss[run.trial.loss].append(run)
        for _, of_loss in sorted(by_loss.items()):
            keys = varied([run.trial for run in of_loss])
            if keys:
                asked[keys, metric, without(of_loss[0].trial, keys, of_loss[0].trial)] += of_loss
    grids = []
    for (keys, metric, _), runs in asked.items():
        first = runs[0]
        grids.append(Grid(first.trial.loss, first.title, keys, metric, cells_of(candidates, keys, runs, metric)))
    return grids


def requested(group: Group, candidates: Sequence[Result]) -> Iterator[tuple[str, list[Result]]]:
    """The cells of each experiment, and what it selects by; then those of before experiments had records."""
    by_id = {run.id: run for run in candidates}
    claimed = {id for experiment in group.experiments for id in experiment.grid}
    for experiment in group.experiments:
        yield experiment.select, [by_id[id] for id in experiment.grid if id in by_id]
    purposes = Purposes(group.experiments)
    yield METRIC, [run for run in candidates if "grid" in purposes.of(run) and run.id not in claimed]


def varied(trials: Sequence[Trial]) -> tuple[str, ...]:
    """The knobs and settings in which trials differ, without those that follow from the others."""
    names = [*trials[0].knobs, *(name for name in SETTINGS if name != "seed")]
    keys: list[str] = []
    count = 1
    for name in names:
        values = {repr(tuple(value(trial, key) for key in (*keys, name))) for trial in trials}
        if len(values) > count:
            keys.append(name)
            count = len(values)
    return tuple(keys)


def value(trial: Trial, key: str) -> Any:
    return trial.knobs[key] if key in trial.knobs else getattr(trial, key, None)


def without(trial: Trial, keys: Sequence[str], first: Trial) -> str:
    """The same for trials that differ in these keys and in their seed only."""
    settings = {key: getattr(first, key) for key in keys if key not in first.knobs}
    knobs = {key: first.knobs[key] for key in keys if key in first.knobs}
    return replace(trial, **settings, knobs={**trial.knobs, **knobs}).configuration


def cells_of(
    candidates: Sequence[Result], keys: Sequence[str], runs: Sequence[Result], metric: str
) -> dict[Values, tuple[Result, ...]]:
    """All runs with the values of these, in any combination."""
    first = runs[0].trial
    base = without(first, keys, first)
    allowed = [{repr(value(run.trial, key)) for run in runs} for key in keys]
    cells: dict[Values, list[Result]] = defaultdict(list)
    for run in candidates:
        if run.trial.loss != first.loss or metric not in run.metrics or without(run.trial, keys, first) != base:
            continue
        values = tuple(value(run.trial, key) for key in keys)
        if all(repr(mine) in known for mine, known in zip(values, allowed, strict=True)):
            cells[values].append(run)
    return {values: tuple(cells[values]) for values in sorted(cells, key=lambda values: tuple(map(order, values)))}


def order(value: Any) -> tuple[int, float, str]:
    """Sorts numbers by size, before words."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0, float(value), ""
    return 1, 0.0, commands.written(value)


def draw_grid(group: Group, cells: Grid) -> Iterator[Drawing]:
    """A line for one key, a heat map for the last two; with more keys one for each combination of the others."""
    below = cells.below_best()
    if len(cells.keys) == 1:
        yield draw_line(group, cells, {values[0]: numbers for values, numbers in below.items()})
        return
    *others, row, column = cells.keys
    for fixed in dict.fromkeys(values[:-2] for values in below):
        part = {values[-2:]: mean for values, (_, mean, _) in below.items() if values[:-2] == fixed}
        words = [f"{key} = {written(setting)}" for key, setting in zip(others, fixed, strict=True)]
        yield draw_map(group, cells, part, (row, column), words)


def draw_map(
    group: Group, cells: Grid, means: Mapping[Values, float], keys: tuple[str, str], fixed: Sequence[str]
) -> Drawing:
    rows, columns = (sorted({values[place] for values in means}, key=order) for place in (0, 1))
    table = np.full((len(rows), len(columns)), np.nan)
    for (row, column), mean in means.items():
        table[rows.index(row), columns.index(column)] = mean
    worst = min(-0.1, float(np.nanmin(table)))
    figure = style.sheet(0.75 + 0.3 * len(rows), style.COLUMN if len(columns) <= WIDE else style.PAGE)
    axes = figure.add_subplot(xlabel=keys[1], ylabel=keys[0])
    axes.imshow(table, cmap="cividis", vmin=worst, vmax=0, aspect="auto")
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    names = [written(value) for value in columns]
    axes.set_xticks(range(len(columns)), names)
    if max(map(len, names)) * len(names) > CROWDED:
        axes.tick_params("x", rotation=35)
    axes.set_yticks(range(len(rows)), [written(value) for value in rows])
    for (row, column), value in np.ndenumerate(table):
        if not np.isnan(value):
            ink = "black" if value > worst / 2 else "white"
            weight = "bold" if value == 0 else "normal"
            axes.text(column, row, points(value), ha="center", va="center", color=ink, weight=weight, fontsize=8)
    style.title(figure, axes, ", ".join([f"{group.title}: {cells.title}", *fixed]))
    style.note(figure, group.note(cells.all_runs, *cells.remarks))
    return Drawing(figure, "-".join([cells.loss, *keys, *(word.replace(" ", "") for word in fixed)]))


def draw_line(group: Group, cells: Grid, below: Mapping[Any, tuple[float, float, float]]) -> Drawing:
    """Its band is from the lowest to the highest seed. Words stand at equal distances."""
    values = sorted(below, key=order)
    low, mean, high = zip(*(below[value] for value in values), strict=True)
    numeric = all(order(value)[0] == 0 for value in values)
    x = [float(value) for value in values] if numeric else list(range(len(values)))
    look = style.look(cells.loss, group.losses)
    figure = style.sheet(1.9)
    axes = figure.add_subplot(xlabel=cells.keys[0], ylabel=f"{cells.metric} (points)")
    axes.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0)
    axes.plot(x, mean, color=look.colour, marker=look.marker, linestyle="-" if numeric else "")
    if numeric and min(x) > 0 and max(x) / min(x) >= FAR:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(x, [written(value) for value in values])
    style.title(figure, axes, f"{group.title}: {cells.title}")
    band = "band: min to max over seeds" if max(map(len, cells.runs.values())) > 1 else ""
    style.note(figure, group.note(cells.all_runs, *cells.remarks, band))
    return Drawing(figure, f"{cells.loss}-{cells.keys[0]}")


def written(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else commands.written(value) or "none"


def points(value: float) -> str:
    """-1.26 as −1.3; a difference that rounds to zero as 0.0, and the best as 0."""
    return "0" if value == 0 else f"{value:.1f}".replace("-0.0", "0.0").replace("-", "−")
