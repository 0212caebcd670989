"""From an experiment to its stored results: search, choose, final runs, ensembles, or a grid; only what is missing
runs."""

import errno
import os
import platform
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from harness import plan, provenance
from harness import storage as names
from harness.analysis.results import best
from harness.execution.display import Display
from harness.spec import (
    BASELINE,
    Event,
    Experiment,
    Failure,
    Job,
    Progress,
    Result,
    Stopped,
    Trial,
    UserError,
    ensemble_id,
    has_curves,
)
from harness.storage import Storage
from harness.store import Store

Tell = Callable[[Trial, Event], None]


class Executor(Protocol):
    """Runs jobs and tells what happens; local.execute, or Ray Tune."""

    def __call__(self, jobs: Sequence[Job], tell: Tell) -> None: ...


@dataclass
class Run:
    """One `harness run`: where its results go, who works, who watches."""

    experiment: Experiment
    store: Store
    storage: Storage
    display: Display
    rerun: bool = False
    execute: Executor | None = None  # nobody, where nothing is to do
    failures: list[Failure] = field(default_factory=list)
    ran: set[str] = field(default_factory=set)  # ids of what ended now, not before

    def __call__(self) -> list[Result]:
        """Search on validation classes, then the winners on test classes; or a grid, and nothing else. Each result is
        stored as its trial ends.

        Returns the final results, baselines, losses, ensembles; or those of the grid.
        """
        with self.display:
            last = plan.grid(self.experiment) or self.after_search()
            self.display.expect(len(self.pending(last)))
            results = self.finish(last)
        self.discard_weights(results)
        return results + self.ensembles(results)

    def after_search(self) -> list[Trial]:
        """Run the search; the baselines, and each loss with what it chose."""
        asked = self.experiment
        baselines, searched = plan.baselines(asked), plan.search(asked)
        # the final trials are not known before the search ends, but their number is
        self.display.expect(len(self.pending(searched)) + len(baselines) + len(asked.losses) * asked.seeds)
        return [*baselines, *self.chosen(self.finish(searched))]

    def chosen(self, found: list[Result]) -> list[Trial]:
        """The final trials of the losses, after this search."""
        asked = self.experiment
        winners = best(found, asked.protocol.select, asked.protocol.folds)
        return plan.final(asked, {loss: winner.values for loss, winner in winners.items()})

    def known(self) -> list[Trial]:
        """The trials that can be named before anything runs: of final ones those whose search is done."""
        asked = self.experiment
        if asked.grid:
            return plan.grid(asked)
        searched = plan.search(asked)
        chosen = [] if self.pending(searched) else self.chosen(self.stored(searched))
        return [*searched, *plan.baselines(asked), *chosen]

    def anything_to_do(self) -> bool:
        """Whether a trial has to run; if not, nobody needs to be hired."""
        return bool(self.pending(self.known()))

    @cached_property
    def origin(self) -> dict[str, str | None]:
        return provenance.origin()

    def pending(self, trials: list[Trial]) -> list[Trial]:
        """What has to run, each once."""
        unique = {trial.id: trial for trial in trials}.values()
        return [trial for trial in unique if self.rerun or not self.done(trial)]

    def done(self, trial: Trial) -> bool:
        """Stored, with its curves where they are asked for; or stopped by a scheduler that is asked for again."""
        result = self.store.get(trial)
        if result is not None:
            return not self.draws_curves(trial) or has_curves(result.curve)
        return self.experiment.scheduler != "none" and trial.fold != "test" and self.store.stopped(trial)

    def draws_curves(self, trial: Trial) -> bool:
        return self.experiment.curves and final(trial)

    def finish(self, trials: list[Trial]) -> list[Result]:
        """The results of these trials, stored or run now."""
        jobs = [self.job(trial) for trial in self.pending(trials)]
        if jobs:
            assert self.execute is not None
            announced = self.announce(jobs)
            try:
                self.execute(jobs, self.tell)
            finally:
                self.storage.remove(announced)
        return self.stored(trials)

    def stored(self, trials: list[Trial]) -> list[Result]:
        return [result for result in map(self.store.get, trials) if result is not None]

    def job(self, trial: Trial) -> Job:
        asked = self.experiment
        source = next((loss.source for loss in asked.losses if loss.name == trial.loss), "")
        return Job(
            trial,
            asked.dataset,
            self.storage.uri,
            source=source,
            keep_weights=final(trial) and asked.keep_weights != "none",
            origin={**self.origin, "purpose": self.purpose(trial), "scheduler": asked.scheduler},
            data_root=asked.data_root,
            skip_bad_images=asked.skip_bad_images,
            weights_file=asked.weights_file,
            validate=asked.scheduler != "none" and not final(trial) and trial.loss != BASELINE,
            curves=self.draws_curves(trial),
            nmi=self.purpose(trial) != "search" or asked.protocol.select == "NMI",
        )

    def purpose(self, trial: Trial) -> str:
        """What a trial is run for: a cell of a grid is no trial of a search."""
        if self.experiment.grid:
            return "grid"
        return "search" if self.experiment.trials and trial.fold != "test" else "run"

    def tell(self, trial: Trial, event: Event) -> None:
        """Store what ended before saying so; only then is its checkpoint of no more use."""
        if isinstance(event, Result):
            self.store.put(event, replace=self.rerun or self.draws_curves(trial))
            self.ran.add(trial.id)
        elif isinstance(event, Stopped | Failure):
            self.store.note(event)
        if isinstance(event, Result | Stopped):
            self.storage.remove(names.checkpoint(trial.id))
        if not isinstance(event, Progress):
            self.storage.remove(names.heartbeat(trial.id))
        if isinstance(event, Failure):
            self.failures.append(event)
        self.display.show(trial, event)
        if isinstance(event, Failure) and os.strerror(errno.ENOSPC) in event.error:
            raise UserError(f"no space left for {trial.name} in {self.storage.uri}; what finished is stored")

    def announce(self, jobs: list[Job]) -> str:
        """Leave word of what is planned, for `harness status` in another terminal; sweep up after killed drivers."""
        living = 0
        for other in self.storage.names("plans"):
            left = self.storage.read_json(other)
            if left and names.alive(left):
                living += 1
            else:
                self.storage.remove(other)
        if not living:
            self.storage.remove_folder("tune")
            for name in self.storage.names("checkpoints", parts=True):
                self.storage.remove(name)
        for sign in self.storage.names("running"):
            left = self.storage.read_json(sign)
            if left and not names.alive(left):
                self.storage.remove(sign)
        name = f"plans/{uuid.uuid4().hex}.json"
        about = {"pid": os.getpid(), "node": platform.node(), "started": time.time()}
        self.storage.write_json(name, {**about, "trials": [job.trial.name for job in jobs]})
        return name

    def discard_weights(self, results: list[Result]) -> None:
        """Of each loss's final runs keep the one with the lowest training loss: nothing is chosen on test classes."""
        if self.experiment.keep_weights != "best":
            return
        for group in by_configuration(results):
            kept = [one for one in group if self.storage.exists(names.weights(one.id))]
            kept.sort(key=lambda one: (one.curve[-1]["loss"] if one.curve else 0.0, one.id))
            for other in kept[1:]:
                if other.id in self.ran:  # what an earlier command kept is that command's affair
                    self.storage.remove(names.weights(other.id))

    def ensembles(self, results: list[Result]) -> list[Result]:
        """For each loss and size; a size above the number of finished seeds has no ensemble."""
        found = []
        for group in by_configuration(results):
            for size in self.experiment.ensembles:
                if size > len(group):
                    continue
                id = ensemble_id(size, (one.id for one in group))
                stored = None if self.rerun else self.store.get(group[0].trial, id)
                if stored is None:
                    from harness.evaluation import ensembles  # imports torch and timm, which a stored one does not need

                    stored = ensembles.build(group, size, self.experiment.dataset.recall_at, self.storage)
                    self.store.put(stored, replace=self.rerun)
                found.append(stored)
        return found


def final(trial: Trial) -> bool:
    """A loss on test classes."""
    return trial.fold == "test" and trial.loss != BASELINE


def by_configuration(results: list[Result]) -> list[list[Result]]:
    """Final runs of losses, those that differ in their seed only together."""
    groups: dict[str, list[Result]] = {}
    for one in results:
        if one.trial.loss != BASELINE:
            groups.setdefault(one.trial.configuration, []).append(one)
    return list(groups.values())
