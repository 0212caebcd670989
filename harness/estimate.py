"""What a plan will cost: a few batches timed on this machine, the rest is multiplication."""

from collections.abc import Sequence
from datetime import timedelta

from harness import train
from harness.spec import Dataset, Trial

RESULT_BYTES = 6_000  # a stored result, roughly


def describe(trials: Sequence[Trial], dataset: Dataset) -> str:
    """One line: time and disk for these trials."""
    if not trials:
        return "nothing to run"
    seconds, pretrained = 0.0, {}
    costs: dict[tuple, train.Cost] = {}
    for trial in trials:
        # the network decides what an image costs; losses differ by little
        key = (trial.backbone, trial.weights, trial.dim, trial.resize, trial.crop, trial.loss == "none")
        if key not in costs:
            costs[key] = train.probe(trial, dataset)
        cost = costs[key]
        train_images = dataset.train_images * (1 if trial.fold == "test" else 0.75)
        test_images = dataset.test_images if trial.fold == "test" else dataset.train_images * 0.25
        seconds += trial.epochs * train_images * cost.train + test_images * cost.evaluate
        if trial.pretrain_epochs and trial.loss != "none":
            pretrained[train.pretraining_key(trial)] = (
                trial.pretrain_epochs * train_images * cost.train,
                4 * cost.parameters,
            )
    seconds += sum(once for once, _ in pretrained.values())
    disk = len(trials) * RESULT_BYTES + sum(size for _, size in pretrained.values())
    return f"about {timedelta(seconds=round(seconds))} on this machine, {disk / 1e6:.1f} MB of disk"
