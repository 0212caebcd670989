"""The tables of losses and of ensembles: the paper's Tables 1 and 2."""

from collections.abc import Sequence
from dataclasses import replace

from harness.analysis import reference
from harness.analysis.results import Comparison, OnDataset, by_dataset, comparisons, largest_ensembles, on_test
from harness.spec import Result, UserError, metric_order, papers_metrics, recall_k, unknown
from harness.tables import captions
from harness.tables.layout import BASELINES, Column, Kind, Options, Stored, Table
from harness.tables.legend import legend, short_legend
from harness.tables.rows import Place, published_rows, rows

# Of Table 2, in the paper's order; what the paper has not as one network stands with its ensembles.
JOINED = "Networks and their ensembles"
SECTIONS = ("Loss+Sampling", "Teacher-Student", "Loss+Ensembles", JOINED)


def section_of_table_2(place: Place) -> str:
    """Single networks stand where the paper has them, ensembles of networks last."""
    return (not place.ensemble and reference.section(place.loss)) or JOINED


def losses(results: Sequence[Result], stored: Stored, options: Options) -> list[Table]:
    """Single networks, one table per protocol and backbone."""
    check_metrics(results, options.metrics)
    tables = []
    for comparison in comparisons(results):
        singles = [result for result in on_test(comparison.results) if not result.is_ensemble]
        if singles:
            tables += build("losses", comparison, singles, stored, options)
    return tables


def ensembles(results: Sequence[Result], stored: Stored, options: Options) -> list[Table]:
    """The ensembles of each loss that has some, their single networks, and what the paper's Table 2 has as one network.
    Without an ensemble, or a method of that table that is more than a loss, there is no table."""
    check_metrics(results, options.metrics)
    tables = []
    for comparison in comparisons(results):
        tested = on_test(comparison.results)
        joined = largest_ensembles(tested)
        members = {result.trial.configuration for result in joined}
        singles = [
            result
            for result in tested
            if not result.is_ensemble
            and (result.trial.configuration in members or reference.section(result.trial.loss))
        ]
        methods = {run.trial.loss for run in singles if reference.section(run.trial.loss)}
        if joined or any(reference.is_method(name) for name in methods):
            tables += build("ensembles", comparison, [*singles, *joined], stored, options)
    return tables


def check_metrics(results: Sequence[Result], metrics: Sequence[str]) -> None:
    """A UserError for a metric that no result has. One that a table lacks is a column of dashes there."""
    tested = on_test(results)
    known = {name for result in tested for name in result.metrics}
    stored = any(result.queries for result in tested)
    for name in metrics if known else ():
        if name not in known and recall_k(name) is not None:
            why = "beyond the neighbours that are stored of each query" if stored else "no values of queries are stored"
            raise UserError(f"{name}: not measured, and {why}")
        if name not in known:
            raise unknown("metric", name, sorted(known, key=metric_order))


def build(
    kind: Kind, comparison: Comparison, results: Sequence[Result], stored: Stored, options: Options
) -> list[Table]:
    """One table of all datasets, as in the paper, or one per dataset."""
    datasets = by_dataset(results)
    parts = [[dataset] for dataset in datasets] if options.one_dataset else [datasets]
    return [table(kind, comparison, part, stored, options) for part in parts]


def table(kind: Kind, comparison: Comparison, datasets: Sequence[OnDataset], stored: Stored, options: Options) -> Table:
    """The budgets in its caption count everything that is stored."""
    columns = tuple(
        Column(dataset.title, name, dataset.dataset)
        for dataset in datasets
        for name in options.metrics or papers_metrics(name for result in dataset.results for name in result.metrics)
    )
    in_sections = kind == "ensembles" and any(
        reference.section(run.trial.loss) for dataset in datasets for run in dataset.results if not run.is_ensemble
    )
    measured = rows(datasets, columns, stored, options, section_of_table_2 if in_sections else lambda place: "")
    measured = sorted(measured, key=lambda row: SECTIONS.index(row.section) if row.section in SECTIONS else -1)
    printed = published_rows(kind, columns) if options.published == "rows" else []
    if printed:
        titles = {row.section: f"{row.section or 'Losses'}, measured here" for row in measured}
        titles[BASELINES] = BASELINES
        measured = [replace(row, section=titles[row.section]) for row in measured]
    every = (*printed, *measured)
    changed, asked = captions.unlike_protocol(datasets), captions.left_out_numbers(datasets, columns, options)
    sentences = [
        *changed,
        *legend(kind, datasets, columns, every),
        *asked,
        *captions.nmi(datasets, columns, options.recipe),
        *captions.epochs(datasets, stored.budgets),
        *captions.budgets(datasets, stored.budgets),
    ]
    recipe = captions.unusual_nmi(datasets, columns, options.recipe)
    short = (*changed, *short_legend(kind, datasets, columns, every), *asked, *recipe)
    return Table(kind, comparison.protocol, comparison.backbone, columns, every, " ".join(sentences), short=short)
