"""Every loss against every other: the difference in Recall@1, and whether it is significant."""

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure

from harness.analysis.statistics import ENOUGH_SEEDS, SIGNIFICANT, Pairs, Sums, pairs
from harness.figures import style
from harness.figures.grid import points
from harness.figures.groups import Group, Line, lines
from harness.figures.registry import Drawing, Sources, missing

METRIC = "R@1"
NARROW = 6  # losses that fit into a column of a paper
SIGNIFICANCE = f"coloured: significant at {100 * SIGNIFICANT:g} % (test classes and seeds, Holm over all pairs)"


def pairwise(group: Group, sources: Sources) -> Iterator[Drawing]:
    """A heat map: row minus column, the best loss first."""
    series, remark = lines(group.final())
    tested = comparable(series, sources)
    if len(tested) < 2:
        raise missing("pairwise", group)
    tested.sort(key=lambda pair: -pair[1].value)
    titles = [style.words(line.title, 22) for line, _ in tested]
    compared = [line for line, _ in tested]
    left_out = len(series) - len(tested)
    few = f"without values per query or with fewer than {ENOUGH_SEEDS} seeds left out"
    without = f"{left_out} loss{'es' if left_out > 1 else ''} {few}"
    figure = heat_map(pairs([sums for _, sums in tested]), titles, group.title)
    runs = [run for line in compared for run in line.runs]
    remarks = [f"row minus column, percentage points of {METRIC}", SIGNIFICANCE, without if left_out else "", remark]
    style.note(figure, group.note(runs, *remarks))
    yield Drawing(figure)


def comparable(series: Sequence[Line], sources: Sources) -> list[tuple[Line, Sums]]:
    """The losses with enough seeds and with values of the same queries; of different ones, those that most have."""
    found = []
    for line in series:
        with contextlib.suppress(ValueError):
            found.append((line, sources.per_query.sums(line.runs, METRIC)))
    found = [(line, sums) for line, sums in found if len(sums.seeds) >= ENOUGH_SEEDS]
    usual = Counter(sums.queries for _, sums in found).most_common(1)
    return [(line, sums) for line, sums in found if sums.queries == usual[0][0]]


def heat_map(tested: Pairs, titles: Sequence[str], title: str) -> Figure:
    count = len(titles)
    width = style.COLUMN if count <= NARROW else style.PAGE
    figure = style.sheet(0.9 + 0.24 * count, width)
    axes = figure.add_subplot()
    table = 100 * tested.differences
    largest = max(0.1, float(np.nanmax(np.abs(table), initial=0.0, where=~np.isnan(table))))
    told_apart = tested.adjusted <= SIGNIFICANT
    axes.imshow(np.where(told_apart, table, np.nan), cmap="PuOr", vmin=-largest, vmax=largest, aspect="auto")
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xticks(range(count), titles, rotation=35, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(count), titles)
    style.title(figure, axes, title)
    for (row, column), value in np.ndenumerate(table):
        if np.isnan(value):
            continue
        text = f"{'+' if value > 0 else ''}{points(value)}"
        dark = abs(value) > 0.6 * largest
        ink = style.GREY if not told_apart[row, column] else "white" if dark else "black"
        axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=style.SMALL)
    return figure
