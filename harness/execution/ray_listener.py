"""In the driver: passes the events that Tune receives from workers to our listener."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial as TuneTrial

from harness.execution import heartbeat
from harness.execution.ray_scheduler import name_of
from harness.spec import Event, Failure, Job, Listener, Progress, Stopped, Trial, redacted
from harness.storage import Storage
from harness.storage import heartbeat as heartbeat_file

KILLED = re.compile(r"pid=(\d+), actual memory used=([\d.]+)GB")  # a worker, in Ray's account of a low memory
LOW_MEMORY = (
    "the memory of its node ran low {times} because of it (--max-failures); a larger --cpus-per-trial lets fewer "
    "trials run at once"
)


class TuneListener(tune.Callback):
    """Passes every event on. An exception in a listener, such as a full disk, stops the run.

    `deaths` counts, by the trial's id, how often its process died; several runs of Tune share it. What has not ended
    and may start again is left to the next run.
    """

    def __init__(self, jobs: Mapping[str, Job], listener: Listener, deaths: Counter[str], max_failures: int) -> None:
        self.jobs = jobs
        self.listener = listener
        self.deaths = deaths
        self.max_failures = max_failures
        self.ended: set[str] = set()
        self.restarting: set[str] = set()
        self.last: dict[str, Progress] = {}
        self.broken: Exception | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its callbacks in order to resume; we do not resume from Tune

    def on_trial_start(self, iteration: int, trials: list, trial: TuneTrial, **info: Any) -> None:
        self.restarting.discard(self.jobs[name_of(trial)].trial.id)

    def on_trial_result(self, iteration: int, trials: list, trial: TuneTrial, result: dict, **info: Any) -> None:
        event = result.pop("event", None)
        trial.last_result.pop("event", None)  # or Tune keeps it for the whole run
        if event is not None:
            self.pass_on(self.jobs[name_of(trial)].trial, event)

    def on_trial_complete(self, iteration: int, trials: list, trial: TuneTrial, **info: Any) -> None:
        """Completed without a result: a scheduler stopped it."""
        ours = self.jobs[name_of(trial)].trial
        if ours.id not in self.ended:
            last = self.last[ours.id]
            self.pass_on(ours, Stopped(ours, last.epoch, last.metrics))

    def on_trial_recover(self, iteration: int, trials: list, trial: TuneTrial, **info: Any) -> None:
        """Its process or node died; Tune starts it again."""
        ours = self.jobs[name_of(trial)].trial
        self.deaths[ours.id] += 1
        self.restarting.add(ours.id)

    def on_trial_error(self, iteration: int, trials: list, trial: TuneTrial, **info: Any) -> None:
        """Its process or node died, and Tune gives it up."""
        job = self.jobs[name_of(trial)]
        if job.trial.id not in self.restarting:  # else the same death again: Tune hears twice of one in its reset
            self.deaths[job.trial.id] += 1
        story = Path(trial.error_file).read_text() if trial.error_file else ""
        self.count(job, "its worker died {times} (--max-failures)", story)

    def on_low_memory(self, story: str) -> None:
        """Ray has killed workers because the memory of a node ran low, and Tune falls with them. Of these it counts as
        a death of the largest one."""
        beats = {beat.name: beat for beat in heartbeat.read(Storage(next(iter(self.jobs.values())).storage))}
        sizes = {int(pid): float(size) for pid, size in KILLED.findall(story)}
        running = [job for name, job in self.jobs.items() if job.trial.id not in self.ended and name in beats]
        killed = [job for job in running if beats[job.trial.name].pid in sizes]
        largest = sorted(killed, key=lambda job: sizes[beats[job.trial.name].pid])[-1:]
        for job in largest or running or list(self.jobs.values()):  # whoever is known
            if job.trial.id not in self.ended:
                self.deaths[job.trial.id] += 1
                self.count(job, LOW_MEMORY, story)

    def count(self, job: Job, error: str, story: str) -> None:
        """A failure, if its process died more often than --max-failures allows."""
        deaths = self.deaths[job.trial.id]
        if deaths > self.max_failures:
            times = f"{deaths} times" if deaths > 1 else "once"
            lines = redacted(story).splitlines(keepends=True)
            last = Storage(job.storage).read_json(heartbeat_file(job.trial.id)) or {}
            self.pass_on(
                job.trial, Failure(job.trial, error.format(times=times), "".join(lines[-40:]), last.get("log", ""))
            )

    def pass_on(self, ours: Trial, event: Event) -> None:
        if isinstance(event, Progress):
            if event.closes_epoch and event.stage == "train":
                self.last[ours.id] = event
        else:
            self.ended.add(ours.id)
        try:
            self.listener(ours, event)
        except Exception as error:
            self.broken = error
            raise
