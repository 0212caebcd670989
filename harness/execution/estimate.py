"""What a plan will cost: a few batches timed on this machine, the rest is multiplication."""

import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch

from harness import plan
from harness.data import folds
from harness.execution.account import Account
from harness.execution.room import RESULT_BYTES
from harness.execution.text import duration
from harness.spec import VALIDATION_FOLDS, Dataset, Job, Trial
from harness.storage import Storage
from harness.training.checkpoint import Checkpoint
from harness.training.feeding import feed, plain
from harness.training.loop import fit
from harness.training.measuring import embed
from harness.training.setup import main_stage, parameters, set_up
from losses import torch_state


def describe(trials: Sequence[Trial], account: Account, threads: int) -> str:
    """One line: time and disk for these trials of a run."""
    if not trials:
        return "nothing to run"
    costs: dict[tuple, Cost] = {}
    shared: dict[str, tuple[float, float]] = {}  # seconds and bytes that several trials share
    seconds = disk = 0.0
    missing = {trial.id for trial in trials}
    methods = {loss.name for loss in account.experiment.losses if loss.head_dim}
    for trial in trials:
        if trial.is_pretraining:
            continue  # counted with the first trial that needs it, whose network is probed
        # the network decides what an image costs; losses differ by little, except those that build a part of it
        method = trial.loss if trial.loss in methods else ""
        key = (trial.backbone, trial.weights, trial.dim, trial.resize, trial.crop, trial.is_baseline, method)
        if key not in costs:
            costs[key] = probe(job_of(trial, account, threads))
        seconds += seconds_of(trial, account, costs[key])
        disk += RESULT_BYTES
        if trial.is_final:
            disk += 4 * costs[key].dim * account.experiment.dataset.test_images  # its embeddings
        shared |= shared_by(trial, account, costs[key], missing)
    seconds += sum(once for once, _ in shared.values())
    disk += sum(size for _, size in shared.values())
    return f"about {duration(seconds)} one after another on this machine, {disk / 1e6:.1f} MB of disk"


def job_of(trial: Trial, account: Account, threads: int) -> Job:
    experiment = account.experiment
    sources = account.sources.get(trial.loss, {})
    return Job(trial, experiment.dataset, "", threads, sources=sources, weights_file=experiment.weights_file)


def images_of(trial: Trial, dataset: Dataset) -> tuple[float, float]:
    """How many images a trial trains on, and how many it is evaluated on."""
    if trial.on_test:
        return dataset.train_images, dataset.test_images
    held_out = dataset.train_images / VALIDATION_FOLDS
    return dataset.train_images - held_out, held_out


def seconds_of(trial: Trial, account: Account, cost: "Cost") -> float:
    """Training and evaluation, also those after each epoch; without pre-training."""
    training, test = images_of(trial, account.experiment.dataset)
    evaluated_per_epoch = 0.0
    if account.draws_curves(trial):
        evaluated_per_epoch = training + test
    elif account.is_watched(trial) or account.selects_epochs(trial) or trial.checkpoint != "last":
        evaluated_per_epoch = test
    warmup = trial.warmup_epochs * training * cost.evaluate  # the trunk gets no gradient
    epochs = trial.last_epoch * (training * cost.train + evaluated_per_epoch * cost.evaluate)
    return warmup + epochs + test * cost.evaluate


def shared_by(trial: Trial, account: Account, cost: "Cost", missing: Collection[str]) -> dict[str, tuple[float, float]]:
    """What a trial shares with others, by a key: seconds and bytes of pre-training if it is among the ids of what is
    missing, bytes of the weights that stay."""
    shared: dict[str, tuple[float, float]] = {}
    size, keep = 4 * cost.parameters, account.experiment.keep_weights
    if trial.is_final and keep != "none":
        shared[f"weights {trial.id if keep == 'all' else trial.loss}"] = (0.0, size)
    for need in plan.needs(account.experiment, trial):
        if need.id in missing:
            training, _ = images_of(trial, account.experiment.dataset)
            shared[need.name] = (need.pretrain_epochs * training * cost.train, size + RESULT_BYTES)
    return shared


@dataclass(frozen=True)
class Cost:
    """Seconds an image takes, and how large the model is."""

    train: float
    evaluate: float
    parameters: int
    dim: int


def probe(job: Job) -> Cost:
    """Time a few batches of a trial, on noise: loading costs next to nothing, and there may be no cache yet."""
    with torch_state.usual(job.threads):
        return timed(job)


def timed(job: Job) -> Cost:
    images, fold = noise(job.trial, job.dataset)
    setup, loss = set_up(job, images, fold)
    training = 0.0
    if loss is not None:
        stage = replace(main_stage(setup, loss), epochs=1, plans=False)
        with tempfile.TemporaryDirectory() as folder:
            *_, last = islice(fit(setup, stage, Storage(folder), Checkpoint()), 2)
        training = 1 / last.images_per_second
    setup.model.eval()
    for _ in range(2):  # the first one warms up
        begun = time.perf_counter()
        for batch, _labels in feed(setup.device, plain(setup, fold.test[:128])):
            embed(setup, batch)
        evaluating = (time.perf_counter() - begun) / 128
    return Cost(training, evaluating, parameters(setup, loss), setup.model.dim)


def noise(trial: Trial, dataset: Dataset) -> tuple[folds.Images, folds.Fold]:
    """128 random images in place of a dataset with as many images and classes."""
    count, side = 128, trial.resize
    pixels = np.random.default_rng(0).integers(0, 256, count * side * side * 3, dtype=np.uint8)
    sides = np.full(count, side)
    seen, held_out = torch.arange(max(count, dataset.train_images)), torch.arange(max(count, dataset.test_images))
    images = folds.Images(pixels, np.arange(count) * side * side * 3, sides, sides, torch.zeros(count).long(), (), 0)
    labels, held_out_labels = seen % dataset.train_classes, held_out % dataset.test_classes
    return images, folds.Fold(seen % count, labels, held_out % count, held_out_labels)
