"""What is done, running and failed, read from the store and the storage alone: it works without Ray."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.analysis.budget import selection, selects_epochs
from harness.analysis.experiments import Purposes
from harness.analysis.results import group_by
from harness.execution import announcement, heartbeat
from harness.execution.announcement import Announcement
from harness.execution.heartbeat import Heartbeat
from harness.execution.text import BestScores, duration
from harness.spec import ExperimentRecord, Result, UserError, schema
from harness.storage import Storage
from harness.store import Store, read_json


@dataclass(frozen=True)
class Activity:
    """What the plans and heartbeats in a storage say."""

    living: Sequence[Announcement]  # plans of drivers at work
    running: Sequence[Heartbeat]
    silent: Sequence[Heartbeat]  # their drivers live, but they have not been heard of for long
    restarting: Sequence[Heartbeat]  # their drivers live, and their own processes are gone
    waiting: frozenset[str]  # names of the planned trials that have neither begun nor ended
    unnamed: int  # final runs that the searches of living drivers will name
    interrupted: Sequence[tuple[Announcement, int]]  # plans of drivers that are gone, and how many trials each has left


def describe(store: Store, storage: Storage) -> tuple[str, list[str]]:
    """The status as lines of text, and a line for each file of the store that cannot be read."""
    try:
        activity = read_activity(storage, store.ended())
    except OSError as error:
        raise UserError(f"cannot read --storage {storage.title}: {error.strerror or error}") from None
    stored, experiments, problems = store.everything()
    results = [result for result in stored if not result.recipe]
    failures, unreadable = read_failures(store, retried=names_of(activity))
    problems += unreadable
    lines = [summary(len(results), len(failures), activity)]
    lines += [left_line(plan, left) for plan, left in activity.interrupted]
    lines += best_scores(results, experiments)
    lines += [f"{beat.name}  {beat.position}  on {beat.node}" for beat in activity.running]
    lines += [
        f"{beat.name}  its process died; it starts again from its last checkpoint; log on {beat.node}: {beat.log}"
        for beat in activity.restarting
    ]
    lines += [
        f"{beat.name}  no sign of life for {duration(beat.silence)}; log on {beat.node}: {beat.log}"
        for beat in activity.silent
    ]
    for failure in failures:
        lines.append(f"{failure['name']}  failed: {failure['error']}")
        if failure["log"]:
            lines.append(f"  {failure['log']}")
    if problems:
        lines.append(f"{len(problems)} file{'s' if len(problems) > 1 else ''} cannot be read")
    return "\n  ".join(lines), problems


def is_at_work(storage: Storage) -> bool:
    """Whether a driver is running trials here."""
    return any(plan.is_alive for plan in announcement.read(storage))


def read_activity(storage: Storage, ended: Mapping[str, float]) -> Activity:
    """`ended`: the time of each trial's last record, by its id."""
    plans, heartbeats = announcement.read(storage), heartbeat.read(storage)
    living = [plan for plan in plans if plan.is_alive]
    begun = [beat for beat in heartbeats if beat.plan in {plan.id for plan in living}]
    restarting = [beat for beat in begun if beat.is_gone]
    silent = [beat for beat in begun if beat.is_silent and not beat.is_gone]
    running = [beat for beat in begun if not beat.is_silent and not beat.is_gone]
    planned = {name for plan in living for name in plan.unfinished(ended)}
    interrupted, seen = [], set(planned)
    for plan in plans:  # the latest first: it counts what it shares with an earlier one
        left = set(plan.unfinished(ended)) - seen
        if left and not plan.is_alive:
            interrupted.append((plan, len(left) + plan.unnamed))
            seen |= left
    return Activity(
        living,
        running,
        silent,
        restarting,
        frozenset(planned - {beat.name for beat in (*running, *silent)}),
        sum(plan.unnamed for plan in living),
        interrupted,
    )


def names_of(activity: Activity) -> set[str]:
    """The trials that run or will run."""
    return {*activity.waiting, *(beat.name for beat in (*activity.running, *activity.silent))}


def summary(done: int, failed: int, activity: Activity) -> str:
    """One line of counts, and the time left while a driver is running."""
    waiting = len(activity.waiting) + activity.unnamed
    line = f"{done} done, {len(activity.running)} running, {waiting} waiting, {failed} failed"
    if activity.silent:
        line += f", {len(activity.silent)} lost"
    planned = len({name for plan in activity.living for name in plan.trials}) + activity.unnamed
    ended = planned - waiting - len(activity.running) - len(activity.silent)
    if ended > 0:
        spent = time.time() - min(plan.started for plan in activity.living)
        line += f", about {duration(spent / ended * (planned - ended))} left"
    return line


def left_line(plan: Announcement, left: int) -> str:
    """What a driver that is gone has left."""
    trials = f"{left} trial{'s' if left > 1 else ''} left"
    if plan.interrupted:
        what = f"interrupted {duration(plan.silence)} ago on {plan.node}"
    else:
        what = f"no sign of life of the driver on {plan.node} for {duration(plan.silence)}"
    return f"{what}: {trials}; run the same command to continue: {plan.command}"


def read_failures(store: Store, retried: set[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """The records of failed trials, without those that are tried again; and a line for each file that is none."""
    failures, problems = [], []
    for file in store.failures():
        try:
            record = read_json(file)
            schema.check(record, schema.FAILURE)
        except ValueError as error:
            if file.exists():  # else its trial has ended well just now
                problems.append(f"{file}: {error}; skipped")
        else:
            if record["name"] not in retried:
                failures.append(record)
    return failures, problems


def best_scores(results: Sequence[Result], experiments: Sequence[ExperimentRecord]) -> list[str]:
    """A line for each dataset and protocol with validation scores, by the metric that its last search selected by."""
    lines = []
    purposes = Purposes(experiments)
    searches = {(record.dataset, record.protocol): record for record in experiments if record.search}
    for (dataset, protocol), members in group_by(results, lambda result: (result.trial.dataset, result.trial.protocol)):
        last = searches.get((dataset, protocol))
        if last:
            best = BestScores(last.select, last.folds, select_epochs=last.select_epochs)
        else:
            folds, metric = selection(protocol)
            best = BestScores(metric, folds, select_epochs=selects_epochs(protocol))
        for result in members:
            best.add(result, purposes.of(result))
        if best.scores:
            lines.append(f"{dataset} · {protocol}: {best}")
    return lines
