"""Trials on the small dataset, as tests of training and of networks need them."""

from pathlib import Path
from typing import Any

import torch

from harness import config, plan
from harness.data import listing, loading
from harness.data.folds import fold
from harness.spec import Dataset, Experiment, Job, Progress, Result, Trial, finish
from harness.training import setup
from harness.training import trial as training


def trial(loss: str = "triplet", knobs: dict[str, Any] | None = None, **settings: Any) -> Trial:
    """A final run under the protocol `tiny`."""
    losses = (config.loss(loss),)
    experiment = Experiment(blobs(), config.protocol("tiny"), losses, settings=settings, knobs={loss: knobs or {}})
    return plan.final(experiment, {})[0]


def blobs() -> Dataset:
    return listing.identify(config.dataset("blobs"), Path())


def job(trial: Trial, storage: Path, **options: Any) -> Job:
    return Job(trial, blobs(), str(storage), threads=1, **options)


def set_up(trial: Trial) -> tuple[setup.TrialSetup, Any]:
    """Network and loss as they are when a trial begins."""
    images = loading.embedded(blobs())
    torch.manual_seed(setup.seed(trial, "weights"))
    return setup.set_up(Job(trial, blobs(), ""), images, fold(images, blobs(), trial.fold))


def run(trial: Trial, storage: Path, **options: Any) -> tuple[Result, list[Progress]]:
    """The result of a trial, and what it reported."""
    reports: list[Progress] = []
    return finish(training.run(job(trial, storage, **options)), reports.append), reports


def run_until(trial: Trial, storage: Path, stage: str, epoch: int, **options: Any) -> None:
    """Run a trial to the end of an epoch, then break it off."""
    running = training.run(job(trial, storage, **options))
    for event in running:
        if event.closes_epoch and (event.stage, event.epoch) == (stage, epoch):
            break
    running.close()
