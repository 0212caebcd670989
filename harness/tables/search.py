"""The search tables: the budget of each loss, and what random search found with it on validation classes."""

from collections.abc import Iterable, Iterator, Sequence

from harness.analysis import budget, tuning
from harness.analysis.budget import Budget, Budgets
from harness.analysis.results import (
    Comparison,
    OnDataset,
    by_dataset,
    comparisons,
    group_by,
    on_test,
    usual_settings,
)
from harness.analysis.statistics import expected_best
from harness.spec import Result, percent
from harness.tables import captions
from harness.tables.captions import written
from harness.tables.layout import Cell, Column, Options, Row, Stored, Table
from harness.tables.rows import distinctions, same_row


def search(results: Sequence[Result], stored: Stored, options: Options) -> list[Table]:
    """One table per protocol, backbone and dataset. The paper has no such numbers, and the columns are fixed."""
    tables = []
    for comparison in comparisons(results):
        trained = [run for run in comparison.results if run.is_single and not run.trial.is_baseline]
        tables += [table(comparison, dataset, stored.budgets) for dataset in by_dataset(trained)]
    return tables


def table(comparison: Comparison, dataset: OnDataset, stored: Budgets) -> Table:
    budgets: dict[str, Budget] = {}
    examples: list[Result] = []  # a run of each row
    for _, runs in group_by(dataset.results, lambda run: run.trial.loss):
        of_loss = [same[0] for _, same in group_by(on_test(runs), same_row)] or runs[:1]
        examples += of_loss
        budgets |= {run.id: stored.of(run.trial) for run in of_loss}
    metric = budget.selected_by(comparison.protocol, budgets.values())
    usual = usual_settings(dataset.results)
    rows = []
    apart = distinctions(examples, budgets)
    for run in examples:
        spent = budgets[run.id]
        cells = tuple(Cell(text) for text in row_texts(run, spent))
        notes = (
            *row_notes(spent, metric),
            *captions.setting_notes(run.trial, usual),
            *captions.condition_notes(spent.runs, dataset.results),
        )
        rows.append((run.trial.loss, Row(run.title + apart[run.id].label, cells, notes=notes)))
    rows.sort(key=lambda row: (row[0], row[1].label))
    names = ("trials", "final runs", "hours", "images seen", f"best {metric}", f"expected best {metric}", "values")
    return Table(
        "search",
        comparison.protocol,
        comparison.backbone,
        tuple(Column(dataset.title, name, dataset.dataset) for name in names),
        tuple(row for _, row in rows),
        " ".join(caption(dataset, metric, list(budgets.values()))),
        dataset=dataset.name,
        short=(*captions.unlike_protocol([dataset]), *short_caption(metric, budgets.values())),
    )


def caption(dataset: OnDataset, metric: str, budgets: Sequence[Budget]) -> Iterator[str]:
    yield from captions.unlike_protocol([dataset])
    at_best = ", each configuration after its best epoch" if any(spent.selects_epochs for spent in budgets) else ""
    yield f"Random search on validation classes, selected by {metric}{at_best}."
    yield from captions.guess(budgets)
    yield "Hours and images are those of search and final runs together."
    yield from budget.meaning_of_hours(run for spent in budgets for run in spent.runs)
    yield "Expected best: mean ± standard deviation of the best of n trials, over all subsets of n trials."
    yield from optimism(budgets)


def short_caption(metric: str, budgets: Iterable[Budget]) -> Iterator[str]:
    yield f"Random search on validation classes, selected by {metric}; hours and images include the final runs."
    yield "Expected best: mean ± standard deviation of the best of n trials."
    yield from optimism(budgets)


def optimism(budgets: Iterable[Budget]) -> Iterator[str]:
    if any(spent.early_stopped for spent in budgets):
        yield "Trials that ASHA stopped early are not counted, so the expected best is optimistic."


def row_notes(spent: Budget, metric: str) -> tuple[str, ...]:
    """A search by another metric, trials of it that are not stored, values that an earlier search found, and values set
    by hand."""
    notes = []
    others = {record.select for record in spent.experiments if record.search} - {metric}
    if others:
        notes.append(f"Its search was selected by {' and '.join(sorted(others))}.")
    if spent.tuned and spent.tuned.trials:
        notes.append(f"{captions.sentence(spent.origin)}.")
    return (*notes, *captions.lost_trials(spent), *captions.value_notes(spent))


def row_texts(run: Result, spent: Budget) -> Iterator[str]:
    """The budget of a loss, the scores of its search, and the values that it chose."""
    yield str(spent.trials)
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
    yield chosen_values(run, spent) if run.trial.on_test else "-"


def chosen_values(run: Result, spent: Budget) -> str:
    """The values that search chose: the rates and knobs that varied in it, and knobs that all its trials drew alike; or
    all if there was no search."""
    mine, trials = run.trial.searched, spent.search_runs
    alike = tuning.unusual_knobs(run.trial) - spent.by_hand.keys() if trials else set()
    varied = [
        name for name in mine if name in alike or len({repr(trial.trial.searched.get(name)) for trial in trials}) > 1
    ]
    stop = [f"stop_after = {run.trial.stop_after}"] if run.trial.stop_after else []
    return ", ".join([*(f"{name} = {written(mine[name])}" for name in varied or mine), *stop])
