"""Which trials a run consists of, and which of them have to run: planned and named once, for the run, for --dry-run and
for `harness status`."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from harness import plan
from harness.analysis.results import Scored, best
from harness.spec import (
    Experiment,
    ExperimentRecord,
    LossSpec,
    Measurement,
    Purpose,
    Result,
    Trial,
    Work,
    has_epochs,
)
from harness.storage import Storage
from harness.store import Store

Some = TypeVar("Some", bound=Work)


class Account:
    """The trials of an experiment: a grid, or search, baselines and final runs, of which ensembles are made.

    The final runs of a loss are named when its search has ended, because its results choose their values.
    """

    def __init__(
        self, experiment: Experiment, store: Store, *, rerun: bool = False, storage: Storage | None = None
    ) -> None:
        self.experiment = experiment
        self.store = store
        self.rerun = rerun
        self.storage = storage  # where the files of stored pre-trainings must be; None: this is not checked
        self.files: set[str] = set()  # files of stored pre-trainings that are there
        self.grid = plan.grid(experiment)
        self.search = [] if self.grid else plan.search(experiment)
        self.baselines = [] if self.grid else plan.baselines(experiment)
        self.named = {trial.id for trial in (*self.grid, *self.search, *self.baselines)}  # what the request asks for
        self.final: list[Trial] = []  # those that can be named
        self.chosen: dict[str, dict[str, Any]] = {}  # loss -> the values that its search chose
        self.winners: dict[str, Scored] = {}  # loss -> the configuration that has them
        self.sources = {loss.name: loss.sources for loss in experiment.losses}
        self.searching = {trial.loss for trial in self.pending(self.search)}  # losses whose search has not ended
        self.choose(loss.name for loss in experiment.losses if loss.name not in self.searching)

    def choose(self, losses: Iterable[str]) -> None:
        """Name the final trials of losses whose search has ended: each with the values that its search chose."""
        ended = set(losses)
        self.searching -= ended
        if self.grid:
            return
        protocol = self.experiment.protocol
        stored = self.stored(trial for trial in self.search if trial.loss in ended)
        self.winners |= best(stored, protocol.select, protocol.folds, select_epochs=protocol.select_epochs)
        self.chosen = {loss: winner.values for loss, winner in self.winners.items()}
        self.final = plan.final(self.experiment, self.chosen)
        self.named |= {trial.id for trial in self.final}

    def record(self, command: str) -> ExperimentRecord:
        """What is known now of the request and its trials."""
        experiment, protocol = self.experiment, self.experiment.protocol
        knobs = {f"{loss}.{knob}": value for loss, values in experiment.knobs.items() for knob, value in values.items()}
        return ExperimentRecord(
            command=command,
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            dataset=experiment.dataset.name,
            protocol=protocol.name,
            select=protocol.select,
            folds=protocol.folds,
            trials=experiment.trials,
            seeds=experiment.seeds,
            scheduler=experiment.scheduler,
            select_epochs=protocol.select_epochs,
            settings={**experiment.settings, **knobs},
            space=self.space(),
            search=_ids(self.search),
            grid=_ids(self.grid),
            final=_ids(self.final),
            baseline=_ids(self.baselines),
            chosen=self.chosen,
            name=experiment.name,
        )

    def space(self) -> dict[str, dict[str, str]]:
        """What search varies, by loss. What the user has set is not searched."""
        experiment = self.experiment
        fixed = {loss.name: {*experiment.settings, *experiment.knobs.get(loss.name, ())} for loss in experiment.losses}
        return {
            loss.name: {
                name: str(limits)
                for name, limits in plan.space(experiment, loss).items()
                if name not in fixed[loss.name]
            }
            for loss in experiment.losses
            if experiment.trials
        }

    @property
    def decided(self) -> list[str]:
        """The losses whose search has ended."""
        if not self.search:
            return []
        return [loss.name for loss in self.experiment.losses if loss.name not in self.searching]

    @property
    def known(self) -> list[Trial]:
        """The trials that can be named now."""
        return [*self.grid, *self.search, *self.baselines, *self.final]

    @property
    def last(self) -> list[Trial]:
        """What is reported: all but the search."""
        return [*self.grid, *self.baselines, *self.final]

    def unnamed(self) -> list[Trial]:
        """Stand-ins for the final runs that searches have not named yet: equally many, and equally expensive."""
        losses = tuple(loss for loss in self.experiment.losses if loss.name in self.searching)
        return plan.final(replace(self.experiment, trials=0, losses=losses), {}) if losses else []

    @property
    def ensembles(self) -> list[Measurement]:
        """Those of the final runs that can be named now."""
        return plan.ensembles(self.experiment, self.final)

    @property
    def work(self) -> list[Work]:
        """All that can be named now."""
        return [*self.known, *self.ensembles]

    def unnamed_work(self) -> list[Work]:
        """Stand-ins for the final runs and ensembles that follow the searches."""
        unnamed = self.unnamed()
        return [*unnamed, *plan.ensembles(self.experiment, unnamed)]

    @property
    def is_complete(self) -> bool:
        """Whether nothing has to run."""
        return self.is_trained and not self.pending(self.ensembles)

    @property
    def is_trained(self) -> bool:
        """Whether no trial has to run."""
        return not self.searching and not self.pending(self.known)

    def pending(self, work: Iterable[Some]) -> list[Some]:
        """What has to run of this, each once."""
        unique = {one.id: one for one in work}.values()
        return [one for one in unique if self.rerun or not self.is_done(one)]

    def needs(self, work: Iterable[Work]) -> list[Trial]:
        """The missing trials that are needed by what is missing of this, each before what needs it. What is given
        itself is left out."""
        given = {one.id: one for one in work}
        found: dict[str, Trial] = {}
        for one in self.pending(given.values()):
            for need in self.pending(plan.needs(self.experiment, one)):
                found |= {trial.id: trial for trial in (*self.needs([need]), need) if trial.id not in found}
        return [need for need in found.values() if need.id not in given]

    def is_done(self, work: Work) -> bool:
        """Whether it is stored, and an ensemble's runs too."""
        if isinstance(work, Measurement):
            return self.store.get(work) is not None and all(map(self.is_trial_done, work.runs))
        return self.is_trial_done(work)

    def is_trial_done(self, trial: Trial) -> bool:
        """Whether a trial is stored, with curves if the experiment wants them and with the metrics of each epoch if it
        chooses among epochs; or was stopped early, if the experiment has a scheduler too. Of a pre-training the file
        must be there."""
        result = self.store.get(trial)
        if trial.is_pretraining:
            files = [entry["path"] for entry in result.artifacts.values()] if result else []
            return bool(files) and all(map(self.is_there, files))
        if result is not None and not self.lacks_epochs(result):
            return not self.draws_curves(trial) or result.has_curves
        return self.experiment.scheduler != "none" and not trial.on_test and self.store.stopped(trial)

    def is_there(self, file: str) -> bool:
        """Whether a file is in the storage. It is looked for until it is there: on an object store each look is a
        request, and every trial that needs the file asks."""
        if self.storage is not None and file not in self.files and self.storage.exists(file):
            self.files.add(file)
        return self.storage is None or file in self.files

    def is_final(self, trial: Trial) -> bool:
        """Whether it is a loss on test classes, or stands for one, and no teacher alone."""
        return trial.is_final and (self.purpose(trial) != "teacher" or trial.loss in self.searching)

    @property
    def teachers(self) -> set[str]:
        """The ids of the trials that others learn from."""
        if not any(loss.has_teacher for loss in self.experiment.losses):
            return set()
        return {trial.teacher for trial in (*self.known, *self.unnamed()) if trial.teacher}

    def draws_curves(self, trial: Trial) -> bool:
        return self.experiment.curves and self.is_final(trial)

    def selects_epochs(self, trial: Trial) -> bool:
        """Whether the number of epochs is chosen by it: it is then evaluated after every epoch."""
        return self.experiment.protocol.select_epochs and self.purpose(trial) == "search"

    def lacks_epochs(self, result: Result) -> bool:
        """Whether epochs are to be chosen by a result that was measured at its end only."""
        metric = self.experiment.protocol.select
        measured = metric in result.metrics and not has_epochs(result.curve, metric)
        return self.selects_epochs(result.trial) and measured

    def is_watched(self, trial: Trial) -> bool:
        """Whether the scheduler may stop it: it is then evaluated after every epoch."""
        measured = not trial.is_baseline and self.purpose(trial) not in ("pretraining", "teacher")
        return self.experiment.scheduler != "none" and not trial.on_test and measured

    def replaces(self, trial: Work) -> bool:
        """Whether a new result takes the place of a stored one. A pre-training runs again only if its file is gone."""
        if isinstance(trial, Measurement):
            return self.rerun
        lacks_epochs = self.selects_epochs(trial) and not self.is_done(trial)
        return self.rerun or self.draws_curves(trial) or lacks_epochs or trial.is_pretraining

    def purpose(self, trial: Trial) -> Purpose:
        """What a trial is run for. A cell of a grid is not a search trial."""
        if trial.is_pretraining:
            return "pretraining"
        if trial.id not in self.named:
            return "teacher"
        if self.grid:
            return "grid"
        return "search" if self.experiment.trials and not trial.on_test else "run"

    def stored(self, work: Iterable[Work]) -> list[Result]:
        """The stored results of this."""
        return [result for result in map(self.store.get, work) if result is not None]

    def left_out(self) -> list[LossSpec]:
        """The losses that have no final run, because none of their search trials finished."""
        named = {trial.loss for trial in self.last}
        return [loss for loss in self.experiment.losses if loss.name not in named]


def _ids(trials: Iterable[Trial]) -> tuple[str, ...]:
    return tuple(sorted({trial.id for trial in trials}))
