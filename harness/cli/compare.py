"""`harness compare`: two losses, or two stored results, against each other."""

import math
from collections.abc import Iterable, Iterator, Sequence
from textwrap import fill
from typing import Annotated

import typer

from harness import commands
from harness.analysis import conditions
from harness.analysis.budget import Budgets
from harness.analysis.compare import Difference, Report, Side, compare, find, trained_differently
from harness.analysis.queries import Queries
from harness.analysis.results import on_test, select
from harness.analysis.statistics import ENOUGH_SEEDS, MANY_SEEDS
from harness.cli.app import (
    LOOKING,
    RESULTS,
    BackboneOption,
    DatasetOption,
    ProtocolOption,
    ResultsOption,
    app,
    exit_on_problems,
    require,
)
from harness.cli.output import say
from harness.spec import Result, percent
from harness.store import Store
from harness.tables import captions
from harness.tables.legend import SEARCH_LUCK

NAME_WIDTH = 40  # of a class
SCREEN = 80  # columns
NOTHING = "-"

SIDE = "A loss with final runs, or the id of a run (all its seeds are compared) or ensemble."


@app.command("compare", epilog="Example: harness compare triplet normalized_softmax", rich_help_panel=LOOKING)
def compare_(
    a: Annotated[str, typer.Argument(metavar="A", help=SIDE)],
    b: Annotated[str, typer.Argument(metavar="B", help=SIDE)],
    dataset: DatasetOption = None,
    protocol: ProtocolOption = None,
    backbone: BackboneOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Compare two losses on test classes. Prints the difference per metric with its interval and p, where they differ
    most, and how many seeds would tell them apart."""
    store = Store(results)
    stored, experiments, problems = store.everything()
    require(stored, problems, f"no results in {results}; make some with: harness run")
    selected = select(stored, dataset=dataset, protocol=protocol, backbone=backbone)
    report = compare(*find(a, b, selected), Queries(store))
    say("\n".join(describe(report, unlike(report, select(stored), Budgets(stored, experiments)))))
    exit_on_problems(problems)


def unlike(report: Report, results: Sequence[Result], budgets: Budgets) -> Iterator[str]:
    """How the two sides were not treated alike, a sentence each: what tables footnote. `results`: all that are
    stored."""
    sides = {"A": report.first, "B": report.second}
    for name, one, other in trained_differently(report.first, report.second):
        yield f"Trained differently: {name} = {commands.written(one)} (A), {commands.written(other)} (B)"
    for name, mine, theirs in conditions.apart(*(networks(side, results) for side in sides.values())):
        yield f"Run under other conditions: {name} = {mine} (A), {theirs} (B)"
    trained = {letter: side for letter, side in sides.items() if not side.trial.is_baseline}
    spent = {letter: budgets.of(side.trial) for letter, side in trained.items()}
    if len({budget.origin for budget in spent.values()}) > 1:
        yield f"Values: {spent['A'].origin} (A), {spent['B'].origin} (B)"
    for letter, side in trained.items():
        here = [run for run in on_test(results) if Side((run,)).copy == side.copy]
        for note in (*captions.value_notes(spent[letter]), *captions.training_notes(side.runs, here)):
            yield f"{letter}: {note}"


def networks(side: Side, results: Sequence[Result]) -> Sequence[Result]:
    """The runs of a side; of an ensemble its members."""
    members = {member for run in side.runs for member in run.members}
    return [run for run in results if run.id in members] or side.runs


def describe(report: Report, differences: Iterable[str]) -> Iterator[str]:
    """One screen of text."""
    trial = report.second.trial if report.first.trial.is_pixels else report.first.trial
    yield f"{trial.dataset}, {trial.protocol}, {trial.backbone}, on test classes, percent"
    for letter, side in (("A", report.first), ("B", report.second)):
        yield f"{letter}  {side.label}: {runs_of(side)}"
    for line in differences:
        yield filled(line)
    yield ""
    headers = ("", "A", "B", "A - B", "95 % interval", "p", "A ahead", "seeds needed")
    yield aligned(headers, [row(difference, report) for difference in report.differences])
    yield ""
    yield filled(" ".join(explained(report)))
    if report.classes:
        yield ""
        classes = [
            (one.name[:NAME_WIDTH], one.queries, percent(one.first), percent(one.second), gap(one.first, one.second))
            for one in report.classes
        ]
        yield aligned(("classes that differ in most queries", "queries", "A", "B", "A - B"), classes)


def filled(text: str) -> str:
    return fill(text, SCREEN, break_long_words=False, break_on_hyphens=False)


def aligned(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns without rules, the first to the left, numbers to the right; without columns that say nothing."""
    from tabulate import tabulate

    telling = [place for place in range(len(headers)) if any(row[place] != NOTHING for row in rows)]
    return tabulate(
        [[row[place] for place in telling] for row in rows],
        headers=[headers[place] for place in telling],
        tablefmt="plain",
        colalign=("left", *["right"] * (len(telling) - 1)),
        disable_numparse=True,
    )


def runs_of(side: Side) -> str:
    if side.is_ensemble:
        return side.runs[0].id
    if side.measured_once:
        return f"{side.runs[0].id}, measured once"
    ids = ", ".join(run.id for run in side.runs[:3]) + (", ..." if len(side.runs) > 3 else "")
    return f"{len(side.runs)} seed{'s' if len(side.runs) > 1 else ''} ({ids})"


def row(difference: Difference, report: Report) -> tuple[str, ...]:
    estimate, plan = difference.estimate, difference.plan
    interval = p = seeds = NOTHING
    if estimate is not None and math.isfinite(estimate.half):
        low, high = difference.value - estimate.half, difference.value + estimate.half
        interval = f"{signed(low)} to {signed(high)}"
    if plan is not None and estimate is not None:
        p = "< 0.001" if estimate.p < 0.001 else f"{estimate.p:.3f}"
        seeds = needed(difference)
    return (
        difference.metric,
        values(report.first, difference.first, difference.metric, report),
        values(report.second, difference.second, difference.metric, report),
        signed(difference.value),
        interval,
        p,
        f"{difference.ahead:g} of {difference.pairs}",
        seeds,
    )


def values(side: Side, mean: float, metric: str, report: Report) -> str:
    """The mean; with two seeds, both values."""
    if len(report.seeds) == 2 and not side.measured_once:
        return ", ".join(percent(value) for value in side.values(metric, report.seeds))
    return percent(mean)


def needed(difference: Difference) -> str:
    plan = difference.plan
    if plan is None:
        return NOTHING
    if plan.seeds is not None:
        return str(plan.seeds)
    if abs(difference.value) >= plan.resolved:
        return f"over {MANY_SEEDS:,}"
    return f"none (± {percent(plan.resolved)})"


def explained(report: Report) -> Iterator[str]:
    """What the numbers mean, by the number of seeds."""
    if report.problem:
        yield f"Not tested: {report.problem}."
    elif len(report.seeds) >= ENOUGH_SEEDS:
        yield (
            f"Interval and p: over test classes and {len(report.seeds)} seeds, in pairs, of these two alone (tables "
            f"correct for all pairs). Seeds needed: to tell a true difference of this size apart with 80 % power."
        )
        if any(difference.plan and difference.plan.seeds is None for difference in report.differences):
            yield "none: no number of seeds suffices, because these test classes resolve only ± x."
    elif len(report.seeds) == 2:
        yield "Two seeds are too few for an interval: both values are shown."
    else:
        yield "Intervals: over test classes alone. They leave out the randomness of training, so nothing is tested."
    yield "A ahead: pairs of runs in which A is better. NMI is not tested."
    if not report.problem and len(report.seeds) != 2:
        yield SEARCH_LUCK


def gap(first: float, second: float) -> str:
    return signed(first - second)


def signed(fraction: float) -> str:
    return f"{100 * fraction:+z.1f}"
