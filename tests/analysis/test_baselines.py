"""The baselines that belong to a trial, and which of them a loss ends below."""

from dataclasses import replace

import pytest

from harness.analysis.baselines import beaten_by, raw_pixels, untrained
from harness.spec import Result
from tests.factories import NETWORK, USUAL, a_trial, baseline, loss_row


def of_size(result: Result, side: int) -> Result:
    return replace(result, trial=replace(result.trial, resize=side, crop=side))


def test_the_untrained_network_sees_what_the_trial_sees() -> None:
    results = [*USUAL, of_size(baseline(NETWORK, 0.1), 32), baseline("pixels", 0.9)]
    assert [run.metrics["R@1"] for run in untrained(results, a_trial(epochs=7))] == [0.4]


def test_raw_pixels_are_of_the_trials_size_and_of_the_last_version() -> None:
    second = baseline("pixels", 0.3)
    second = replace(second, trial=replace(second.trial, loss_version=2))
    results = [second, *USUAL, of_size(baseline("pixels", 0.9), 32)]
    assert [run.metrics["R@1"] for run in raw_pixels(results, a_trial())] == [0.3]


@pytest.mark.parametrize(
    ("recalls", "expected"),
    [
        ((0.6,), {}),
        ((0.5,), {}),  # equal is not below
        ((0.45,), {"raw pixels": 0.5}),
        ((0.3,), {"the untrained network": 0.4, "raw pixels": 0.5}),
        ((0.3, 0.5), {"raw pixels": 0.5}),  # the mean over seeds counts
    ],
)
def test_a_loss_is_compared_with_both_baselines(recalls: tuple[float, ...], expected: dict[str, float]) -> None:
    runs = [loss_row("triplet", "Triplet", value, seed=seed) for seed, value in enumerate(recalls)]
    assert beaten_by(runs, [*USUAL[2:], *runs]) == expected


def test_without_a_baseline_of_its_setting_a_loss_is_below_nothing() -> None:
    runs = [loss_row("triplet", "Triplet", 0.1)]
    assert beaten_by(runs, runs) == {}
    assert beaten_by(runs, [of_size(one, 32) for one in USUAL[2:]]) == {}
    assert beaten_by([USUAL[3]], USUAL) == {}
