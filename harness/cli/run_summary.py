"""What `harness run` prints: its plan, or its tables and failures."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import typer

from harness import commands, plan
from harness.analysis import baselines, tuning
from harness.analysis.results import configurations, on_test, score
from harness.cli.app import exit_on_problems
from harness.cli.output import say
from harness.spec import BATCH, SETTINGS, Experiment, Failure, Result, Trial, percent
from harness.tables import captions

if TYPE_CHECKING:
    from harness.execution.account import Account
    from harness.execution.start import Outcome


def print_plan(account: "Account", threads: int) -> None:
    """Print every trial that can be named, what follows, and the time and disk that all need."""
    from tabulate import tabulate

    from harness.execution import estimate

    experiment, pending = account.experiment, account.pending(account.known)
    ids = {trial.id for trial in pending}
    varied = [key for key in experiment.grid if key in SETTINGS]
    if any(plan.has_own_batch(experiment, trial) for trial in account.known if not trial.is_baseline):
        varied += BATCH
    rows = [
        [
            trial.name,
            trial.seed,
            f"{trial.lr:g}",
            values(trial, () if trial.is_baseline else varied),
            "" if trial.id in ids else "stored",
        ]
        for trial in account.known
    ]
    say(tabulate(rows, headers=["trial", "seed", "lr", "values" if varied else "knobs", ""], disable_numparse=True))
    for line in values_found_elsewhere(account.final or ()):
        say(line)
    unnamed = account.unnamed()
    if unnamed:
        chosen = "values and number of epochs" if experiment.protocol.select_epochs else "values"
        say(f"then {len(unnamed)} final runs with the {chosen} of the best {experiment.protocol.select}")
    say(f"{len(pending) + len(unnamed)} to run: {estimate.describe([*pending, *unnamed], account, threads)}")


def values_found_elsewhere(final: Iterable[Trial]) -> Iterator[str]:
    """A line per loss that takes its protocol's values, which were found with other settings."""
    for trial in {trial.loss: trial for trial in final}.values():
        tuned = tuning.tuned(trial)
        for note in captions.found_elsewhere(trial, tuned) if tuned else ():
            yield f"{trial.loss}: {note}"


def values(trial: Trial, settings: Iterable[str]) -> str:
    """These settings of a trial and its knobs, as KEY=VALUE."""
    words = [f"{name}={commands.written(getattr(trial, name))}" for name in settings]
    words += [f"{name}={commands.written(value)}" for name, value in trial.knobs.items()]
    return " ".join(words)


def print_outcome(account: "Account", outcome: "Outcome", problems: Iterable[str]) -> None:
    """Print the tables, then the failures and the unreadable records; either makes the exit code 1."""
    if account.grid:
        say(grid_table(account.experiment, account.grid, outcome.results), end="")
    else:
        print_tables(account, outcome.results)
    print_failures(account, outcome.failures)
    exit_on_problems(problems)
    if outcome.failures:
        say(f"{len(outcome.failures)} failed; rerun the same command to try them again", error=True)
        raise typer.Exit(1)
    left_out = account.left_out()
    for loss in left_out:
        say(f"harness: {loss.title}: no search trial finished, so no final run was started", error=True)
    if left_out:
        raise typer.Exit(1)


def print_tables(account: "Account", results: list[Result]) -> None:
    from harness.analysis.queries import Queries
    from harness.tables.build import build_all
    from harness.tables.render.formats import render

    stored, experiments, _ = account.store.everything()
    # captions state each loss's budget, and a run that was measured again may have another NMI
    others = [result for result in stored if result.recipe or not result.trial.on_test]
    built = build_all(
        [*results, *others], ("losses", "ensembles"), experiments=experiments, queries=Queries(account.store)
    )
    say("\n".join(render(built, "markdown").values()), end="")
    for line in below_baselines(on_test(results)):
        say(f"\n{line}")
    if results and not on_test(results):
        say("Tables show test classes; these results are in: harness ls runs", error=True)


def below_baselines(results: Sequence[Result]) -> Iterator[str]:
    """A sentence per loss that ends below a baseline of its run."""
    for runs in configurations(result for result in results if not result.is_ensemble):
        better = baselines.beaten_by(runs, results)
        if better:
            metric = baselines.FIRST_RECALL
            mine = percent(score(runs, metric).score)
            names = " and ".join(f"{name} ({percent(mean)})" for name, mean in better.items())
            yield f"{runs[0].title} ends below {names}: {metric} {mine}."


def grid_table(experiment: Experiment, cells: Sequence[Trial], results: Iterable[Result]) -> str:
    """Markdown, a row per cell: its mean over seeds of what the protocol selects by, and its distance to the best."""
    from tabulate import tabulate

    metric = experiment.protocol.select
    scored = {runs[0].trial.configuration: score(runs, metric) for runs in configurations(results)}
    best = max((cell.score for cell in scored.values()), default=0.0)
    rows = []
    for configuration, trial in {trial.configuration: trial for trial in cells}.items():
        cell = scored.get(configuration)
        numbers = [0, "-", "-"]
        if cell is not None:
            numbers = [len(cell.runs), percent(cell.score), percent(cell.score - best)]
        rows.append([trial.loss, *(varied_value(trial, key, experiment) for key in experiment.grid), *numbers])
    headers = ["Loss", *experiment.grid, "seeds", metric, "to the best"]
    lines = tabulate(rows, headers, "pipe", disable_numparse=True, colalign=["left", *["right"] * (len(headers) - 1)])
    first = cells[0]
    classes = (
        "Test classes: nothing is selected by this table" if first.on_test else f"Validation classes ({first.fold})"
    )
    title = f"### {experiment.dataset.name} · {experiment.protocol.name}"
    return f"{title}\n\n{lines}\n\n{classes}. Percent, mean over seeds; the difference in percentage points.\n"


def varied_value(trial: Trial, key: str, experiment: Experiment) -> str:
    """The value that a cell has for a key of the grid; empty for a knob of another loss."""
    if key in SETTINGS:
        return commands.written(getattr(trial, key))
    if plan.owner(key) != trial.loss:
        return ""
    added = next(loss.added for loss in experiment.losses if loss.name == trial.loss)
    return commands.written({**added, **trial.knobs}[key.rpartition(".")[2]])


def print_failures(account: "Account", failures: Sequence[Failure]) -> None:
    for failure in failures:
        say(f"failed: {failure.trial.name}: {failure.error}", error=True)
        say(f"        {account.store.path(failure.trial, Failure)}", error=True)
    own = [failure.trial for failure in failures if account.sources.get(failure.trial.loss)]
    for loss in dict.fromkeys(commands.loss_option(trial) for trial in own):
        say(f"{loss} is your own; this may tell more: harness check-loss {loss}", error=True)
