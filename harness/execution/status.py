"""What runs at work have done and have still to do, and what is stored, by dataset and protocol. All of it is read from
the store and the storage, so it works without Ray."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.analysis.budget import selection, selects_epochs
from harness.analysis.experiments import Purposes
from harness.execution import announcement, heartbeat
from harness.execution.announcement import Announcement
from harness.execution.heartbeat import Heartbeat
from harness.execution.text import BestScores, duration
from harness.execution.winners import OTHER_CLASSES
from harness.spec import ExperimentRecord, Result, UserError
from harness.storage import Storage
from harness.store import Store

Conditions = tuple[str, str]  # the dataset and the protocol, which are kept apart


@dataclass(frozen=True)
class Driver:
    """The plan of a driver at work, and its trials that have begun."""

    plan: Announcement
    running: Sequence[Heartbeat]
    silent: Sequence[Heartbeat]  # not heard of for long
    restarting: Sequence[Heartbeat]  # their processes are gone
    unfinished: frozenset[str]  # names of its trials that have not ended

    @property
    def waiting(self) -> int:
        """Trials that have not begun, or begin again, and what searches will name."""
        begun = {beat.name for beat in (*self.running, *self.silent)}
        return len(self.unfinished - begun) + self.plan.unnamed

    @property
    def ended(self) -> int:
        return self.plan.total - len(self.running) - len(self.silent) - self.waiting

    def counts(self, failed: int, typical: float) -> str:
        """Each trial of the run is counted once. `typical`: seconds that one takes; 0 if it is not known."""
        done = f"{self.ended - failed} of {self.plan.total} done"
        words = [done, f"{len(self.running)} running", f"{self.waiting} waiting", f"{failed} failed"]
        if self.silent:
            words.append(f"{len(self.silent)} lost")
        left = (
            typical * (self.waiting + len(self.running) / 2) / max(1, len(self.running))
        )  # running ones are half done
        if left >= 1:
            words.append(f"about {duration(left)} left")
        return ", ".join(words)


@dataclass
class Part:
    """What there is of one dataset under one protocol."""

    drivers: list[Driver] = field(default_factory=list)
    interrupted: list[tuple[Announcement, int]] = field(default_factory=list)  # and how many trials each has left
    results: list[Result] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)  # without those that are tried again

    def headlines(self) -> Iterator[str]:
        """A line of counts per run at work; without one, of what is stored."""
        for driver in self.drivers:
            known = sum(failure["name"] in driver.plan.trials for failure in self.failures)
            yield driver.counts(known, self.typical(driver.plan))
            if driver.plan.waits_for:
                yield f"  {driver.plan.waits_for}"
            if driver.plan.unnamed:
                yield f"  {driver.plan.unnamed} of the waiting follow the searches, which choose their values"
        if not self.drivers:
            failed = f", {len(self.failures)} failed" if self.failures else ""
            pretrainings = sum(result.trial.is_pretraining for result in self.results)
            if pretrainings:  # no protocol's own, so nothing else is stored with them
                yield f"{count(pretrainings, 'pre-training')} stored{failed}"
            else:
                yield f"{count(sum(result.is_single for result in self.results), 'trial')} stored{failed}, none running"

    def typical(self, plan: Announcement) -> float:
        """Mean seconds of the trials of a run that are stored, also from before a --rerun; baselines are quick."""
        names = set(plan.trials)
        ended = [
            result.seconds["total"]
            for result in self.results
            if result.trial.name in names and result.is_single and not result.trial.is_baseline
        ]
        return sum(ended) / len(ended) if ended else 0.0

    def lines(self, experiments: Sequence[ExperimentRecord]) -> Iterator[str]:
        """What follows, without indent."""
        yield from (left_line(plan, left) for plan, left in self.interrupted)
        yield from best_scores(self.results, experiments)
        for driver in self.drivers:
            yield from (f"{beat.name}  {beat.position}  on {beat.node}" for beat in driver.running)
            for beat in driver.restarting:
                state = "its process died; it starts again from its last checkpoint"
                yield f"{beat.name}  {state}; log on {beat.node}: {beat.log}"
            for beat in driver.silent:
                yield f"{beat.name}  no sign of life for {duration(beat.silence)}; log on {beat.node}: {beat.log}"
        for failure in self.failures:
            yield f"{failure['name']}  failed: {failure['error']}"
            if failure["log"]:
                yield f"  {failure['log']}"


def describe(store: Store, storage: Storage) -> tuple[str, list[str]]:
    """The status as lines of text, and a line for each file of the store that cannot be read."""
    try:
        drivers, interrupted = read_plans(storage, store.ended())
    except OSError as error:
        raise UserError(f"cannot read --storage {storage.title}: {error.strerror or error}") from None
    results, experiments, problems = store.everything()
    retried = {name for driver in drivers for name in driver.unfinished}
    failures, unreadable = read_failures(store, retried)
    problems += [*unreadable, *store.stopped_problems()]
    lines = []
    for (dataset, protocol), part in parts(drivers, interrupted, results, failures).items():
        same = [record for record in experiments if (record.dataset, record.protocol) == (dataset, protocol)]
        lines += [f"{dataset} · {protocol}: {line}" if line[0] != " " else line for line in part.headlines()]
        lines += [f"  {line}" for line in part.lines(same)]
    if failures:
        lines.append("`harness show ID` tells why a trial failed, and `harness rm ID` forgets it")
    if problems:
        lines.append(f"{count(len(problems), 'file')} cannot be read")
    return "\n".join(lines or ["nothing is stored, and nothing is running"]), problems


def is_at_work(storage: Storage) -> bool:
    """Whether a driver is running trials here."""
    return any(plan.is_alive for plan in announcement.read(storage))


def parts(
    drivers: Sequence[Driver],
    interrupted: Iterable[tuple[Announcement, int]],
    results: Iterable[Result],
    failures: Iterable[dict[str, Any]],
) -> dict[Conditions, Part]:
    """Everything by dataset and protocol: those with a run at work first."""
    found: dict[Conditions, Part] = {}

    def part(dataset: str, protocol: str) -> Part:
        return found.setdefault((dataset, protocol), Part())

    for driver in drivers:
        part(driver.plan.dataset, driver.plan.protocol).drivers.append(driver)
    for plan, left in interrupted:
        part(plan.dataset, plan.protocol).interrupted.append((plan, left))
    for result in results:
        if not result.recipe:
            part(result.trial.dataset, result.trial.protocol).results.append(result)
    for failure in failures:
        conditions = failure["dataset"], failure["protocol"]
        for driver in drivers:  # whose pre-training is no protocol's own
            if failure["name"] in driver.plan.trials:
                conditions = driver.plan.dataset, driver.plan.protocol
        part(*conditions).failures.append(failure)
    return dict(sorted(found.items(), key=lambda item: (not item[1].drivers, item[0])))


def read_plans(storage: Storage, ended: Mapping[str, float]) -> tuple[list[Driver], list[tuple[Announcement, int]]]:
    """The drivers at work, and the plans of those that are gone with how many trials each has left.

    `ended`: the time of each trial's last record, by its id.
    """
    plans, heartbeats = announcement.read(storage), heartbeat.read(storage)
    drivers, interrupted, seen = [], [], set[str]()
    for plan in plans:
        if plan.is_alive:
            unfinished = frozenset(plan.unfinished(ended))
            begun = [beat for beat in heartbeats if beat.plan == plan.id and beat.name in unfinished]
            drivers.append(driver_of(plan, begun, unfinished))
            seen |= unfinished
    for plan in plans:  # the latest first: it counts what it shares with an earlier one
        left = set(plan.unfinished(ended)) - seen
        if left and not plan.is_alive:
            interrupted.append((plan, len(left) + plan.unnamed))
            seen |= left
    return drivers, interrupted


def driver_of(plan: Announcement, beats: Sequence[Heartbeat], unfinished: frozenset[str]) -> Driver:
    return Driver(
        plan,
        running=[beat for beat in beats if not beat.is_gone and not beat.is_silent],
        silent=[beat for beat in beats if not beat.is_gone and beat.is_silent],
        restarting=[beat for beat in beats if beat.is_gone],
        unfinished=unfinished,
    )


def left_line(plan: Announcement, left: int) -> str:
    """What a driver that is gone has left."""
    if plan.interrupted:
        what = f"interrupted {duration(plan.silence)} ago on {plan.node}"
    else:
        what = f"no sign of life of the driver on {plan.node} for {duration(plan.silence)}"
    return f"{what}: {count(left, 'trial')} left; to continue, run: {plan.command}"


def read_failures(store: Store, retried: set[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """The records of failed trials, with their dataset and protocol, without those that are tried again; and a line for
    each file that is none."""
    failures, problems = [], []
    for file in store.failures():
        try:
            record = store.read_failure(file)
        except ValueError as error:
            if file.exists():  # else its trial has ended well just now
                problems.append(f"{file}: {error}; skipped")
        else:
            if record["name"] not in retried:
                trial = record.get("trial")
                named = trial if isinstance(trial, dict) else {}
                conditions = {"dataset": file.parent.parent.name, "protocol": str(named.get("protocol", "?"))}
                failures.append({**record, **conditions})
    return failures, problems


def best_scores(results: Sequence[Result], experiments: Sequence[ExperimentRecord]) -> Iterator[str]:
    """The best validation scores of each loss, by the metric that the last search selected by. What a search has not
    drawn, a cell of a grid for example, has a line of its own."""
    if not results:
        return
    purposes = Purposes(experiments)
    searched = [result for result in results if "search" in purposes.of(result)]
    others = [result for result in results if "search" not in purposes.of(result)]
    said = False
    for part, words in ((searched, ""), (others, "outside of searches, " if searched else "")):
        best = scores_by(results[0].trial.protocol, experiments)
        for result in part:
            best.add(result, purposes.of(result))
        if best.scores:
            yield f"{words}{best}"
            said = True
    if said:
        yield OTHER_CLASSES


def scores_by(protocol: str, experiments: Sequence[ExperimentRecord]) -> BestScores:
    """No scores yet; they will be by what the last search selected by, or the protocol does."""
    searches = [record for record in experiments if record.search]
    if searches:
        last = searches[-1]
        return BestScores(last.select, last.folds, select_epochs=last.select_epochs)
    folds, metric = selection(protocol)
    return BestScores(metric, folds, select_epochs=selects_epochs(protocol))


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
