"""The first sentences below a table: what its numbers are, what their intervals are over, and what was tested."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from harness.analysis import reference
from harness.analysis.results import OnDataset, configurations
from harness.analysis.statistics import ENOUGH_SEEDS, SIGNIFICANT
from harness.spec import Result
from harness.tables.layout import BASELINES, PUBLISHED, Cell, Column, Kind, Row
from harness.tables.significance import UNTESTED

MEAN_OVER_SUBSETS = "An n-ensemble's score is the mean over all subsets of n networks."
SEARCH_LUCK = "Intervals leave out that another search might have chosen other values."
TWO_SEEDS = "With two seeds both values are shown, without an interval."


def legend(kind: Kind, datasets: Sequence[OnDataset], columns: Sequence[Column], rows: Sequence[Row]) -> Iterator[str]:
    """`rows`: all rows of the table, published ones included."""
    yield numbers([result for dataset in datasets for result in dataset.results])
    yield from left_out(datasets)
    if has_ensembles(datasets):
        yield MEAN_OVER_SUBSETS
    yield from intervals(kind, columns, rows)
    yield from tests(kind, rows)
    if any(cell.published for row in rows for cell in row.cells):
        yield (
            f"In brackets: the number published in {reference.paper()['cite']}, and ours minus published in percentage "
            "points. All published numbers except the Group Loss's are quoted there from other papers. The paper does "
            "not describe the k-means of its NMI."
        )


def short_legend(
    kind: Kind, datasets: Sequence[OnDataset], columns: Sequence[Column], rows: Sequence[Row]
) -> Iterator[str]:
    """The same for a terminal: a sentence on what is shown and one on the intervals."""
    cells = [cell for row in rows for cell in row.cells]
    shown = numbers([result for dataset in datasets for result in dataset.results])
    if any(is_marked(cell) for cell in cells):
        best = f"the best mean{of_the_tested(rows)}"
        shown = f"{shown[:-1]}; bold: {best}, underlined: not told apart from it."
    if any(cell.published for cell in cells):
        shown = f"{shown[:-1]}; in brackets: the number of {reference.paper()['cite']}, and ours minus it."
    yield shown
    yield from untested(kind, rows)
    if has_ensembles(datasets):
        yield MEAN_OVER_SUBSETS
    interval = short_interval(cells, any(column.name == UNTESTED for column in columns))
    if interval:
        yield interval


def short_interval(cells: Sequence[Cell], with_nmi: bool) -> str:
    """What ± is over, and why it is missing where there are two seeds."""
    over = {cell.over for cell in cells}
    if "classes and seeds" in over:
        alone = ", of a single run over test classes alone" if "classes" in over else ""
        nmi = ", of NMI over seeds" if with_nmi else ""
        words = f"± is the 95 % interval over test classes and seeds{alone}{nmi}."
    elif "classes" in over:
        words = "± is the 95 % interval over test classes alone: it leaves out the randomness of training."
    else:
        words = ""
    if any(len(cell.values) == 2 for cell in cells):
        words = f"{words} {TWO_SEEDS}".strip()
    return words


def numbers(results: Sequence[Result]) -> str:
    seeds = seeds_of(results)
    low, high = min(seeds), max(seeds)
    count = str(high) if low == high else f"{low} to {high}"
    words = "mean over " if high >= ENOUGH_SEEDS else ""
    return f"Percent on test classes, {words}{count} seed{'s' if high > 1 else ''}."


def seeds_of(results: Iterable[Result]) -> list[int]:
    """How many seeds each configuration of a loss has. The baselines count only if they alone have several: raw
    pixels, and a network without a random part, are measured once."""
    single = [result for result in results if not result.is_ensemble]
    losses = [len(runs) for runs in configurations(single)]
    if max(losses, default=0) > 1:
        return losses
    return list(Counter(result.trial.configuration for result in single).values()) or [1]


def left_out(datasets: Sequence[OnDataset]) -> Iterator[str]:
    """Queries that no network can answer."""
    for dataset in datasets:
        counts = {
            (result.queries["without_match"], result.queries["count"])
            for result in dataset.results
            if result.queries.get("without_match")
        }
        for without, every in sorted(counts)[-1:]:
            where = f" of {dataset.title}" if len(datasets) > 1 else ""
            yield (
                f"{without:,} of {every:,} queries{where} have no image of their class in the gallery: retrieval "
                "metrics leave them out."
            )


def has_ensembles(datasets: Sequence[OnDataset]) -> bool:
    """Methods of the paper's Table 2 stand in its table without one."""
    return any(result.is_ensemble for dataset in datasets for result in dataset.results)


def intervals(kind: Kind, columns: Sequence[Column], rows: Sequence[Row]) -> Iterator[str]:
    """What ± is over: it depends on the number of seeds."""
    cells = [cell for row in rows for cell in row.cells]
    over = {cell.over for cell in cells}
    ensembles = kind == "ensembles"
    if "classes and seeds" in over:
        yield "± is the 95 % interval over test classes and seeds."
    if "classes" in over:
        alone = "of an ensemble " if ensembles else "of a single run " if "classes and seeds" in over else ""
        yield f"± {alone}is the 95 % interval over test classes alone: it leaves out the randomness of training."
    if any(len(cell.values) == 2 for cell in cells):
        yield TWO_SEEDS
    if any(column.name == UNTESTED for column in columns) and len(over - {""}) > 0:
        yield "NMI has an interval from three seeds on, over seeds alone; it is not tested."


def tests(kind: Kind, rows: Sequence[Row]) -> Iterator[str]:
    cells = [cell for row in rows for cell in row.cells]
    if any(is_marked(cell) for cell in cells):
        printed = any(row.section.startswith(PUBLISHED) for row in rows)
        here = " measured here" if printed else ""
        yield f"Bold: the best mean{here}{of_the_tested(rows)}; underlined: not told apart from it."
        yield (
            "All pairs of losses of a column are tested over the same classes and seeds, with Holm's correction for "
            f"their number ({100 * SIGNIFICANT:g} %). {SEARCH_LUCK}"
        )
        if any(row.section == BASELINES for row in rows):
            yield "Baselines are tested against the best loss alone, and are never bold."
        yield from untested(kind, rows)
    elif any(cell.values for row in rows if row.section != BASELINES for cell in row.cells):
        yield f"Differences are not tested: a test needs two losses with {ENOUGH_SEEDS} seeds each."
        if any(cell.over for cell in cells):
            yield SEARCH_LUCK


def untested(kind: Kind, rows: Sequence[Row]) -> Iterator[str]:
    """Which rows of a table with tests have none."""
    if not any(is_marked(cell) for row in rows for cell in row.cells):
        return
    if has_few_seeds(rows):
        which = "Ensembles" if kind == "ensembles" else f"Rows with fewer than {ENOUGH_SEEDS} seeds"
        yield f"{which} are not tested."
    unpaired = [row.label for row in rows if any(cell.unpaired for cell in row.cells)]
    if unpaired:
        yield (
            f"Not tested against the best, because they share fewer than {ENOUGH_SEEDS} seeds with it or answered "
            f"other queries: {', '.join(unpaired)}."
        )


def of_the_tested(rows: Sequence[Row]) -> str:
    """A row that is not tested may have a better mean than the one in bold."""
    return " of the rows that are tested" if has_few_seeds(rows) else ""


def has_few_seeds(rows: Sequence[Row]) -> bool:
    return any(0 < len(cell.values) < ENOUGH_SEEDS for row in rows if row.section != BASELINES for cell in row.cells)


def is_marked(cell: Cell) -> bool:
    return cell.best or cell.tied
