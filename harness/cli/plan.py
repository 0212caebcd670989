"""What `harness run` prints of its plan and of its end."""

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from harness import plan
from harness.cli.app import report
from harness.spec import Failure, Trial
from harness.store import Store

if TYPE_CHECKING:
    from harness.run import Run


def print_plan(run: "Run") -> None:
    from tabulate import tabulate

    from harness import estimate

    experiment = run.experiment
    searched = plan.search(experiment)
    waiting = run.pending(searched)
    found = [result for result in map(run.store.get, searched) if result is not None]
    chosen = plan.best(found, experiment.protocol.select, experiment.protocol.folds)
    final = [] if waiting else plan.final(experiment, chosen)  # what wins is not known yet
    planned = [*searched, *plan.baselines(experiment), *final]
    todo = run.pending(planned)
    ids = {trial.id for trial in todo}
    rows = [
        [trial.name, trial.seed, f"{trial.lr:g}", describe(trial), "" if trial.id in ids else "stored"]
        for trial in planned
    ]
    print(tabulate(rows, headers=["trial", "seed", "lr", "knobs", ""], disable_numparse=True))
    if waiting:
        unnamed = plan.final(replace(experiment, trials=0), {})  # they cost as much with any values
        todo += unnamed
        print(f"then {len(unnamed)} final runs with the values of the best {experiment.protocol.select}")
    print(f"{len(todo)} to run: {estimate.describe(todo, experiment)}")


def describe(trial: Trial) -> str:
    return " ".join(f"{name}={plan.written(value)}" for name, value in trial.knobs.items())


def finish(failures: list[Failure], where: Store, problems: Iterable[str]) -> None:
    """Say what failed and what could not be read; either makes the exit code 1."""
    for failure in failures:
        print(f"failed: {failure.trial.name}: {failure.error}", file=sys.stderr)
        print(f"        {where.path(failure.trial, Failure)}", file=sys.stderr)
    report(problems)
    if failures:
        print(f"{len(failures)} failed; the same command tries them again", file=sys.stderr)
        raise typer.Exit(1)
