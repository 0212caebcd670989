"""The table of backbones: parameters, R@1 and NMI, as in the paper's supplement."""

from collections.abc import Sequence
from dataclasses import replace

from harness.analysis.results import OnDataset, by_dataset, group_by, on_test
from harness.spec import Result
from harness.tables import captions
from harness.tables.layout import PARAMETERS, Column, Options, Row, Stored, Table
from harness.tables.legend import legend
from harness.tables.rows import published_rows, rows
from harness.tables.significance import marked

METRICS = ("R@1", "NMI")


def backbones(results: Sequence[Result], stored: Stored, options: Options) -> list[Table]:
    """One table per protocol, one row per loss and network. Its metrics are fixed."""
    single = [result for result in on_test(results) if not result.is_ensemble and not result.trial.is_baseline]
    return [
        table(protocol, members, stored, options)
        for protocol, members in group_by(single, lambda result: result.trial.protocol)
    ]


def table(protocol: str, results: Sequence[Result], stored: Stored, options: Options) -> Table:
    datasets = by_dataset(results)
    columns = tuple(
        Column(dataset.title, name, dataset.dataset) for dataset in datasets for name in (PARAMETERS, *METRICS)
    )
    measured: list[Row] = []
    for backbone in sorted({result.trial.backbone for result in results}):
        parts = [with_backbone(dataset, backbone) for dataset in datasets]
        of_backbone = rows([part for part in parts if part.results], columns, stored, options)
        measured += [replace(row, label=f"{row.label}, {backbone}") for row in of_backbone]
    measured = marked(measured)
    printed = published_rows("backbones", columns) if options.published == "rows" else []
    if printed:
        measured = [replace(row, section="Measured here") for row in measured]
    every = (*printed, *measured)
    sentences = [
        *legend("backbones", datasets, columns, every),
        *captions.nmi(datasets, columns, options.recipe),
    ]
    return Table("backbones", protocol, "", columns, every, " ".join(sentences))


def with_backbone(dataset: OnDataset, backbone: str) -> OnDataset:
    return replace(dataset, results=tuple(run for run in dataset.results if run.trial.backbone == backbone))
