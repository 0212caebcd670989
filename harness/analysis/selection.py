"""Which stored results a command shows: by loss, setting, date, name of the experiment, dataset, protocol, backbone."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import losses as registry
from harness.analysis import baselines
from harness.analysis.experiments import Purposes
from harness.analysis.results import compared_settings, matching
from harness.spec import ROLES, SETTINGS, ExperimentRecord, Result, Trial, UserError, unknown

UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
LONG_AGO = datetime.min.replace(tzinfo=UTC)
LISTED = 8  # values in an error; the rest is counted


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What a user asks to see; what is empty excludes nothing."""

    losses: tuple[str, ...] = ()
    where: tuple[str, ...] = ()  # epochs=4, group.anchors=1
    since: str = ""  # 2026-11-18, 2026-11-18T12:00, or an age: 30m, 2h, 3d, 1w
    name: str = ""  # that `harness run --name` gave
    dataset: str | None = None
    protocol: str | None = None
    backbone: str | None = None

    def runs(self, results: Iterable[Result], experiments: Iterable[ExperimentRecord] = ()) -> list[Result]:
        """The results that are asked for. A UserError, with what there is, for a value that none of them has."""
        selected = self.of_place(results)
        given: list[str] = []
        for condition in self.conditions(selected, list(experiments)):
            given.append(condition.given)
            concerned = [result for result in selected if condition.concerns(result)]
            if not any(condition.holds(result) for result in concerned):
                raise UserError(f"no results with {' and '.join(given)}{condition.instead(concerned)}")
            selected = [result for result in selected if condition.holds(result) or not condition.concerns(result)]
        return selected

    def shown(self, results: Iterable[Result], experiments: Iterable[ExperimentRecord] = ()) -> list[Result]:
        """The results that are asked for, and what tables and figures say of them: the baselines of the same images and
        networks, and the searches that belong to them."""
        results, experiments = list(results), list(experiments)
        if not (self.losses or self.where or self.since or self.name):
            return self.of_place(results)
        selected = self.runs(results, experiments)
        ids = {result.id for result in selected}
        rows = [result for result in selected if not result.trial.is_baseline]
        others = [result for result in self.of_place(results) if result.id not in ids]
        purposes = Purposes(experiments)
        searches = [other for other in others if "search" in purposes.of(other) and belongs(other, rows)]
        followers = [other for other in others if other.trial.is_baseline and follows(other, rows)]
        if rows:  # baselines that none of the rows is compared with stay out
            selected = [result for result in selected if not result.trial.is_baseline or follows(result, rows)]
        return [*selected, *followers, *searches]

    def of_place(self, results: Iterable[Result]) -> list[Result]:
        return matching(results, dataset=self.dataset, protocol=self.protocol, backbone=self.backbone)

    def conditions(self, results: Sequence[Result], experiments: Sequence[ExperimentRecord]) -> Iterator["Condition"]:
        if self.losses:
            wanted = {with_results(word, results) for word in self.losses}
            yield Condition(f"--losses {','.join(self.losses)}", lambda result: result.trial.loss in wanted)
        for word in self.where:
            yield setting_condition(word, results)
        if self.since:
            moment = since(self.since)
            yield Condition(f"--since {self.since}", lambda result: finished(result) >= moment, instead=newest)
        if self.name:
            ids = named(self.name, experiments)
            yield Condition(f"--name {self.name}", lambda result: ids.issuperset(result.members or (result.id,)))


@dataclass(frozen=True)
class Condition:
    """What a result must have to be shown."""

    given: str  # as the user wrote it
    holds: Callable[[Result], bool]
    concerns: Callable[[Result], bool] = lambda result: True  # others are shown in any case
    instead: Callable[[Sequence[Result]], str] = lambda results: ""  # what an error says of results that have it not


def with_results(word: str, results: Sequence[Result]) -> str:
    """A loss that has results; `none` stands for the baselines, and `-` for `_`."""
    known = sorted({result.trial.loss for result in results})
    name = word if word in known else word.replace("-", "_")
    if name not in known:
        raise unknown("loss with results", word, known)
    return name


