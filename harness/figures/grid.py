"""What two settings of the Group Loss do: anchors against samples per class, and classes per batch."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from harness.figures import style
from harness.figures.groups import Group
from harness.figures.registry import Asked
from harness.spec import Result, Trial, UserError

LOSS = "group"
BEST = "percentage points of validation R@1 below the best"
Cell = tuple[Any, ...]


@dataclass(frozen=True)
class Cells:
    """Validation runs that agree in everything but the settings of a grid, by the values they have for those."""

    runs: Mapping[Cell, tuple[Result, ...]]

    def below_best(self) -> dict[Cell, tuple[float, float, float]]:
        """Lowest, mean and highest over seeds, in percentage points from the best mean, which is 0."""
        scores = {cell: [100 * one.metrics["R@1"] for one in runs] for cell, runs in self.runs.items()}
        means = {cell: sum(of) / len(of) for cell, of in scores.items()}
        best = max(means.values())
        return {cell: (min(of) - best, means[cell] - best, max(of) - best) for cell, of in scores.items()}

    @property
    def all_runs(self) -> list[Result]:
        return [one for runs in self.runs.values() for one in runs]

    @property
    def seeds(self) -> str:
        counts = sorted({len(runs) for runs in self.runs.values()})
        return f"{' to '.join(map(str, sorted({counts[0], counts[-1]})))} seed{'s' if counts[-1] > 1 else ''} a cell"


def grid(group: Group, asked: Asked) -> Iterator[tuple[str, Figure]]:
    """The paper's Figs. 4 and 5, whichever was run."""
    drawn = [heatmap(group), classes(group)]
    missing = [one for one in drawn if isinstance(one, UserError)]
    if len(missing) == len(drawn):
        raise missing[0]
    yield from (one for one in drawn if not isinstance(one, UserError))


def heatmap(group: Group) -> tuple[str, Figure] | UserError:
    found = cells(group, lambda trial: (trial.knobs["anchors"], trial.samples_per_class), without_anchors)
    if found is None:
        options = ("--grid", "group.anchors=0,1,2,3,4", "--grid", "samples_per_class=5,6,7,8,9,10")
        return group.missing("grid of anchors and samples per class", "--losses", LOSS, *options)
    below = found.below_best()
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
    style.note(figure, group.note(found.all_runs, "Group Loss", BEST, found.seeds))
    return "grid-anchors", figure


def classes(group: Group) -> tuple[str, Figure] | UserError:
    found = cells(group, lambda trial: (trial.classes_per_batch,), lambda trial: replace(trial, classes_per_batch=1))
    if found is None:
        options = ("--grid", "classes_per_batch=3,6,9,12,15")
        return group.missing("grid of classes per batch", "--losses", LOSS, *options)
    below = found.below_best()
    x = sorted(cell[0] for cell in below)
    low, mean, high = zip(*(below[(value,)] for value in x), strict=True)
    one = style.look(LOSS, group.losses)
    figure = style.sheet(1.8)
    axes = figure.add_subplot(xlabel="Classes per batch", ylabel="Recall@1 (pp)", xticks=x)
    axes.fill_between(x, low, high, color=one.colour, alpha=0.15, linewidth=0)
    axes.plot(x, mean, color=one.colour, marker=one.marker)
    band = "band: min to max over seeds" if max(map(len, found.runs.values())) > 1 else ""
    style.note(figure, group.note(found.all_runs, "Group Loss", BEST, found.seeds, band))
    return "grid-classes", figure


def without_anchors(trial: Trial) -> Trial:
    return replace(trial, samples_per_class=1, knobs={**trial.knobs, "anchors": None})


def cells(group: Group, values: Callable[[Trial], Cell], without: Callable[[Trial], Trial]) -> Cells | None:
    """The largest grid there is, at least 2 values each way; of equally large ones that with the best cell. A result
    does not know that it came from a grid."""
    found: dict[str, dict[Cell, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for one in group.validation():
        if one.trial.loss == LOSS and "anchors" in one.trial.knobs:
            found[replace(without(one.trial), seed=0).id][values(one.trial)].append(one)
    whole = [
        Cells({cell: tuple(runs) for cell, runs in sorted(by_cell.items())})
        for by_cell in found.values()
        if all(len(set(column)) >= 2 for column in zip(*by_cell, strict=True))
    ]
    return max(whole, key=lambda one: (len(one.runs), best_score(one)), default=None)


def best_score(one: Cells) -> float:
    return max(run.metrics["R@1"] for run in one.all_runs)


def points(value: float) -> str:
    """-1.26 as −1.3; what rounds to nothing is 0.0, the best is 0."""
    return "0" if value == 0 else f"{value:.1f}".replace("-0.0", "0.0").replace("-", "−")
