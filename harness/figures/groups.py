"""Which stored results enter a figure. Imports neither torch nor matplotlib."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness import commands
from harness.analysis import budget
from harness.analysis.results import (
    amount,
    by_dataset,
    comparable,
    configurations,
    largest_ensembles,
    select,
    usual_settings,
)
from harness.spec import BASELINE, SHARED, Result, UserError

FEW = 4  # up to so many runs are listed by id; more are counted


@dataclass(frozen=True)
class Group:
    """What one figure is drawn from: the results of one dataset, protocol and backbone, on any classes."""

    dataset: str  # where there are several copies: with version and fingerprint
    protocol: str
    backbone: str
    results: tuple[Result, ...]
    losses: tuple[str, ...]  # of all groups: a loss looks the same in every figure

    @property
    def slug(self) -> str:
        return filename(f"{self.dataset}-{self.protocol}-{self.backbone}")

    def final(self) -> list[Result]:
        """Single final runs of losses."""
        return [result for result in self.results if result.is_final]

    def validation(self) -> list[Result]:
        """Runs of losses on validation classes."""
        return [result for result in self.results if not result.trial.on_test and not result.trial.is_baseline]

    def ensembles(self) -> list[Result]:
        return largest_ensembles(self.results)

    def missing(self, needs: str, options: Sequence[str] = ()) -> UserError:
        """What this group lacks, and the command that makes it."""
        command = commands.more_like(self.results[0], *options)
        return UserError(
            f"no {needs} for {self.dataset}, {self.protocol}, {self.backbone}; create them with: {command}"
        )

    def note(self, runs: Sequence[Result], *remarks: str) -> str:
        """The note in the corner of a figure: which results it shows."""
        ids = f": {', '.join(sorted(run.id[:6] for run in runs))}" if len(runs) <= FEW else ""
        parts = [self.dataset, self.protocol, self.backbone, f"{counted(len(runs))}{ids}", *remarks]
        return " · ".join(part for part in parts if part)


@dataclass(frozen=True)
class Line:
    """A loss in a figure: the final runs of one of its configurations, by seed."""

    loss: str
    runs: tuple[Result, ...]

    @property
    def title(self) -> str:
        return self.runs[0].title


@dataclass(frozen=True)
class Search:
    """The random search of each loss: its scores on validation classes, and the runs they come from."""

    metric: str
    scores: dict[str, list[float]]
    runs: list[Result]


def groups(results: Iterable[Result], **keep: str | None) -> list[Group]:
    """The results by copy of a dataset, protocol and backbone. Raw pixels have no backbone and no figure; runs that
    were measured again stand in tables only."""
    results = select(results, **keep)
    parts: dict[tuple[str, str, str], list[Result]] = defaultdict(list)
    for result in results:
        trial = result.trial
        if not trial.is_pixels:
            parts[trial.dataset, trial.protocol, trial.backbone].append(result)
    losses = tuple(sorted({result.trial.loss for result in results} - {BASELINE}))
    return [
        Group(copy.name, protocol, backbone, copy.results, losses)
        for (_, protocol, backbone), members in sorted(parts.items())
        for copy in by_dataset(members)
    ]


def lines(runs: Iterable[Result]) -> tuple[list[Line], str]:
    """One configuration per loss, all trained with the same settings; and a remark on the runs that are left out.

    The settings are those that most losses share. A loss with several configurations shows the one with the most seeds,
    then the latest: nothing is chosen by a score on test classes.
    """
    runs = list(runs)
    alike = trained_alike(runs)
    chosen: dict[str, list[Result]] = {}
    for configuration in sorted(configurations(alike), key=amount):
        chosen[configuration[0].trial.loss] = configuration
    hidden = len(runs) - sum(map(len, chosen.values()))
    remark = f"{counted(hidden)} with other settings not shown" if hidden else ""
    series = [Line(loss, tuple(sorted(chosen[loss], key=lambda run: run.trial.seed))) for loss in sorted(chosen)]
    return series, remark


def trained_alike(runs: Sequence[Result]) -> list[Result]:
    """The runs with the settings that most losses share."""
    usual = usual_settings(runs)
    return [run for run in runs if conditions(run) == comparable(usual)] if usual else []


def conditions(run: Result) -> tuple:
    return comparable(dict(zip(SHARED, run.trial.shared, strict=True)))


def search_of(group: Group) -> Search:
    """The searches with the settings of the final runs; if there are none, with the settings of most losses."""
    folds, metric = budget.selection(group.protocol)
    searched = {f"val{number}" for number in range(folds)}
    trials = [run for run in group.validation() if run.purpose == "search" and run.trial.fold in searched]
    final = {conditions(run) for run in trained_alike(group.final())}
    trials = trained_alike([run for run in trials if conditions(run) in final] or trials)
    scores: dict[str, list[float]] = {}
    runs: list[Result] = []
    for loss in sorted({run.trial.loss for run in trials}):
        first = next(run for run in trials if run.trial.loss == loss)
        spent = budget.of(first.trial, group.results)
        if spent.search:
            scores[loss] = list(spent.scores)
            runs += spent.search_runs
    return Search(metric, scores, runs)


def counted(runs: int) -> str:
    return f"{runs} run{'s' if runs != 1 else ''}"


def filename(text: str) -> str:
    return re.sub(r"[^\w.-]", "-", text)
