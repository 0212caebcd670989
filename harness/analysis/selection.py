"""Which stored results a command shows: by loss, setting, date, name of the experiment, dataset, protocol, backbone."""

import contextlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import losses as registry
from harness.analysis import baselines
from harness.analysis.experiments import Purposes
from harness.analysis.results import compared_settings, matching
from harness.spec import ROLES, SETTINGS, ExperimentRecord, Result, Trial, UserError, unknown

UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

Test = Callable[[Result], bool]


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
        """The results that are asked for. A UserError for a value that none of them has."""
        selected = self.of_place(results)
        for test, given in self.tests(selected, list(experiments)):
            selected = [result for result in selected if test(result)]
            if not selected:
                raise UserError(f"no results with {given}; see: harness ls runs")
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

    def tests(self, results: Sequence[Result], experiments: Sequence[ExperimentRecord]) -> list[tuple[Test, str]]:
        """Each condition, and how the user wrote it."""
        tests: list[tuple[Test, str]] = []
        if self.losses:
            wanted = loss_names(self.losses, results)
            tests.append((lambda result: result.trial.loss in wanted, f"--losses {','.join(self.losses)}"))
        for word in self.where:
            tests.append((condition(word), f"--where {word}"))
        if self.since:
            moment = since(self.since)
            tests.append((lambda result: finished(result) >= moment, f"--since {self.since}"))
        if self.name:
            ids = named(self.name, experiments)
            tests.append((lambda result: ids.issuperset(result.members or (result.id,)), f"--name {self.name}"))
        return tests


def loss_names(words: Sequence[str], results: Sequence[Result]) -> set[str]:
    """Losses with results; `none` stands for the baselines, and `-` for `_`."""
    known = sorted({result.trial.loss for result in results})
    names = set()
    for word in words:
        name = word if word in known else word.replace("-", "_")
        if name not in known:
            raise unknown("loss with results", word, known)
        names.add(name)
    return names


def condition(word: str) -> Test:
    """KEY=VALUE: of a setting, or LOSS.KNOB=VALUE, which concerns that loss alone."""
    key, equals, text = (part.strip() for part in word.partition("="))
    if not equals:
        raise UserError(f"--where {word}: write SETTING=VALUE or LOSS.KNOB=VALUE, e.g. epochs=4")
    owner, dot, knob = key.rpartition(".")
    if dot:
        return lambda result: result.trial.loss != owner or same_value(knob_of(result.trial, knob), text)
    if key not in SETTINGS:
        raise unknown("setting", key, SETTINGS, see="harness ls settings")
    value = text if key == "weights" else SETTINGS[key].parse(text)
    return lambda result: getattr(result.trial, key) == value


def knob_of(trial: Trial, knob: str) -> Any:
    """Also a knob that is left out of a trial, where it means "as before"."""
    added = registry.facts(trial.loss).added if trial.loss in registry.shipped() else {}
    return {**added, **trial.knobs}.get(knob)


def same_value(value: Any, text: str) -> bool:
    if isinstance(value, bool) or value is None:
        return str(value).lower() == text.lower()
    if isinstance(value, int | float):
        with contextlib.suppress(ValueError):
            return float(value) == float(text)
    return str(value) == text


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
    return datetime.min.replace(tzinfo=UTC)


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
