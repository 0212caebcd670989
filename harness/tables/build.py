"""Stored results and the paper's numbers as tables in the paper's layout: the registry of table kinds."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.budget import Budgets
from harness.analysis.queries import Queries
from harness.analysis.results import told_apart, with_nmi_by
from harness.spec import ExperimentRecord, Result
from harness.tables.backbones import backbones
from harness.tables.layout import Kind, Options, Stored, Table
from harness.tables.losses import ensembles, losses
from harness.tables.search import search

Builder = Callable[[Sequence[Result], Stored, Options], list[Table]]


@dataclass(frozen=True)
class TableKind:
    build: Builder
    meaning: str  # for help and docs
    needs: str  # the results it is made from
    command: str = "harness run"  # what makes those
    metrics: bool = False  # whether a user may choose its columns


KINDS: Mapping[Kind, TableKind] = {
    "losses": TableKind(
        losses,
        meaning="the paper's Table 1",
        needs="final results",
        metrics=True,
    ),
    "ensembles": TableKind(
        ensembles,
        meaning="the paper's Table 2",
        needs="ensembles, or methods of Table 2",
        command="harness run --seeds 2 --ensemble 2",
        metrics=True,
    ),
    "backbones": TableKind(
        backbones,
        meaning="the table of the paper's supplement, with parameters",
        needs="final results of losses",
    ),
    "search": TableKind(
        search,
        meaning="each loss's budget and what random search found",
        needs="results of losses",
    ),
}

DEFAULT = Options()


def build(
    results: Sequence[Result],
    kind: Kind = "losses",
    options: Options = DEFAULT,
    experiments: Sequence[ExperimentRecord] = (),
    queries: Queries | None = None,
) -> list[Table]:
    """The tables of one kind, one per protocol and backbone, from everything that is stored of these runs."""
    return build_all(results, (kind,), options, experiments, queries)


def build_all(
    results: Sequence[Result],
    kinds: Iterable[Kind] = tuple(KINDS),
    options: Options = DEFAULT,
    experiments: Sequence[ExperimentRecord] = (),
    queries: Queries | None = None,
) -> list[Table]:
    """The tables of several kinds, in this order. Without `queries` there are neither intervals nor tests."""
    measured = with_nmi_by(options.recipe, told_apart(results))
    if queries is not None:
        measured = queries.with_recalls(measured, options.metrics)
    stored = Stored(Budgets(measured, experiments), queries)
    return [table for kind in kinds for table in KINDS[kind].build(measured, stored, options)]
