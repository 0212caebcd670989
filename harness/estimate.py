"""What a plan will cost: a few batches timed on this machine, the rest is multiplication."""

from collections.abc import Sequence
from datetime import timedelta

from harness import train
from harness.spec import Experiment, Job, Trial

RESULT_BYTES = 6_000  # a stored result, roughly


def describe(trials: Sequence[Trial], experiment: Experiment) -> str:
    """One line: time and disk for these trials of an experiment."""
    if not trials:
        return "nothing to run"
    dataset, sources = experiment.dataset, {loss.name: loss.source for loss in experiment.losses}
    seconds, disk, pretrained, weights = 0.0, 0.0, {}, {}
    costs: dict[tuple, train.Cost] = {}
    for trial in trials:
        # the network decides what an image costs; losses differ by little
        key = (trial.backbone, trial.weights, trial.dim, trial.resize, trial.crop, trial.loss == "none")
        if key not in costs:
            source, file = sources.get(trial.loss, ""), experiment.weights_file
            costs[key] = train.probe(Job(trial, dataset, "", source=source, weights_file=file))
        cost = costs[key]
        train_images = dataset.train_images * (1 if trial.fold == "test" else 0.75)
        test_images = dataset.test_images if trial.fold == "test" else dataset.train_images * 0.25
        seconds += trial.epochs * train_images * cost.train + test_images * cost.evaluate
        disk += RESULT_BYTES
        if trial.loss != "none" and trial.fold == "test":
            disk += 4 * cost.dim * dataset.test_images  # its embeddings
            which = trial.id if experiment.keep_weights == "all" else trial.loss
            weights[which] = 0 if experiment.keep_weights == "none" else 4 * cost.parameters
        if trial.pretrain_epochs and trial.loss != "none":
            once = trial.pretrain_epochs * train_images * cost.train
            pretrained[train.pretraining_key(trial)] = (once, 4 * cost.parameters)
    seconds += sum(once for once, _ in pretrained.values())
    disk += sum(size for _, size in pretrained.values()) + sum(weights.values())
    return f"about {timedelta(seconds=round(seconds))} one after another on this machine, {disk / 1e6:.1f} MB of disk"
