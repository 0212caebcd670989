"""Queries on results: select, group, score, choose."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from harness.spec import PIXELS, Result, unknown


def select(results: Iterable[Result], recipe: str = "", **keep: str | None) -> list[Result]:
    """Results filtered by dataset, protocol and backbone where a value is given, raw pixels with any backbone;
    `recipe`: those that were measured again with that one for NMI."""
    selected = [result for result in results if result.recipe == recipe]
    for field, value in keep.items():
        if value is not None:
            known = sorted({getattr(result.trial, field) for result in selected})
            if value not in known:
                raise unknown(f"{field} with results", value, known)
            allowed = (value, PIXELS) if field == "backbone" else (value,)
            selected = [result for result in selected if getattr(result.trial, field) in allowed]
    return selected


def on_test(results: Iterable[Result]) -> list[Result]:
    """Those on test classes: only they stand in a table of losses."""
    return [result for result in results if result.trial.on_test]


def group_by(results: Iterable[Result], key: Callable[[Result], Any]) -> list[tuple[Any, list[Result]]]:
    """The results of each value of a key, values in order."""
    return [(value, list(members)) for value, members in groupby(sorted(results, key=key), key=key)]


def configurations(results: Iterable[Result]) -> list[list[Result]]:
    """Runs of losses, those that differ in their seed only together, in the order they are met."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        if not result.trial.is_baseline:
            groups.setdefault(result.trial.configuration, []).append(result)
    return list(groups.values())


@dataclass(frozen=True)
class Scored:
    """A configuration with its score: the mean of a metric over its runs, which are folds of a search or seeds of a
    grid."""

    runs: tuple[Result, ...]
    score: float

    @property
    def loss(self) -> str:
        return self.runs[0].trial.loss

    @property
    def values(self) -> dict[str, Any]:
        """What search has chosen with it: knobs and tunable settings."""
        return self.runs[0].trial.searched


def score(runs: Sequence[Result], metric: str) -> Scored:
    """The one way a configuration is scored, for choosing and for reporting."""
    return Scored(tuple(runs), sum(run.metrics[metric] for run in runs) / len(runs))


def scored_search(results: Iterable[Result], metric: str, folds: int) -> list[Scored]:
    """The configurations that have a result on each of the protocol's validation folds, by id. One that lacks a fold is
    no candidate."""
    wanted = {f"val{number}" for number in range(folds)}
    groups: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda result: result.id):
        if result.trial.fold in wanted and metric in result.metrics:
            groups.setdefault(result.trial.id_without("fold"), []).append(result)
    return [score(runs, metric) for runs in groups.values() if len(runs) == folds]


def best(results: Iterable[Result], metric: str, folds: int) -> dict[str, Scored]:
    """The best configuration of each loss by its mean over the validation folds. Equal scores: the first id."""
    winners: dict[str, Scored] = {}
    for candidate in scored_search(results, metric, folds):
        if candidate.loss not in winners or candidate.score > winners[candidate.loss].score:
            winners[candidate.loss] = candidate
    return winners
