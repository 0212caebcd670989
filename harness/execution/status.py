"""What is done, running and failed, read from the store and the storage alone: it works without Ray."""

import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from harness.analysis.budget import selection
from harness.analysis.results import group_by
from harness.execution import announcement, heartbeat
from harness.execution.announcement import Announcement
from harness.execution.heartbeat import Heartbeat
from harness.execution.text import BestScores, position
from harness.spec import Result, UserError, schema
from harness.storage import Storage
from harness.store import Store, read_json


def describe(store: Store, storage: Storage) -> tuple[str, list[str]]:
    """The status as lines of text, and a line for each file of the store that cannot be read."""
    try:
        heartbeats, plans = heartbeat.read(storage), announcement.read(storage)
    except OSError as error:
        raise UserError(f"cannot read --storage {storage.title}: {error.strerror or error}") from None
    stored, problems = store.results()
    results = [result for result in stored if not result.recipe]
    failures = []
    for file in sorted(store.root.glob("failures/*/*/*.json")):
        try:
            failures.append(read_failure(file))
        except ValueError as error:
            if file.exists():  # else its trial has ended well just now
                problems.append(f"{file}: {error}; skipped")
    lines = [summary(len(results), heartbeats, len(failures), plans, waiting(plans, heartbeats, store.root))]
    lines += [f"  {line}" for line in best_scores(results)]
    lines += [f"  {beat.name}  {position_of(beat)}" for beat in heartbeats]
    for failure in failures:
        lines.append(f"  {failure['name']}  failed: {failure['error']}")
        lines.append(f"    {failure['log'] or 'its worker left no log'}")
    if problems:
        lines.append(f"  {len(problems)} file{'s' if len(problems) > 1 else ''} cannot be read")
    return "\n".join(lines), problems


def summary(
    done: int, heartbeats: Sequence[Heartbeat], failed: int, plans: Sequence[Announcement], waiting: int
) -> str:
    """One line of counts, and the time left while a driver is running."""
    lost = sum(beat.lost for beat in heartbeats)
    line = f"{done} done, {len(heartbeats) - lost} running, {waiting} waiting, {failed} failed"
    if lost:
        line += f", {lost} lost"
    planned = len({name for plan in plans for name in plan.trials}) + sum(plan.unnamed for plan in plans)
    ended = planned - waiting - len(heartbeats)
    if ended > 0:
        spent = time.time() - min(plan.started for plan in plans)
        line += f", about {timedelta(seconds=round(spent / ended * (planned - ended)))} left"
    return line


def waiting(plans: Iterable[Announcement], heartbeats: Iterable[Heartbeat], root: Path) -> int:
    """How many planned trials have neither begun nor ended. A trial whose record is older than the plan runs again, so
    it has not ended."""
    names, unnamed = set(), 0
    for plan in plans:
        records = (file for kind in ("runs", "stopped", "failures") for file in root.glob(f"{kind}/*/*/*.json"))
        ended = {file.stem for file in records if _modified(file) >= plan.started}
        names |= {name for name in plan.trials if name.rsplit("-", 1)[-1] not in ended}
        unnamed += plan.unnamed
    return len(names - {beat.name for beat in heartbeats}) + unnamed


def best_scores(results: Sequence[Result]) -> list[str]:
    """A line for each dataset and protocol with validation scores. The protocol says which metric selects."""
    lines = []
    for (dataset, protocol), members in group_by(results, lambda result: (result.trial.dataset, result.trial.protocol)):
        folds, metric = selection(protocol)
        best = BestScores(metric, folds)
        for result in members:
            best.add(result)
        if best.scores:
            lines.append(f"{dataset} · {protocol}: {best}")
    return lines


def position_of(beat: Heartbeat) -> str:
    if beat.lost:
        return f"no sign of life for {timedelta(seconds=round(beat.silence))}; log on {beat.node}: {beat.log}"
    if beat.progress is None:
        return f"starting on {beat.node}"
    return f"{position(beat.progress)}  on {beat.node}"


def _modified(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:  # removed just now
        return 0.0


def read_failure(file: Path) -> dict[str, Any]:
    """A failure's record; a ValueError says why the file is none."""
    record = read_json(file)
    schema.check(record, schema.FAILURE)
    return cast("dict[str, Any]", record)
