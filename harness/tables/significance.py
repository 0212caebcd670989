"""The cells of a column: their intervals, which mean is the best, and which the tests do not tell apart from it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from harness.analysis import reference
from harness.analysis.queries import Queries
from harness.analysis.statistics import ENOUGH_SEEDS, SIGNIFICANT, Sums, difference, estimate, half_width, pairs
from harness.spec import Result, percent
from harness.tables.captions import stands_beside
from harness.tables.layout import BASELINES, PARAMETERS, Cell, Column, Over, Published, Row

UNTESTED = "NMI"  # no mean over queries


def cell(runs: Sequence[Result], column: Column, queries: Queries | None, published: Published) -> Cell:
    """The seeds of one configuration on one dataset.

    One seed: an interval over classes. Two: both values. From three on: the mean, and an interval over classes and
    seeds; of NMI over seeds. Without the values of each query there is no interval.
    """
    if column.name == PARAMETERS and runs:
        return Cell(f"{runs[0].parameters:,}")
    runs = sorted((run for run in runs if column.name in run.metrics), key=lambda run: run.trial.seed)
    if not runs:
        return Cell()
    values = tuple(run.metrics[column.name] for run in runs)
    papers = reference.number(runs[0], column.name) if stands_beside(runs[0], published) else None
    text = ", ".join(map(percent, values)) if len(values) == 2 else percent(fmean(values))
    ids = tuple(run.id for run in runs)
    plain = Cell(text, fmean(values), values=values, ids=ids, published=papers.text if papers else "")
    if column.name == UNTESTED:
        half = half_width(values)
        return plain if half is None else replace(plain, half=half, over="seeds")
    sums = sums_of(runs, column.name, queries)
    if sums is None or len(values) == 2:
        return plain
    over: Over = "classes" if len(values) == 1 else "classes and seeds"
    return replace(plain, half=estimate(sums).half, over=over, sums=sums)


def sums_of(runs: Sequence[Result], metric: str, queries: Queries | None) -> Sums | None:
    """None where they are not stored or damaged; a footnote says so."""
    try:
        return queries.sums(runs, metric) if queries else None
    except ValueError:
        return None


def missing_values(runs: Sequence[Result], queries: Queries | None) -> Iterator[str]:
    """Why a row has no interval and is not tested, if it could be but for its stored values."""
    if queries is None or len(runs) == 2:
        return
    reason = queries.problem(runs)
    if reason:
        yield f"No interval, not tested: {reason}."


def marked(rows: Sequence[Row]) -> list[Row]:
    """The rows with the best mean of each column marked, and the means that are not told apart from it."""
    trained = [row.section != BASELINES for row in rows]
    columns = [marked_column(column, trained) for column in zip(*(row.cells for row in rows), strict=True)]
    return [replace(row, cells=cells) for row, cells in zip(rows, zip(*columns, strict=True), strict=True)]


def marked_column(cells: Sequence[Cell], trained: Sequence[bool]) -> list[Cell]:
    """Of trained rows with enough seeds, two at least. A row is level with the best if their pair is not rejected, with
    Holm's correction for all pairs: the best is picked from the same data, so tests against it alone would be too bold.
    Baselines are not among the pairs; each is tested against the best alone."""
    family = {
        place: cell.sums
        for place, cell in enumerate(cells)
        if trained[place] and cell.sums is not None and len(cell.sums.seeds) >= ENOUGH_SEEDS
    }
    if len(family) < 2:
        return [replace(cell, best=False, tied=False, unpaired=False) for cell in cells]
    places = list(family)
    best = max(places, key=lambda place: family[place].value)
    p = dict(zip(places, pairs(list(family.values())).adjusted[places.index(best)], strict=True))
    for place, cell in enumerate(cells):
        if not trained[place] and cell.sums is not None:
            p[place] = baseline_p(cell.sums, family[best])
    equal = {place for place in places if math.isclose(family[place].value, family[best].value)}
    return [
        replace(
            cell,
            best=place in equal,
            tied=place not in equal
            and bool(p.get(place, math.nan) > SIGNIFICANT),  # not numpy's, which JSON does not know
            unpaired=place not in equal and place in p and math.isnan(p[place]),
        )
        for place, cell in enumerate(cells)
    ]


def baseline_p(baseline: Sums, best: Sums) -> float:
    """Of a baseline against the best loss; NaN where they cannot be paired."""
    if baseline.queries != best.queries:
        return math.nan
    seeds = best.seeds if len(baseline.seeds) == 1 else best.shared(baseline)
    return difference(best.at(seeds), baseline).p if len(seeds) >= ENOUGH_SEEDS else math.nan