def setting_condition(word: str, results: Sequence[Result]) -> Condition:
    """KEY=VALUE: of a setting, or LOSS.KNOB=VALUE, which concerns that loss alone."""
    key, equals, text = (part.strip() for part in word.partition("="))
    if not equals:
        raise UserError(f"--where {word}: write SETTING=VALUE or LOSS.KNOB=VALUE, e.g. epochs=4")
    given = f"--where {word}"
    owner, dot, knob = key.rpartition(".")
    if dot:
        owner = with_results(owner, results)
        known = sorted({name for result in results if result.trial.loss == owner for name in knobs_of(result.trial)})
        if knob not in known:
            raise unknown(f"knob of {owner}", knob, known, see=f"harness show {owner}")
        return Condition(
            given,
            holds=lambda result: same_value(knobs_of(result.trial).get(knob), text),
            concerns=lambda result: result.trial.loss == owner,
            instead=lambda results: stored(key, [knobs_of(result.trial).get(knob) for result in results]),
        )
    if key not in SETTINGS:
        raise unknown("setting", key, SETTINGS, see="harness ls settings")
    value = text if key == "weights" else SETTINGS[key].parse(text)
    return Condition(
        given,
        holds=lambda result: getattr(result.trial, key) == value,
        instead=lambda results: stored(
            key, [getattr(result.trial, key) for result in results if not result.trial.is_baseline]
        ),
    )


def knobs_of(trial: Trial) -> dict[str, Any]:
    """Also those that are left out of a trial, where they mean "as before"."""
    added = registry.facts(trial.loss).added if trial.loss in registry.shipped() else {}
    return {**added, **trial.knobs}


def as_typed(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def same_value(value: Any, text: str) -> bool:
    if isinstance(value, bool) or value is None:
        return as_typed(value) == text.lower()
    if isinstance(value, int | float):
        with contextlib.suppress(ValueError):
            return float(value) == float(text)
    return str(value) == text


def stored(key: str, values: Iterable[Any]) -> str:
    texts = sorted({f"{key}={as_typed(value)}" for value in values})
    more = f" and {len(texts) - LISTED} more" if len(texts) > LISTED else ""
    return f"; stored: {', '.join(texts[:LISTED])}{more}" if texts else ""


def since(text: str) -> datetime:
    """The moment that --since names."""
    age = re.fullmatch(r"(\d{1,6})([mhdw])", text)
    if age:
        return datetime.now(UTC) - timedelta(**{UNITS[age[2]]: int(age[1])})
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise UserError(
            f"--since {text}: must be a date like 2026-11-18 or 2026-11-18T12:00, or an age like 30m, 2h, 3d or 1w"
        ) from None


def finished(result: Result) -> datetime:
    """When its trial ended; of a record that does not say so, long ago."""
    with contextlib.suppress(ValueError, OverflowError):
        return datetime.fromisoformat(str(result.provenance.get("finished"))).astimezone(UTC)
    return LONG_AGO


def newest(results: Sequence[Result]) -> str:
    last = max((finished(result) for result in results), default=LONG_AGO)
    return "" if last == LONG_AGO else f"; the newest is of {last.isoformat(timespec='minutes')}"


def named(name: str, experiments: Iterable[ExperimentRecord]) -> set[str]:
    """The ids of the trials of the experiments of this name."""
    experiments = list(experiments)
    chosen = [record for record in experiments if record.name == name]
    if not chosen:
        raise unknown("experiment", name, sorted({record.name for record in experiments} - {""}))
    return {id for record in chosen for role in ROLES for id in record.ids(role)}


def belongs(search: Result, rows: Iterable[Result]) -> bool:
    """Whether a search trial has the loss and the compared settings of a row."""
    names = ("dataset", "loss", *compared_settings(search.trial.protocol))
    return any(all(getattr(search.trial, name) == getattr(row.trial, name) for name in names) for row in rows)


def follows(baseline: Result, rows: Iterable[Result]) -> bool:
    """Whether a row is compared with this baseline: of the same images, protocol and network."""
    alike = [row.trial for row in rows if place_of(row.trial) == place_of(baseline.trial)]
    return any(baselines.untrained([baseline], trial) or baselines.raw_pixels([baseline], trial) for trial in alike)


def place_of(trial: Trial) -> tuple[str, str, str]:
    return trial.dataset, trial.fingerprint, trial.protocol
