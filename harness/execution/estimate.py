"""What a plan will cost: a few batches timed on this machine, the rest is multiplication."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice

import numpy as np
import torch

from harness.data import folds
from harness.spec import Dataset, Experiment, Job, Trial
from harness.storage import Storage
from harness.training.checkpoint import Checkpoint
from harness.training.feeding import feed
from harness.training.loop import fit
from harness.training.measuring import batches, embed
from harness.training.pretraining import pretraining_key
from harness.training.setup import main_stage, parameters, set_up

RESULT_BYTES = 6_000  # a stored result, roughly


def describe(trials: Sequence[Trial], experiment: Experiment) -> str:
    """One line: time and disk for these trials of an experiment."""
    if not trials:
        return "nothing to run"
    dataset, sources = experiment.dataset, {loss.name: loss.source for loss in experiment.losses}
    seconds, disk, pretrained, weights = 0.0, 0.0, {}, {}
    costs: dict[tuple, Cost] = {}
    for trial in trials:
        # the network decides what an image costs; losses differ by little
        key = (trial.backbone, trial.weights, trial.dim, trial.resize, trial.crop, trial.loss == "none")
        if key not in costs:
            source, file = sources.get(trial.loss, ""), experiment.weights_file
            costs[key] = probe(Job(trial, dataset, "", source=source, weights_file=file))
        cost = costs[key]
        train_images = dataset.train_images * (1 if trial.fold == "test" else 0.75)
        test_images = dataset.test_images if trial.fold == "test" else dataset.train_images * 0.25
        seconds += trial.epochs * train_images * cost.train + test_images * cost.evaluate
        if experiment.curves and trial.fold == "test":
            seconds += trial.epochs * (train_images + test_images) * cost.evaluate
        disk += RESULT_BYTES
        if trial.loss != "none" and trial.fold == "test":
            disk += 4 * cost.dim * dataset.test_images  # its embeddings
            which = trial.id if experiment.keep_weights == "all" else trial.loss
            weights[which] = 0 if experiment.keep_weights == "none" else 4 * cost.parameters
        if trial.pretrain_epochs and trial.loss != "none":
            once = trial.pretrain_epochs * train_images * cost.train
            pretrained[pretraining_key(trial)] = (once, 4 * cost.parameters)
    seconds += sum(once for once, _ in pretrained.values())
    disk += sum(size for _, size in pretrained.values()) + sum(weights.values())
    return f"about {timedelta(seconds=round(seconds))} one after another on this machine, {disk / 1e6:.1f} MB of disk"


@dataclass(frozen=True)
class Cost:
    """Seconds an image takes, and how large the model is."""

    train: float
    evaluate: float
    parameters: int
    dim: int


def probe(job: Job) -> Cost:
    """Time a few batches of a trial, on noise: loading costs next to nothing, and there may be no cache yet."""
    images, fold = noise(job.trial, job.dataset)
    setup, loss = set_up(job, images, fold)
    training = 0.0
    if loss is not None:
        stage = replace(main_stage(setup, loss), epochs=1)
        with tempfile.TemporaryDirectory() as folder:
            *_, last = islice(fit(setup, stage, Storage(folder), Checkpoint()), 2)
        training = 1 / last.images_per_second
    setup.model.eval()
    for _ in range(2):  # the first one warms up
        begun = time.perf_counter()
        for batch, _labels in feed(setup.device, batches(setup, fold.test[:128])):
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
