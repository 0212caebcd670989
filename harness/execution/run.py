"""From an account of trials to their stored results: search, choose, final runs, ensembles, or a grid; only what is
missing runs, each as soon as it can."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from harness import plan, provenance, storage
from harness.analysis.results import configurations
from harness.execution import winners
from harness.execution.account import Account
from harness.execution.agenda import Agenda
from harness.execution.announcement import Announced, announced
from harness.execution.census import Census
from harness.execution.leftovers import sweep
from harness.execution.recorder import Recorder, stop_on_disk_error
from harness.spec import Event, Failure, Job, Listener, Result, Trial, ensemble_id

if TYPE_CHECKING:
    from harness.execution.display import Display

# Runs jobs and reports each event: local.execute, or Ray Tune's. It asks for a job when it has room for one, and gets
# None while only the end of a running one can make another one ready.
Executor = Callable[[Iterable[Job | None], Listener], None]


@dataclass
class Run:
    """One run: its trials, its storage, its executor and its listeners.

    Every event goes to the recorder, then to the display, the census and the other listeners, so that a result is
    stored before it is shown. A full or read-only disk stops the run after all of them have had the event. The agenda
    is told last: what the end of a trial makes ready finds its result stored.
    """

    account: Account
    storage: storage.Storage
    executor: Executor
    display: "Display"
    listeners: Sequence[Listener] = ()
    threads: int = 1  # of torch, per trial
    census: Census = field(default_factory=Census)
    recorder: Recorder = field(init=False)
    agenda: Agenda = field(init=False)
    announced: Announced | None = field(init=False, default=None)  # what `harness status` reads of this run

    def __post_init__(self) -> None:
        self.recorder = Recorder(self.account, self.storage)
        self.agenda = Agenda(self.account, ())

    def __call__(self) -> list[Result]:
        """Search on validation classes, then the winners on test classes; or a grid, and nothing else. Each result is
        stored as its trial ends. What the trials are for is recorded before they run.

        Returns the final results: baselines, losses, ensembles; or those of the grid.
        """
        account = self.account
        sweep(self.storage, account.store)
        self.record()
        with self.display:
            self.tell_winners(account.decided)
            self.dispatch(account.known)
        sweep(self.storage, account.store)
        results = account.stored(account.last)
        self.discard_weights(results)
        return results + self.ensembles(results)

    def record(self) -> None:
        """Store what is known now of the request: the final runs of a loss are named when its search has ended."""
        self.account.store.put_experiment(self.account.record(self.origin["command"] or ""))

    @property
    def failures(self) -> list[Failure]:
        return self.recorder.failures

    def dispatch(self, trials: Iterable[Trial]) -> None:
        """Run these trials and those they lead to, as far as they are not stored."""
        account, trials = self.account, list(trials)
        first = account.needs([*trials, *account.unnamed()])  # also of final runs whose values are not chosen yet
        self.agenda = Agenda(account, [*first, *trials])
        self.expect()
        if not self.agenda.unfinished:
            return
        dataset, protocol = account.experiment.dataset.name, account.experiment.protocol.name
        with announced(self.storage, self.origin["command"] or "", dataset, protocol) as self.announced:
            self.announce()
            self.executor((self.job(trial) if trial else None for trial in self.agenda), self.notify)

    def expect(self) -> None:
        """Tell the display and the census how many trials are left."""
        unnamed = len(self.account.unnamed())
        left = len(self.agenda.unfinished) + unnamed
        self.display.expect(left)
        self.census.expect(len({*self.agenda.trials, *(trial.id for trial in self.account.known)}) + unnamed, left)

    def announce(self) -> None:
        if self.announced is not None:
            self.announced.update(self.agenda.trials.values(), len(self.account.unnamed()))

    def wait(self, text: str) -> None:
        """Tell what trials wait for; "" when they wait no more."""
        if text:
            self.display.line(text)
        if self.announced is not None:
            self.announced.wait(text)

    def tell_winners(self, losses: Collection[str]) -> None:
        for line in winners.lines(self.account, losses):
            self.display.line(line)

    def notify(self, trial: Trial, event: Event) -> None:
        listeners: Sequence[Listener] = (
            self.recorder,
            self.display.show,
            self.census.hear,
            *self.listeners,
            stop_on_disk_error,
        )
        for listener in listeners:
            listener(trial, event)
        searching = set(self.account.searching)
        refused = self.agenda.hear(trial, event)
        chosen = searching - self.account.searching
        if chosen:
            self.record()
            self.tell_winners(chosen)
            self.expect()
            self.announce()
        for failure in refused:
            self.notify(failure.trial, failure)

    @cached_property
    def origin(self) -> dict[str, str | None]:
        return provenance.origin()

    def job(self, trial: Trial) -> Job:
        experiment, account = self.account.experiment, self.account
        origin: dict[str, Any] = {**self.origin, "purpose": account.purpose(trial), "scheduler": experiment.scheduler}
        needs = tuple(account.stored(plan.needs(experiment, trial)))
        for need in needs:
            if need.trial.is_pretraining:
                origin["pretraining"] = {"id": need.id, "seconds": need.seconds["total"]}
        return Job(
            trial,
            experiment.dataset,
            self.storage.uri,
            plan=self.announced.id if self.announced else "",
            threads=self.threads,
            sources=account.sources.get(trial.loss, {}),
            keep_weights=trial.is_final and experiment.keep_weights != "none",
            origin=origin,
            data_root=experiment.data_root,
            skip_bad_images=experiment.skip_bad_images,
            weights_file=experiment.weights_file,
            validate=account.is_watched(trial),
            select_epochs=account.selects_epochs(trial),
            curves=account.draws_curves(trial),
            nmi=account.purpose(trial) != "search" or experiment.protocol.select == "NMI",
            needs=needs,
        )

    def discard_weights(self, results: list[Result]) -> None:
        """Of each loss's final runs keep the one with the lowest training loss: nothing is chosen on test classes."""
        if self.account.experiment.keep_weights != "best":
            return
        for runs in configurations(results):
            with_weights = [run for run in runs if "weights" in run.artifacts and self.storage.exists(weights_of(run))]
            with_weights.sort(key=lambda run: (run.curve[-1]["loss"] if run.curve else 0.0, run.id))
            for run in with_weights[1:]:
                if run.id in self.recorder.ran:  # weights that an earlier command kept stay
                    self.storage.remove(weights_of(run))

    def ensembles(self, results: list[Result]) -> list[Result]:
        """An ensemble per loss and size. A size above the number of finished seeds has none."""
        return [
            self.ensemble(runs, size)
            for runs in configurations(results)
            for size in self.account.experiment.ensembles
            if size <= len(runs)
        ]

    def ensemble(self, runs: list[Result], size: int) -> Result:
        """The stored ensemble, or one that is built now."""
        account = self.account
        id = ensemble_id(size, (run.id for run in runs))
        stored = None if account.rerun else account.store.get(runs[0].trial, id)
        if stored is not None:
            return stored
        from harness.evaluation import ensembles  # imports torch and timm, which a stored one does not need

        names = account.store.class_names(runs[0])
        joined = ensembles.build(runs, size, account.experiment.dataset.recall_at, self.storage, names)
        account.store.put(joined, replace=account.rerun)
        return joined


def weights_of(run: Result) -> str:
    """The file of a run's weights in the storage."""
    return run.artifacts["weights"]["path"]
