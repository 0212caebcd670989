"""From an account of trials to their stored results: search, choose, final runs, ensembles, or a grid; only what is
missing runs, each as soon as it can."""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from harness import plan, provenance, storage
from harness.analysis.results import configurations
from harness.execution import winners
from harness.execution.account import Account
from harness.execution.agenda import Agenda
from harness.execution.announcement import Announced, announced, getting_ready
from harness.execution.census import Census
from harness.execution.leftovers import sweep
from harness.execution.recorder import Recorder, stop_on_disk_error
from harness.spec import Event, Failure, Job, Listener, Measurement, Result, Trial, Work

if TYPE_CHECKING:
    from harness.execution.display import Display

# Runs jobs and reports each event: local.execute, or Ray Tune's. It asks for a job when it has room for one, and gets
# None while only the end of a running one can make another one ready.
Executor = Callable[[Iterable[Job | None], Listener], None]


@dataclass
class Run:
    """One run: its trials and measurements, its storage, its executor and its listeners.

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
        """Search on validation classes, then the winners on test classes, then their ensembles; or a grid, and nothing
        else. Each result is stored as its trial ends. What the trials are for is recorded before they run.

        Returns the final results: baselines, losses, ensembles; or those of the grid.
        """
        account = self.account
        sweep(self.storage, account.store)
        self.record()
        with self.display:
            self.tell_winners(account.decided)
            self.dispatch(account.work)
        sweep(self.storage, account.store)
        results = account.stored(account.last)
        self.discard_weights(results)
        return results + account.stored(account.ensembles)

    def record(self) -> None:
        """Store what is known now of the request: the final runs of a loss are named when its search has ended."""
        self.account.store.put_experiment(self.account.record(self.origin["command"] or ""))

    @property
    def failures(self) -> list[Failure]:
        return self.recorder.failures

    def dispatch(self, work: Iterable[Work]) -> None:
        """Carry this out and what it leads to, as far as it is not stored."""
        account, work = self.account, list(work)
        first = account.needs([*work, *account.unnamed()])  # also of final runs whose values are not chosen yet
        self.agenda = Agenda(account, [*first, *work])
        self.expect()
        if not self.agenda.unfinished:
            return
        dataset, protocol = account.experiment.dataset.name, account.experiment.protocol.name
        with announced(self.storage, self.origin["command"] or "", dataset, protocol) as self.announced:
            self.announce()
            self.executor((self.job(work) if work else None for work in self.agenda), self.notify)

    def getting_ready(self) -> AbstractContextManager[None]:
        """Says to `harness status` and to the gauges that this run has not begun its trials, and how many there are."""
        account = self.account
        planned = {one.id: one for one in (*account.needs([*account.work, *account.unnamed()]), *account.work)}
        work = account.pending(planned.values())
        dataset, protocol = account.experiment.dataset.name, account.experiment.protocol.name
        unnamed = len(account.unnamed_work())
        self.census.expect(len(planned) + unnamed, len(work) + unnamed)
        return getting_ready(self.storage, self.origin["command"] or "", dataset, protocol, work, unnamed)

    def expect(self) -> None:
        """Tell the display and the census how much is left."""
        unnamed = len(self.account.unnamed_work())
        left = len(self.agenda.unfinished) + unnamed
        self.display.expect(left)
        self.census.expect(len({*self.agenda.work, *(one.id for one in self.account.work)}) + unnamed, left)

    def announce(self) -> None:
        if self.announced is not None:
            self.announced.update(self.agenda.work.values(), len(self.account.unnamed_work()))

    def wait(self, text: str) -> None:
        """Tell what trials wait for; "" when they wait no more."""
        if text:
            self.display.line(text)
        if self.announced is not None:
            self.announced.wait(text)

    def lose(self, work: Work) -> None:
        """Take note that a trial does not run any more, and has not ended: it waits until it starts again."""
        self.display.lose(work)
        self.census.lose(work)

    def tell_winners(self, losses: Collection[str]) -> None:
        for line in winners.lines(self.account, losses):
            self.display.line(line)

    def notify(self, work: Work, event: Event) -> None:
        listeners: Sequence[Listener] = (
            self.recorder,
            self.display.show,
            self.census.hear,
            *self.listeners,
            stop_on_disk_error,
        )
        for listener in listeners:
            listener(work, event)
        searching = set(self.account.searching)
        refused = self.agenda.hear(work, event)
        chosen = searching - self.account.searching
        if chosen:
            self.record()
            self.tell_winners(chosen)
            self.expect()
            self.announce()
        for failure in refused:
            self.notify(failure.work, failure)

    @cached_property
    def origin(self) -> dict[str, str | None]:
        return provenance.origin()

    def job(self, work: Work) -> Job:
        return self.measuring_job(work) if isinstance(work, Measurement) else self.training_job(work)

    def measuring_job(self, measurement: Measurement) -> Job:
        account = self.account
        runs = tuple(account.stored(measurement.runs))
        return Job(
            measurement.trial,
            account.experiment.dataset,
            self.storage.uri,
            plan=self.announced.id if self.announced else "",
            threads=self.threads,
            origin={**self.origin, "purpose": "ensemble"},
            needs=runs,
            measurement=measurement,
            class_names=account.store.class_names(runs[0]),
        )

    def training_job(self, trial: Trial) -> Job:
        experiment, account = self.account.experiment, self.account
        origin: dict[str, Any] = {**self.origin, "purpose": account.purpose(trial), "scheduler": experiment.scheduler}
        needs = tuple(account.stored(plan.needs(experiment, trial)))
        for need in needs:
            if need.trial.is_pretraining:
                origin["pretraining"] = {"id": need.id, "seconds": need.seconds["total"]}
            else:
                origin["teacher"] = cost_of_teacher(need, needs)
        return Job(
            trial,
            experiment.dataset,
            self.storage.uri,
            plan=self.announced.id if self.announced else "",
            threads=self.threads,
            sources=account.sources.get(trial.loss, {}),
            keep_weights=account.is_final(trial) and experiment.keep_weights != "none",
            teaches=trial.id in account.teachers,
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


def cost_of_teacher(teacher: Result, needs: Sequence[Result]) -> dict[str, Any]:
    """What a student's record says of its teacher. A pre-training that both start from is the student's own."""
    seconds = teacher.seconds["total"]
    if teacher.pretraining and teacher.pretraining["id"] not in {need.id for need in needs}:
        seconds += teacher.pretraining["seconds"]
    images = sum(row.get("images", 0) for row in teacher.curve)
    return {"id": teacher.id, "title": teacher.title, "seconds": seconds, "images": images}


def weights_of(run: Result) -> str:
    """The file of a run's weights in the storage."""
    return run.artifacts["weights"]["path"]
