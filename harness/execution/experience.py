"""What trials like those of a plan have cost on this machine, by the results that are stored."""

import platform
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from statistics import median

from harness.analysis.selection import finished
from harness.execution.room import network_of
from harness.spec import VALIDATION_FOLDS, Dataset, Result, Trial

LATEST = 10  # so many of the latest results are looked at: machines and libraries change


@dataclass(frozen=True)
class Cost:
    """Seconds an image takes, and how large the model is."""

    train: float
    evaluate: float
    parameters: int
    dim: int
    runs: int = 0  # stored results that it comes from; 0: it was timed


def kind(trial: Trial) -> tuple:
    """What decides the cost of an image: the network. Losses differ by little."""
    return (trial.backbone, trial.weights, trial.dim, trial.resize, trial.crop, trial.is_baseline)


def learned(
    trial: Trial, dataset: Dataset, results: Iterable[Result], threads: int, methods: Collection[str] = ()
) -> Cost | None:
    """The cost by stored results of the same network and the same threads on this machine, on the same dataset: with
    the number of images, the cost of k-means changes. None if there are none. `methods`: losses that build a part of
    the network, which say nothing of others."""
    like = [
        result
        for result in results
        if kind(result.trial) == kind(trial)
        if result.trial.loss == trial.loss or not {result.trial.loss, trial.loss} & set(methods)
        if (result.trial.dataset, result.trial.on_test) == (trial.dataset, trial.on_test) and result.is_single
        if result.provenance.get("node") == platform.node() and result.provenance.get("threads") == threads
    ]
    latest = sorted(like, key=finished)[-LATEST:]
    if not latest:
        return None
    _, held_out = images_of(trial, dataset)
    trained = [speed for result in latest for speed in training(result)]
    evaluated = [result.seconds.get("evaluate", 0.0) / held_out for result in latest]
    if not trial.is_baseline and not trained:
        return None
    parameters = max(result.parameters for result in latest)
    dim = 0 if trial.is_baseline else trial.dim or network_of(trial).dim
    return Cost(median(trained) if trained else 0.0, median(evaluated), parameters, dim, len(latest))


def training(result: Result) -> Iterator[float]:
    """Seconds per image of the trial's own stage."""
    images = sum(row.get("images", 0) for row in result.curve if row["epoch"])
    if images and result.seconds.get("train"):
        yield result.seconds["train"] / images


def images_of(trial: Trial, dataset: Dataset) -> tuple[float, float]:
    """How many images a trial trains on, and how many it is evaluated on."""
    if trial.on_test:
        return dataset.train_images, dataset.test_images
    held_out = dataset.train_images / VALIDATION_FOLDS
    return dataset.train_images - held_out, held_out
