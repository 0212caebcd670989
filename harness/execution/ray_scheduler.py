"""ASHA among the search trials of one loss."""

from collections.abc import Mapping
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
        # folds compete separately too: an easy fold would push the others out
        self.rungs: dict[tuple[str, str], AsyncHyperBandScheduler] = {}
        for job in jobs.values():
            if job.validate:
                self.rungs.setdefault(
                    (job.trial.loss, job.trial.fold),
                    AsyncHyperBandScheduler(
                        time_attr="epoch",
                        metric=metric,
                        mode="max",
                        max_t=max(2, job.trial.last_epoch),
                        grace_period=1,
                        reduction_factor=2,
                        stop_last_trials=False,  # what reaches the end is evaluated like any other trial
                    ),
                )

    def _rung(self, trial: TuneTrial) -> AsyncHyperBandScheduler | None:
        job = self.jobs[name_of(trial)]
        return self.rungs.get((job.trial.loss, job.trial.fold)) if job.validate else None

    def on_trial_add(self, tune_controller: Any, trial: TuneTrial) -> None:
        if rung := self._rung(trial):
            rung.on_trial_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: TuneTrial, result: dict) -> str:
        rung = self._rung(trial)
        if rung is None or "epoch" not in result:
            return TrialScheduler.CONTINUE
        if result["epoch"] >= self.jobs[name_of(trial)].trial.last_epoch:  # it has trained in full: its result counts
            return TrialScheduler.CONTINUE
        return str(rung.on_trial_result(tune_controller, trial, result))
