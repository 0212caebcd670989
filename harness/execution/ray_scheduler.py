"""ASHA among the search trials of one loss."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from ray.tune.experiment import Trial as TuneTrial
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, TrialScheduler

from harness.spec import Job


def name_of(trial: TuneTrial) -> str:
    return str(trial.config["trial"])


class PerLoss(FIFOScheduler):
    """Asynchronous successive halving in which a loss competes only with itself. Final runs are never stopped."""

    def __init__(self, jobs: Mapping[str, Job], metric: str) -> None:
        super().__init__()
        self.jobs = jobs
        self.select = metric
        self.rungs: dict[tuple[str, str], AsyncHyperBandScheduler] = {}

    def _rung(self, job: Job) -> AsyncHyperBandScheduler:
        """Made when it is first needed. Folds compete separately too: an easy fold would push the others out."""
        key = (job.trial.loss, job.trial.fold)
        if key not in self.rungs:
            self.rungs[key] = AsyncHyperBandScheduler(
                time_attr="epoch",
                metric=self.select,
                mode="max",
                max_t=max(2, job.trial.last_epoch),
                grace_period=1,
                reduction_factor=2,
                stop_last_trials=False,  # what reaches the end is evaluated like any other trial
            )
        return self.rungs[key]

    def on_trial_add(self, tune_controller: Any, trial: TuneTrial) -> None:
        job = self.jobs[name_of(trial)]
        if job.validate:
            self._rung(job).on_trial_add(tune_controller, competitor(job))

    def on_trial_result(self, tune_controller: Any, trial: TuneTrial, result: dict) -> str:
        job = self.jobs[name_of(trial)]
        if not job.validate or "epoch" not in result:
            return TrialScheduler.CONTINUE
        if result["epoch"] >= job.trial.last_epoch:  # it has trained in full: its result counts
            return TrialScheduler.CONTINUE
        return str(self._rung(job).on_trial_result(tune_controller, competitor(job), result))


def competitor(job: Job) -> Any:
    """What a rung knows of a trial. One that starts again is another one to Tune, and competes only once."""
    return SimpleNamespace(trial_id=job.trial.id)
