"""What `harness run` prints: its plan, or its tables and failures."""

from collections.abc import Iterable, Iterator, Sequence
from shlex import quote
from typing import TYPE_CHECKING

import typer

from harness import commands, plan
from harness.analysis import baselines, tuning
from harness.analysis.results import configurations, on_test, score
from harness.cli.app import exit_on_problems, option_of
from harness.cli.listing import print_rows
from harness.cli.output import say, say_words
from harness.cli.screen import on_terminal, show
from harness.spec import BATCH, SETTINGS, Failure, Result, Trial, Work, percent
from harness.tables import captions
from harness.tables.grid import grid

if TYPE_CHECKING:
    from harness.execution.account import Account
    from harness.execution.start import Outcome
    from harness.request import Request


PRETRAINED = ("pretrain_epochs",)  # what a plan shows of a shared pre-training


def print_plan(account: "Account", request: "Request") -> None:
    """Print every trial that can be named, what follows, and the time and disk that all need."""
    from harness.execution import estimate

    experiment, unnamed = account.experiment, account.unnamed()
    first = account.needs([*account.known, *unnamed])
    pending: list[Work] = [*first, *account.pending(account.work)]
    ids = {one.id for one in pending}
    drawn = experiment.protocol.search if experiment.trials else ()
    varied = [key for key in (*experiment.grid, *drawn) if key in SETTINGS and key != "lr"]
    if any(plan.has_own_batch(experiment, trial) for trial in account.known if not trial.is_baseline):
        varied += BATCH
    rows = [
        {
            "trial": trial.name,
            "seed": trial.seed,
            "state": "to run" if trial.id in ids else "stored",
            "lr": "" if trial.is_baseline else f"{trial.pretrain_lr if trial.is_pretraining else trial.lr:g}",
            "values": values(trial, () if trial.is_baseline else PRETRAINED if trial.is_pretraining else varied),
        }
        for trial in (*first, *account.known)
    ]
    rows += [
        {
            "trial": ensemble.name,
            "seed": "",
            "state": "to run" if ensemble.id in ids else "stored",
            "lr": "",
            "values": f"{ensemble.ensemble} of {len(ensemble.runs)} networks",
        }
        for ensemble in account.ensembles
    ]
    print_rows(rows, ["trial", "seed", "state", "lr", "values"], below="values")
    for line in values_found_elsewhere(account.final):
        say_words(line)
    if unnamed:
        chosen = "values and number of epochs" if experiment.protocol.select_epochs else "values"
        ensembles = len(account.unnamed_work()) - len(unnamed)
        also = f", and {ensembles} ensemble{'s' if ensembles > 1 else ''} of them" if ensembles else ""
        runs = f"{len(unnamed)} final run{'s' if len(unnamed) > 1 else ''}"
        say_words(f"then {runs} with the {chosen} of the best {experiment.protocol.select}{also}")
    work = [*pending, *account.unnamed_work()]
    if not work:
        say("nothing to run: all are stored")
        return
    at_once = estimate.trials_at_once(request, len(work))
    say_words(f"{len(work)} to run: {estimate.describe(work, account, request.threads, at_once)}")


def values_found_elsewhere(final: Iterable[Trial]) -> Iterator[str]:
    """A line for the losses that take their protocol's values, where these were found with other settings."""
    losses: dict[str, list[str]] = {}
    for trial in {trial.loss: trial for trial in final}.values():
        tuned = tuning.tuned(trial)
        for note in captions.found_elsewhere(trial, tuned) if tuned else ():
            losses.setdefault(note, []).append(trial.loss)
    for note, names in losses.items():
        yield f"{', '.join(names)}: {note.removeprefix('Its ')}"


def values(trial: Trial, settings: Iterable[str]) -> str:
    """These settings of a trial and its knobs, as KEY=VALUE."""
    words = [f"{name}={commands.written(getattr(trial, name))}" for name in settings]
    words += [f"{name}={commands.written(value)}" for name, value in trial.knobs.items()]
    return " ".join(words)


def print_outcome(account: "Account", outcome: "Outcome", problems: Iterable[str]) -> None:
    """Print the tables, then the failures and the unreadable records; either makes the exit code 1."""
    if account.grid:
        cells = grid(account.experiment, account.grid, outcome.results)
        show([cells] if cells else [])
    else:
        print_tables(account, outcome.results)
    print_failures(account, outcome.failures)
    exit_on_problems(problems)
    if outcome.failures:
        why = f"harness show {outcome.failures[0].work.id}{option_of(account.store.root)}"
        say(f"{len(outcome.failures)} failed; {why} tells why; the same command tries again", error=True)
        raise typer.Exit(1)
    left_out = account.left_out()
    for loss in left_out:
        say(f"harness: {loss.title}: no search trial finished, so no final run was started", error=True)
    if left_out:
        raise typer.Exit(1)


def print_tables(account: "Account", results: list[Result]) -> None:
    from harness.analysis.queries import Queries
    from harness.tables.build import build_all
    from harness.tables.layout import Options

    stored, experiments, _ = account.store.everything()
    # captions state each loss's budget, and a run that was measured again may have another NMI
    others = [result for result in stored if result.recipe or not result.trial.on_test]
    options = Options(one_dataset=on_terminal())
    built = build_all([*results, *others], ("losses", "ensembles"), options, experiments, Queries(account.store))
    show(built, f"harness tables --format markdown{option_of(account.store.root)}")
    for line in below_baselines(on_test(results)):
        say()
        say_words(line)
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


def print_failures(account: "Account", failures: Sequence[Failure]) -> None:
    for failure in failures:
        say(f"failed: {failure.work.name}: {failure.error}", error=True)
        say(f"        {account.store.path(failure.work, Failure)}", error=True)
    failed = {failure.work.loss for failure in failures}
    for loss in account.experiment.losses:
        if loss.option and loss.name in failed:
            say(f"{loss.option} is your own; this may tell more: harness check-loss {quote(loss.option)}", error=True)
