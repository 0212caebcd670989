"""The table of backbones: parameters, R@1 and NMI, as in the paper's supplement."""

from collections.abc import Sequence
from dataclasses import replace

from harness.analysis.results import OnDataset, by_dataset, group_by, on_test
from harness.spec import Result
from harness.tables import captions
from harness.tables.layout import PARAMETERS, Column, Options, Stored, Table
from harness.tables.legend import legend, short_legend
from harness.tables.rows import published_rows, rows

METRICS = ("R@1", "NMI")
OWN = ("backbone",)  # in which rows differ by design


def backbones(results: Sequence[Result], stored: Stored, options: Options) -> list[Table]:
    """One table per protocol, one row per loss and network. Its metrics are fixed."""
    single = [result for result in on_test(results) if not result.is_ensemble and not result.trial.is_baseline]
    tables = []
    for protocol, members in group_by(single, lambda result: result.trial.protocol):
        datasets = by_dataset(members)
        parts = [[dataset] for dataset in datasets] if options.one_dataset else [datasets]
        tables += [table(protocol, part, stored, options) for part in parts]
    return tables


def table(protocol: str, datasets: Sequence[OnDataset], stored: Stored, options: Options) -> Table:
    columns = tuple(
        Column(dataset.title, name, dataset.dataset) for dataset in datasets for name in (PARAMETERS, *METRICS)
    )
    measured = rows(datasets, columns, stored, options, own=OWN)
    printed = published_rows("backbones", columns) if options.published == "rows" else []
    if printed:
        measured = [replace(row, section="Measured here") for row in measured]
    every = (*printed, *measured)
    changed = captions.unlike_protocol(datasets, own=OWN)
    asked = captions.left_out_numbers(datasets, columns, options)
    sentences = [
        *changed,
        *legend("backbones", datasets, columns, every),
        *asked,
        *captions.nmi(datasets, columns, options.recipe),
    ]
    recipe = captions.unusual_nmi(datasets, columns, options.recipe)
    short = (*changed, *short_legend("backbones", datasets, columns, every), *asked, *recipe)
    return Table("backbones", protocol, "", columns, every, " ".join(sentences), short=short)
