"""What a plan will cost: by stored results like its trials or, without any, by a few batches timed on this machine."""

import math
import os
import platform
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median

import numpy as np
import torch

from harness import plan
from harness.data import folds
from harness.execution.account import Account
from harness.execution.experience import Cost, images_of, kind, learned
from harness.execution.room import RESULT_BYTES
from harness.execution.text import duration
from harness.request import Request
from harness.spec import Dataset, Job, Measurement, Result, Trial, Work
from harness.storage import Storage
from harness.training.checkpoint import Checkpoint
from harness.training.feeding import feed, plain
from harness.training.loop import fit
from harness.training.measuring import embed
from harness.training.setup import main_stage, parameters, set_up
from losses import torch_state

PATIENCE = 10.0  # seconds, after which no more networks are timed


@dataclass(frozen=True)
class Estimate:
    """Seconds and bytes of a plan, and where they come from."""

    seconds: float  # with as many trials at once as fit
    at_once: int  # trials
    disk: float
    learned: int  # stored results that the costs come from
    timed: int  # kinds of networks that were timed now, for want of such results

    def __str__(self) -> str:
        trials = f"{self.at_once} trials at once" if self.at_once > 1 else "one trial at a time"
        words = (
            f"about {duration(max(1.0, self.seconds))} with {trials} on this machine, {self.disk / 1e6:.1f} MB of disk"
        )
        if not self.timed:
            return f"{words}\nRough, from {self.learned} stored results like these: other work here makes it slower."
        return f"{words}\nVery rough, from a few batches timed now: k-means or other work here may double it."


def describe(work: Sequence[Work], account: Account, threads: int, at_once: int) -> Estimate:
    """Time and disk for this part of a run, `at_once` at a time."""
    dataset, results = account.experiment.dataset, account.store.results()[0]
    trials = [one for one in work if not isinstance(one, Measurement)]
    ensembles = [one for one in work if isinstance(one, Measurement)]
    costs: dict[tuple, Cost] = {}
    shared: dict[str, tuple[float, float]] = {}  # seconds and bytes that several trials share
    seconds, disk = [0.0], 0.0
    missing = {trial.id for trial in trials}
    methods = {loss.name for loss in account.experiment.losses if loss.head_dim}
    begun = time.monotonic()

    def cost_of(trial: Trial) -> Cost:
        # losses differ by little, except those that build a part of the network
        key = (*kind(trial), trial.loss if trial.loss in methods else "", trial.on_test)
        if key not in costs:
            known = learned(trial, dataset, results, threads, methods)
            is_late = time.monotonic() - begun > PATIENCE
            costs[key] = known or timed_once(job_of(trial, account, threads), costs, key, is_late=is_late)
        return costs[key]

    # a loss's network says what a baseline's costs, and, when time is up, what a method's costs at least
    for trial in sorted(trials, key=lambda trial: (trial.is_baseline, trial.loss in methods)):
        if trial.is_pretraining:
            continue  # counted with the first trial that needs it, whose network is probed
        cost = cost_of(trial)
        seconds.append(seconds_of(trial, account, cost))
        disk += RESULT_BYTES
        if trial.is_final:
            disk += 4 * cost.dim * dataset.test_images  # its embeddings
        shared |= shared_by(trial, account, cost, missing)
    for ensemble in ensembles:
        evaluated = dataset.test_images * cost_of(ensemble.trial).evaluate
        seconds.append(seconds_of_ensemble(ensemble, results, threads) or networks_joined(ensemble) * evaluated)
        disk += RESULT_BYTES
    pretraining = [0.0, *(once for once, _ in shared.values())]  # they run at once too, but before what needs them
    together = max((sum(seconds) + sum(pretraining)) / at_once, max(seconds) + max(pretraining))
    disk += sum(size for _, size in shared.values())
    timed = sum(not cost.runs for cost in costs.values())
    return Estimate(together, at_once, disk, sum(cost.runs for cost in costs.values()), timed)


def timed_once(job: Job, costs: Mapping[tuple, Cost], key: tuple, *, is_late: bool) -> Cost:
    """The cost by timing. What was timed of a network counts for all its trials; raw pixels cost next to nothing.
    When it is late, the dearest network so far stands for those that were not timed."""
    if job.trial.is_pixels:
        return Cost(0.0, 0.0, 0, 0)
    network = len(kind(job.trial)) - 1  # whether it is a baseline's does not matter, which method's it is does
    same = [cost for other, cost in costs.items() if (other[:network], other[-2]) == (key[:network], key[-2])]
    timed = [cost for cost in same if not cost.runs]
    if not timed and is_late:
        timed = sorted((cost for cost in costs.values() if cost.train), key=lambda cost: -cost.train)
    return timed[0] if timed else probe(job)


def trials_at_once(request: Request, trials: int) -> int:
    """How many trials fit on this machine; of a cluster no more is known."""
    if request.executor == "local":
        return 1
    fit = (os.cpu_count() or 1) // request.cpus_per_trial
    gpus = torch.cuda.device_count()
    per_trial = min(gpus, 1) if request.gpus_per_trial is None else request.gpus_per_trial
    if per_trial:
        fit = min(fit, gpus / per_trial)
    return max(1, min(int(fit), trials, request.max_concurrent or trials))


def job_of(trial: Trial, account: Account, threads: int) -> Job:
    experiment = account.experiment
    sources = account.sources.get(trial.loss, {})
    return Job(trial, experiment.dataset, "", threads, sources=sources, weights_file=experiment.weights_file)


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
        if not need.is_pretraining:
            shared[f"teacher {need.id}"] = (0.0, size)  # it is a trial of its own, and as large
        elif need.id in missing:
            training, _ = images_of(trial, account.experiment.dataset)
            shared[need.name] = (need.pretrain_epochs * training * cost.train, size + RESULT_BYTES)
    return shared


def seconds_of_ensemble(ensemble: Measurement, results: Iterable[Result], threads: int) -> float:
    """By the ensembles of the same dataset and network that were measured on this machine; 0 if there are none."""
    like = [
        result.seconds["total"] / networks_joined(result)
        for result in results
        if result.is_ensemble and kind(result.trial) == kind(ensemble.trial)
        if result.trial.dataset == ensemble.dataset
        if result.provenance.get("node") == platform.node() and result.provenance.get("threads") == threads
    ]
    return median(like) * networks_joined(ensemble) if like else 0.0


def networks_joined(ensemble: Measurement | Result) -> int:
    """In all subsets together: what an ensemble costs grows with it."""
    members = ensemble.runs if isinstance(ensemble, Measurement) else ensemble.members
    return math.comb(len(members), ensemble.ensemble) * ensemble.ensemble


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
        teacher = torch.no_grad()(setup.model.embed) if job.trial.teacher else None  # a network as large
        with tempfile.TemporaryDirectory() as folder:
            *_, last = islice(fit(replace(setup, teacher=teacher), stage, Storage(folder), Checkpoint()), 2)
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
