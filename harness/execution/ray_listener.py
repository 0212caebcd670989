"""In the driver: passes the events that Tune receives from workers to our listener."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial as TuneTrial

from harness.execution.ray_scheduler import name_of
from harness.spec import Event, Failure, Job, Listener, Progress, Stopped, redacted
from harness.storage import Storage
from harness.storage import heartbeat as heartbeat_file


class TuneListener(tune.Callback):
    """Passes every event on. An exception in a listener, such as a full disk, stops the run."""

    def __init__(self, jobs: Mapping[str, Job], listener: Listener) -> None:
        self.jobs = jobs
        self.listener = listener
        self.ended: set[str] = set()
        self.last: dict[str, Progress] = {}
        self.broken: Exception | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its callbacks in order to resume; we do not resume from Tune

    def on_trial_result(self, iteration: int, trials: list, trial: TuneTrial, result: dict, **info: Any) -> None:
        event = result.pop("event", None)
        trial.last_result.pop("event", None)  # or Tune keeps it for the whole run
        if event is not None:
            self.pass_on(trial, event)

    def on_trial_complete(self, iteration: int, trials: list, trial: TuneTrial, **info: Any) -> None:
        """Completed without a result: a scheduler stopped it."""
        ours = self.jobs[name_of(trial)].trial
        if ours.id not in self.ended:
            last = self.last[ours.id]
            self.pass_on(trial, Stopped(ours, last.epoch, last.metrics))

    def on_trial_error(self, iteration: int, trials: list, trial: TuneTrial, **info: Any) -> None:
        """Its process or node died more often than --max-failures allows."""
        lines = Path(trial.error_file).read_text().splitlines(keepends=True) if trial.error_file else []
        error = f"its worker died {trial.num_failures} times (--max-failures)"
        job = self.jobs[name_of(trial)]
        last = Storage(job.storage).read_json(heartbeat_file(job.trial.id)) or {}
        self.pass_on(trial, Failure(job.trial, error, redacted("".join(lines[-40:])), last.get("log", "")))

    def pass_on(self, trial: TuneTrial, event: Event) -> None:
        ours = self.jobs[name_of(trial)].trial
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
