"""The baselines of a comparison, raw pixels and the untrained network, and which of them a loss ends below."""

from collections.abc import Iterable, Sequence

from harness.analysis.results import score, telling_settings
from harness.spec import Result, Trial

PIXEL_SETTINGS = ("resize", "aspect", "crop")  # what tells raw pixels apart
FIRST_RECALL = "R@1"  # every record has it


def untrained(results: Iterable[Result], trial: Trial) -> list[Result]:
    """The network of a trial before training, on test classes: it sees what the trial sees."""
    return [
        result
        for result in results
        if result.trial.is_baseline and not result.trial.is_pixels and result.trial.on_test
        if all(getattr(result.trial, name) == getattr(trial, name) for name in telling_settings(result.trial))
    ]


def raw_pixels(results: Iterable[Result], trial: Trial) -> list[Result]:
    """The images that a trial sees, without a network, on test classes; of several versions the last."""
    pixels = [
        result
        for result in results
        if result.trial.is_pixels and result.trial.on_test
        if all(getattr(result.trial, name) == getattr(trial, name) for name in PIXEL_SETTINGS)
    ]
    return sorted(pixels, key=lambda result: result.trial.loss_version)[-1:]


def beaten_by(runs: Sequence[Result], results: Sequence[Result]) -> dict[str, float]:
    """The baselines among `results`, which are of one dataset, that are better by the first Recall than a loss: what
    they are called, and their mean. `runs`: the seeds of the loss on test classes."""
    trial, mine = runs[0].trial, score(runs, FIRST_RECALL).score
    if trial.is_baseline:
        return {}
    baselines = {
        "the untrained network": untrained(results, trial),
        "raw pixels": raw_pixels(results, trial),
    }
    means = {name: score(measured, FIRST_RECALL).score for name, measured in baselines.items() if measured}
    return {name: mean for name, mean in means.items() if mean > mine}
