"""How Recall@1 of the Group Loss depends on anchors and samples per class, and on classes per batch."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harness.analysis.experiments import Purposes
from harness.analysis.results import score
from harness.figures import style
from harness.figures.groups import Group
from harness.figures.registry import Drawing, Sources, missing
from harness.spec import Result, Trial

LOSS = "group"
METRIC = "R@1"
BEST = f"percentage points of validation {METRIC} below the best"
Values = tuple[Any, ...]  # of a cell, for the settings of the grid


@dataclass(frozen=True)
class Cells:
    """Validation runs that differ only in the settings of a grid, by their values for these settings."""

    runs: Mapping[Values, tuple[Result, ...]]

    def below_best(self) -> dict[Values, tuple[float, float, float]]:
        """Lowest, mean and highest over seeds, as differences to the best mean in percentage points."""
        means = {values: 100 * score(runs, METRIC).score for values, runs in self.runs.items()}
        best = max(means.values())
        below = {}
        for values, runs in self.runs.items():
            percent = [100 * run.metrics[METRIC] for run in runs]
            below[values] = (min(percent) - best, means[values] - best, max(percent) - best)
        return below

    @property
    def all_runs(self) -> list[Result]:
        return [run for runs in self.runs.values() for run in runs]

    @property
    def best_score(self) -> float:
        return max(score(runs, METRIC).score for runs in self.runs.values())

    @property
    def seeds(self) -> str:
        counts = [len(runs) for runs in self.runs.values()]
        low, high = min(counts), max(counts)
        words = str(low) if low == high else f"{low} to {high}"
        return f"{words} seed{'s' if high > 1 else ''} per cell"


def grid(group: Group, sources: Sources) -> Iterator[Drawing]:
    """The paper's Figs. 4 and 5, whichever was run."""
    anchors = find_cells(group, lambda trial: (trial.knobs["anchors"], trial.samples_per_class), without_anchors)
    classes = find_cells(group, lambda trial: (trial.classes_per_batch,), without_classes)
    if anchors is None and classes is None:
        raise missing("grid", group)
    if anchors:
        yield draw_anchors(group, anchors)
    if classes:
        yield draw_classes(group, classes)


def without_anchors(trial: Trial) -> Trial:
    return replace(trial, samples_per_class=1, knobs={**trial.knobs, "anchors": None})


def without_classes(trial: Trial) -> Trial:
    return replace(trial, classes_per_batch=1)


def find_cells(group: Group, values: Callable[[Trial], Values], without: Callable[[Trial], Trial]) -> Cells | None:
    """The largest grid with at least 2 values per setting; of equally large ones the one with the best cell. At least
    one cell was run for a grid; the others may have been stored before, for another purpose."""
    grids: dict[str, dict[Values, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for run in group.validation():
        if run.trial.loss == LOSS and "anchors" in run.trial.knobs:
            grids[without(run.trial).configuration][values(run.trial)].append(run)
    purposes = Purposes(group.experiments)
    candidates = []
    for by_values in grids.values():
        large = all(len(set(column)) >= 2 for column in zip(*by_values, strict=True))
        if large and any("grid" in purposes.of(run) for runs in by_values.values() for run in runs):
            candidates.append(Cells({cell: tuple(runs) for cell, runs in sorted(by_values.items())}))
    return max(candidates, key=lambda cells: (len(cells.runs), cells.best_score), default=None)


def draw_anchors(group: Group, cells: Cells) -> Drawing:
    """A heat map."""
    below = cells.below_best()
    anchors, samples = (sorted({cell[place] for cell in below}) for place in (0, 1))
    table = np.full((len(anchors), len(samples)), np.nan)
    for (a, s), (_, mean, _) in below.items():
        table[anchors.index(a), samples.index(s)] = mean
    worst = min(-0.1, float(np.nanmin(table)))
    figure = style.sheet(0.55 + 0.3 * len(anchors))
    axes = figure.add_subplot(xlabel="Samples per class", ylabel="Anchors per class")
    axes.imshow(table, cmap="cividis", vmin=worst, vmax=0, aspect="auto")
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xticks(range(len(samples)), samples)
    axes.set_yticks(range(len(anchors)), anchors)
    for (row, column), value in np.ndenumerate(table):
        if not np.isnan(value):
            ink = "black" if value > worst / 2 else "white"
            weight = "bold" if value == 0 else "normal"
            axes.text(column, row, points(value), ha="center", va="center", color=ink, weight=weight, fontsize=8)
    style.note(figure, group.note(cells.all_runs, "Group Loss", BEST, cells.seeds))
    return Drawing(figure, "anchors")


def draw_classes(group: Group, cells: Cells) -> Drawing:
    """A line, its band from the lowest to the highest seed."""
    below = cells.below_best()
    x = sorted(cell[0] for cell in below)
    low, mean, high = zip(*(below[(value,)] for value in x), strict=True)
    look = style.look(LOSS, group.losses)
    figure = style.sheet(1.8)
    axes = figure.add_subplot(xlabel="Classes per batch", ylabel="Recall@1 (pp)", xticks=x)
    axes.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0)
    axes.plot(x, mean, color=look.colour, marker=look.marker)
    band = "band: min to max over seeds" if max(map(len, cells.runs.values())) > 1 else ""
    style.note(figure, group.note(cells.all_runs, "Group Loss", BEST, cells.seeds, band))
    return Drawing(figure, "classes")


def points(value: float) -> str:
    """-1.26 as −1.3; a difference that rounds to zero as 0.0, and the best as 0."""
    return "0" if value == 0 else f"{value:.1f}".replace("-0.0", "0.0").replace("-", "−")
