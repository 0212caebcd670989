"""The search tables: the budget of each loss, and what random search found with it on validation classes."""

from collections.abc import Iterator, Sequence

from harness.analysis import budget
from harness.analysis.results import Comparison, OnDataset, by_dataset, comparisons, group_by, on_test
from harness.analysis.statistics import expected_best
from harness.spec import Result, percent
from harness.tables.captions import written
from harness.tables.layout import Cell, Column, Options, Row, Table
from harness.tables.rows import distinction, same_row


def search(results: Sequence[Result], options: Options) -> list[Table]:
    """One table per protocol, backbone and dataset. The paper has no such numbers, and the columns are fixed."""
    tables = []
    for comparison in comparisons(results):
        trained = [run for run in comparison.results if run.is_single and not run.trial.is_baseline]
        tables += [table(comparison, dataset) for dataset in by_dataset(trained)]
    return tables


def table(comparison: Comparison, dataset: OnDataset) -> Table:
    _, metric = budget.selection(comparison.protocol)
    names = ("trials", "final runs", "hours", "images seen", f"best {metric}", f"expected best {metric}", "values")
    columns = tuple(Column(dataset.title, name, dataset.dataset) for name in names)
    rows: list[Row] = []
    early_stopped = False
    counted: list[Result] = []
    for _, runs in group_by(dataset.results, lambda run: run.trial.loss):
        examples = [same[0] for _, same in group_by(on_test(runs), same_row)] or runs[:1]
        of_loss = []
        for run in examples:
            spent = budget.of(run.trial, dataset.results)
            early_stopped = early_stopped or spent.early_stopped
            counted += spent.runs
            cells = tuple(Cell(text) for text in row_texts(run, spent))
            of_loss.append(Row(run.title + distinction(run, examples), cells))
        rows += sorted(of_loss, key=lambda row: row.label)
    at_best = ", each configuration after its best epoch" if budget.selects_epochs(comparison.protocol) else ""
    hours = " ".join(budget.meaning_of_hours(counted))
    caption = (
        f"Random search on validation classes, selected by {metric}{at_best}. Hours and images are those of search and "
        f"final runs together. {hours} Expected best: mean ± standard deviation of the best of n trials, over all "
        "subsets of n trials."
    )
    if early_stopped:
        caption += " Trials that ASHA stopped early are not counted, so the expected best is optimistic."
    return Table(
        "search", comparison.protocol, comparison.backbone, columns, tuple(rows), caption, dataset=dataset.name
    )


def row_texts(run: Result, spent: budget.Budget) -> Iterator[str]:
    """The budget of a loss, the scores of its search, and the values that it chose."""
    yield str(len(spent.search))
    yield str(len(spent.final))
    yield ", ".join(f"{budget.rounded(hours)} {unit}" for unit, hours in spent.hours.items()) or "-"
    yield f"{spent.images:,}" if spent.images is not None else "-"
    curve = expected_best(spent.scores)
    if curve:
        some = [curve[place] for place in sorted({0, len(curve) // 2, len(curve) - 1})]
        yield percent(curve[-1][1])
        yield ", ".join(f"n={n}: {percent(mean)} ± {percent(deviation)}" for n, mean, deviation in some)
    else:
        yield "-"
        yield "-"
    yield chosen_values(run, spent.search_runs) if run.trial.on_test else "-"


def chosen_values(run: Result, trials: Sequence[Result]) -> str:
    """The values that search chose: the rates and knobs that varied in it, or all if there was no search."""
    mine = run.trial.searched
    varied = [name for name in mine if len({repr(trial.trial.searched.get(name)) for trial in trials}) > 1]
    stop = [f"stop_after = {run.trial.stop_after}"] if run.trial.stop_after else []
    return ", ".join([*(f"{name} = {written(mine[name])}" for name in varied or mine), *stop])
