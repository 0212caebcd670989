"""In the driver: passes the events that Tune receives from workers to our listener."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial as TuneTrial

from harness.execution import heartbeat
from harness.execution.ray_deaths import Deaths
from harness.execution.ray_nodes import is_starting_nodes
from harness.execution.ray_preparation import UnfitNodeError, candidates
from harness.execution.ray_scheduler import name_of
from harness.execution.ray_searcher import JobQueue
from harness.spec import Event, Failure, Job, Listener, Progress, Stopped, Work, redacted
from harness.storage import Storage
from harness.storage import heartbeat as heartbeat_file

UNFIT = re.compile(rf"{UnfitNodeError.__name__}: (.*)")
KILLED = re.compile(r"pid=(\d+), actual memory used=([\d.]+)GB")  # a worker, in Ray's account of a low memory
LOW_MEMORY = (
    "the memory of its node ran low {times} because of it (--max-failures); a larger --cpus-per-trial lets fewer "
    "trials run at once"
)


class TuneListener(tune.Callback):
    """Passes every event on. An exception in a listener, such as a full disk, stops the run.

    A trial whose process or node died is given to the queue again, unless its process died more often than
    --max-failures. Whether it was the node shows later: a trial that may have died too often is held until then.
    """

    def __init__(
        self, queue: JobQueue, listener: Listener, max_failures: int, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self.queue = queue
        self.listener = listener
        self.max_failures = max_failures
        self.deaths = Deaths(say)
        self.held: set[str] = set()  # names of trials that start again only if it was their node
        self.nodes: dict[str, str] = {}  # name of a running trial -> the id of its node
        self.resources: dict[str, float] = {}  # what a trial needs
        self.tell_lost: Callable[[Work], None] = lambda work: None
        queue.on_ask = self.decide
        self.last: dict[str, Progress] = {}
        self.broken: Exception | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its callbacks in order to resume; we do not resume from Tune

    def on_step_begin(self, iteration: int, trials: list, **info: Any) -> None:
        """Tune asks the queue only while a job may follow."""
        self.decide()

    def on_trial_result(self, iteration: int, trials: list, trial: TuneTrial, result: dict, **info: Any) -> None:
        self.nodes[name_of(trial)] = result["node"]
        event = result.pop("event", None)
        trial.last_result.pop("event", None)  # or Tune keeps it for the whole run
        if event is not None:
            self.pass_on(self.queue.known[name_of(trial)].work, event)

    def on_trial_complete(self, iteration: int, trials: list, trial: TuneTrial, **info: Any) -> None:
        """Completed without a result: a scheduler stopped it."""
        name = name_of(trial)
        if name in self.queue.open:
            last = self.last[name]
            ours = self.queue.known[name].trial  # a measurement is never stopped
            self.pass_on(ours, Stopped(ours, last.epoch, last.metrics))
        forget_job(trial)

    def on_trial_error(self, iteration: int, trials: list, trial: TuneTrial, **info: Any) -> None:
        """Its process or node died: Tune gives it up, and the queue suggests it again. A process that dies after the
        trial's result has arrived takes nothing away."""
        name = name_of(trial)
        node = self.nodes.pop(name, None)
        if name in self.queue.open:
            self.queue.died(name)
            self.tell_lost(self.queue.known[name].work)
            story = Path(trial.error_file).read_text() if trial.error_file else ""
            unfit = UNFIT.search(story)
            if unfit and node:
                self.avoid(name, node, unfit[1])
                forget_job(trial)
                return
            self.deaths.add(name, node, story)
            if self.deaths.possible(name) > self.max_failures:
                self.held.add(name)
            else:
                self.queue.start_again(name)
        forget_job(trial)

    def avoid(self, name: str, node: str, problem: str) -> None:
        """Start a trial again on another node than the one that it found unfit, if there is one or one is to come."""
        self.queue.unfit.add(node)
        rooms = {one.id for one in candidates(self.resources.get("CPU", 0), self.resources.get("GPU", 0))}
        if rooms - self.queue.unfit or is_starting_nodes():
            self.queue.start_again(name)
        else:
            ours = self.queue.known[name].trial
            self.pass_on(ours, Failure(ours, f"no node is fit for it: {problem}", ""))

    def decide(self) -> None:
        """Give up what died too often, and start again what was held back and lost its node."""
        for death in self.deaths.decide():
            if death.name in self.held:
                self.count(self.queue.known[death.name], "its worker died {times} (--max-failures)", death.story)
                if death.name not in self.queue.open or self.deaths.possible(death.name) <= self.max_failures:
                    self.held.discard(death.name)
                    if death.name in self.queue.open:
                        self.queue.start_again(death.name)

    def on_low_memory(self, story: str) -> None:
        """Ray has killed workers because the memory of a node ran low, and Tune falls with them. Of these it counts as
        a death of the largest one."""
        unfinished = [job for name, job in self.queue.known.items() if name in self.queue.open]
        beats = {beat.name: beat for beat in heartbeat.read(Storage(unfinished[0].storage))} if unfinished else {}
        for job in unfinished:
            self.tell_lost(job.work)
        sizes = {int(pid): float(size) for pid, size in KILLED.findall(story)}
        running = [job for job in unfinished if job.work.name in beats]
        killed = [job for job in running if beats[job.work.name].pid in sizes]
        largest = sorted(killed, key=lambda job: sizes[beats[job.work.name].pid])[-1:]
        for job in largest or running or unfinished:  # whoever is known
            self.deaths.counted[job.work.name] += 1
            self.count(job, LOW_MEMORY, story)

    def count(self, job: Job, error: str, story: str) -> None:
        """A failure, if its process died more often than --max-failures allows."""
        deaths = self.deaths.counted[job.work.name]
        if deaths > self.max_failures:
            times = f"{deaths} times" if deaths > 1 else "once"
            lines = redacted(story).splitlines(keepends=True)
            last = Storage(job.storage).read_json(heartbeat_file(job.work.id)) or {}
            self.pass_on(
                job.work, Failure(job.work, error.format(times=times), "".join(lines[-40:]), last.get("log", ""))
            )

    def pass_on(self, ours: Work, event: Event) -> None:
        if isinstance(event, Progress):
            if event.closes_epoch and event.stage == "train":
                self.last[ours.name] = event
        else:
            self.queue.end(ours.name)
            self.last.pop(ours.name, None)
            self.nodes.pop(ours.name, None)
        try:
            self.listener(ours, event)
        except Exception as error:
            self.broken = error
            raise


def forget_job(trial: TuneTrial) -> None:
    """Tune keeps the configurations of all trials for the whole run."""
    trial.config.pop("job", None)
    trial.evaluated_params.pop("job", None)
