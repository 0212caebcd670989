"""The gauges of a worker: of the trial that it is at, and of no other one."""

from typing import Any

import pytest

from harness import config
from harness.execution import ray_metrics
from harness.execution.ray_metrics import TrialGauges
from harness.spec import Job, Progress
from tests.factories import a_trial


class FakeGauge:
    """Counts how often it is set."""

    def __init__(self, *_: object, **__: object) -> None:
        self.times = 0
        self.tags: dict[str, str] = {}

    def set(self, value: float, tags: dict[str, str]) -> None:
        self.times += 1
        self.tags = tags


def test_the_gauges_of_a_trial_that_was_stopped_are_not_set_again_while_its_worker_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker hears nothing of a trial that a scheduler stops between two steps."""
    now = 1000.0
    monkeypatch.setattr(ray_metrics, "Gauge", FakeGauge)
    monkeypatch.setattr(ray_metrics.time, "monotonic", lambda: now)
    gauges = TrialGauges()
    loss: Any = gauges.gauges["loss"]
    with gauges.at_work():
        gauges.begin(Job(a_trial(), config.dataset("emoji"), ""))
        gauges.hear(Progress("train", 1, 4, 10, 10, 0.5, 100.0, 9.0))
        now += 600  # a long step: a trial that is quiet does not vanish
        gauges.export()
    now += 10  # the driver takes its time
    gauges.export()
    assert loss.times == 2
    now += 30
    gauges.export()
    assert loss.times == 2
    with gauges.at_work():  # it was the driver, after all
        gauges.export()
    assert loss.times == 3


def test_the_gauges_of_a_trial_carry_its_name_loss_dataset_purpose_and_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_metrics, "Gauge", FakeGauge)
    gauges = TrialGauges()
    trial = a_trial(fold="val0")
    gauges.begin(Job(trial, config.dataset("emoji"), "", origin={"purpose": "search"}))
    gauges.hear(Progress("train", 1, 4, 10, 10, 0.5, 100.0, 9.0, metrics={"R@1": 0.5}))
    gauges.export()
    expected = {"trial": trial.name, "loss": "triplet", "dataset": "emoji", "purpose": "search", "fold": "val0"}
    set_: list[Any] = list(gauges.gauges.values())
    assert [gauge.tags for gauge in set_] == 3 * [expected]
    assert set(ray_metrics.TAGS) == expected.keys()
