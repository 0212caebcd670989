"""Which stored results enter a figure. Imports neither torch nor matplotlib."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness import commands
from harness.analysis import tuning
from harness.analysis.budget import Budgets, selected_by
from harness.analysis.experiments import Purposes
from harness.analysis.results import (
    amount,
    by_dataset,
    configurations,
    largest_ensembles,
    select,
    trained_with,
    usual_settings,
)
from harness.spec import BASELINE, ExperimentRecord, Result, UserError, metric_order, unknown

FEW = 4  # up to so many runs are listed by id; more are counted


@dataclass(frozen=True)
class Group:
    """What one figure is drawn from: the results of one dataset, protocol and backbone, on any classes."""

    dataset: str  # where there are several copies: with version and fingerprint
    protocol: str
    backbone: str
    results: tuple[Result, ...]
    losses: tuple[str, ...]  # of all groups: a loss looks the same in every figure
    experiments: tuple[ExperimentRecord, ...] = ()
    title: str = ""  # of the dataset, as people call it
    folder: str = ""  # what a command needs to store more with these results: " --results DIR"
    sort: str = ""  # the metric that losses are sorted by, the highest first; empty: by their names

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

    def missing(
        self, needs: str, options: Sequence[str] = (), *, several: bool = False, epochs: bool = False
    ) -> UserError:
        """What this group lacks, and the command that makes it: with the losses and settings of most of its runs.
        `several`: one loss is not enough; `epochs`: nor is one epoch."""
        trained = [result for result in self.results if not result.trial.is_baseline]
        alike = trained_alike(trained) or trained or list(self.results)
        losses = sorted({commands.loss_option(result.trial) for result in alike if not result.trial.is_baseline})
        enough = len(losses) > 1 or not several
        changed = {
            difference.name: difference.here
            for difference in tuning.unlike_protocol(alike[0].trial)
            if difference.name not in ("backbone", "weights")
            and not (epochs and difference.name == "epochs" and difference.here < 2)
        }
        words = ["--losses", ",".join(losses)] if losses and enough else []
        for name, value in changed.items():
            words += ["--set", f"{name}={commands.written(value)}"]
        command = commands.more_like(alike[0], *words, *options) + self.folder
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

    def mean(self, metric: str) -> float:
        """Over seeds; what was not measured comes last."""
        values = [run.metrics[metric] for run in self.runs if metric in run.metrics]
        return sum(values) / len(values) if values else -math.inf


@dataclass(frozen=True)
class Search:
    """The random search of each loss: its scores on validation classes, and the runs they come from."""

    metric: str
    scores: dict[str, list[float]]
    runs: list[Result]


def groups(
    results: Iterable[Result],
    experiments: Iterable[ExperimentRecord] = (),
    folder: str = "",
    sort: str = "",
    **keep: str | None,
) -> list[Group]:
    """The results by copy of a dataset, protocol and backbone. Raw pixels have no backbone and no figure; runs that
    were measured again stand in tables only. A UserError if none has the metric to sort by."""
    results = select(results, **keep)
    metrics = {name for result in results for name in result.metrics}
    if sort and metrics and sort not in metrics:
        raise unknown("metric to sort by", sort, sorted(metrics, key=metric_order))
    parts: dict[tuple[str, str, str], list[Result]] = defaultdict(list)
    for result in results:
        trial = result.trial
        if not trial.is_pixels:
            parts[trial.dataset, trial.protocol, trial.backbone].append(result)
    losses = tuple(sorted({result.trial.loss for result in results} - {BASELINE}))
    experiments = tuple(experiments)
    return [
        Group(copy.name, protocol, backbone, copy.results, losses, experiments, copy.title, folder, sort)
        for (_, protocol, backbone), members in sorted(parts.items())
        for copy in by_dataset(members)
    ]


def lines(runs: Iterable[Result], sort: str = "") -> tuple[list[Line], str]:
    """One configuration per loss, all trained with the same settings, by name or sorted by a metric; and a remark on
    the runs that are left out.

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
    return sorted(series, key=lambda line: -line.mean(sort)) if sort else series, remark


def trained_alike(runs: Sequence[Result]) -> list[Result]:
    """The runs with the settings that most losses share."""
    usual = usual_settings(runs)
    return [run for run in runs if trained_with(run.trial, usual)] if usual else []


def search_of(group: Group) -> Search:
    """The searches of the final runs, one configuration per loss; of losses without final runs the searches with the
    same settings, or with those of most losses."""
    budgets = Budgets(group.results, group.experiments)
    series, _ = lines(group.final())
    spent = {line.loss: budgets.of(line.runs[0].trial) for line in series}
    purposes = Purposes(group.experiments)
    trials = [run for run in group.validation() if "search" in purposes.of(run)]
    usual = usual_settings(run for line in series for run in line.runs)
    for run in trained_alike([run for run in trials if usual and trained_with(run.trial, usual)] or trials):
        if run.trial.loss not in spent or not spent[run.trial.loss].search:
            spent[run.trial.loss] = budgets.of(run.trial)
    searched = {loss: spent[loss] for loss in sorted(spent) if spent[loss].search}
    scores = {loss: list(budget.scores) for loss, budget in searched.items()}
    if group.sort:
        scores = dict(sorted(scores.items(), key=lambda item: -max(item[1], default=0.0)))
    return Search(
        selected_by(group.protocol, searched.values()),
        scores,
        [run for budget in searched.values() for run in budget.search_runs],
    )


def counted(runs: int) -> str:
    return f"{runs} run{'s' if runs != 1 else ''}"


def filename(text: str) -> str:
    return re.sub(r"[^\w.-]", "-", text)
