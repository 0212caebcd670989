"""What `harness run` prints of its plan and of its end."""

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from harness import commands, plan
from harness.cli.app import report
from harness.spec import SETTINGS, Experiment, Failure, Result, Trial
from harness.store import Store

if TYPE_CHECKING:
    from harness.execution.run import Run


def print_plan(run: "Run") -> None:
    from tabulate import tabulate

    from harness.execution import estimate

    experiment, known = run.experiment, run.known()
    todo = run.pending(known)
    ids = {trial.id for trial in todo}
    varied = [key for key in experiment.grid if key in SETTINGS]
    rows = [
        [trial.name, trial.seed, f"{trial.lr:g}", describe(trial, varied), "" if trial.id in ids else "stored"]
        for trial in known
    ]
    print(tabulate(rows, headers=["trial", "seed", "lr", "values" if varied else "knobs", ""], disable_numparse=True))
    if run.pending(plan.search(experiment)):  # what wins is not known yet
        unnamed = plan.final(replace(experiment, trials=0), {})  # they cost as much with any values
        todo += unnamed
        print(f"then {len(unnamed)} final runs with the values of the best {experiment.protocol.select}")
    print(f"{len(todo)} to run: {estimate.describe(todo, experiment)}")


def describe(trial: Trial, settings: Iterable[str]) -> str:
    """These settings of a trial, and its knobs."""
    values = {**{name: getattr(trial, name) for name in settings}, **trial.knobs}
    return " ".join(f"{name}={commands.written(value)}" for name, value in values.items())


def grid_table(experiment: Experiment, results: Iterable[Result]) -> str:
    """Markdown, a row a cell: the mean over its seeds of what the protocol selects by, and its distance to the best."""
    from tabulate import tabulate

    metric, trials = experiment.protocol.select, plan.grid(experiment)
    cells = {trial.configuration: trial for trial in trials}
    scores: dict[str, list[float]] = {cell: [] for cell in cells}
    for one in results:
        scores[one.trial.configuration].append(100 * one.metrics[metric])
    means = {cell: sum(found) / len(found) for cell, found in scores.items() if found}
    best = max(means.values(), default=0.0)
    rows = []
    for cell, trial in cells.items():  # z: no minus before 0.0
        numbers = [f"{means[cell]:.1f}", f"{means[cell] - best:z.1f}"] if cell in means else ["-", "-"]
        rows.append([trial.loss, *(value(trial, key) for key in experiment.grid), len(scores[cell]), *numbers])
    headers = ["Loss", *experiment.grid, "seeds", metric, "to the best"]
    lines = tabulate(rows, headers, "pipe", disable_numparse=True, colalign=["left", *["right"] * (len(headers) - 1)])
    fold = trials[0].fold
    which = f"Validation classes ({fold})" if fold != "test" else "Test classes: nothing is selected by this table"
    title = f"### {experiment.dataset.name} · {experiment.protocol.name}"
    return f"{title}\n\n{lines}\n\n{which}. Percent, mean over seeds; the difference in percentage points.\n"


def value(trial: Trial, key: str) -> str:
    """What a cell has for a key of the grid: nothing for a knob of another loss."""
    if key in SETTINGS:
        return commands.written(getattr(trial, key))
    return commands.written(trial.knobs[key.rpartition(".")[2]]) if plan.owner(key) == trial.loss else ""


def finish(failures: list[Failure], where: Store, problems: Iterable[str]) -> None:
    """Say what failed and what could not be read; either makes the exit code 1."""
    for failure in failures:
        print(f"failed: {failure.trial.name}: {failure.error}", file=sys.stderr)
        print(f"        {where.path(failure.trial, Failure)}", file=sys.stderr)
    report(problems)
    if failures:
        print(f"{len(failures)} failed; the same command tries them again", file=sys.stderr)
        raise typer.Exit(1)
