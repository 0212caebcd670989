"""What a run counts of its trials while it runs, and the thread that exports it."""

import threading

import pytest

from harness.execution import pace
from harness.execution.census import Census
from harness.execution.pulse import Pulse
from harness.spec import Failure, Progress, Stopped
from tests.factories import a_result, a_trial


def progress(speed: float) -> Progress:
    return Progress("train", 1, 4, 1, 10, 0.5, speed, 9.0)


def counts(census: Census) -> tuple[int, int, int, int]:
    return census.done, census.running, census.waiting, census.failed


def test_a_trial_is_waiting_then_running_then_done_or_failed() -> None:
    trials = [a_trial(seed=seed) for seed in range(4)]
    census = Census()
    census.expect(total=6, left=4)  # two are stored
    assert counts(census) == (2, 0, 4, 0)
    for trial in trials[:3]:
        census.hear(trial, progress(10.0))
    assert counts(census) == (2, 3, 1, 0)
    census.hear(trials[0], a_result(trials[0]))
    census.hear(trials[1], Failure(trials[1], "its loss is nan", ""))
    census.hear(trials[2], Stopped(trials[2], 1, {}))
    assert counts(census) == (4, 0, 1, 1)
    census.hear(trials[3], Failure(trials[3], "not run: what it needs failed", ""))  # it has never begun
    assert counts(census) == (4, 0, 0, 2)


def test_a_trial_whose_process_died_waits_and_its_speed_and_hours_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    trial, now = a_trial(), 0.0
    monkeypatch.setattr(pace.time, "monotonic", lambda: now)
    census = Census()
    census.expect(total=1, left=1)
    census.hear(trial, progress(100.0))
    now = 3600.0
    census.hear(trial, progress(100.0))
    now = 3630.0  # Ray notices it late
    census.lose(trial)
    now = 7200.0
    assert counts(census) == (0, 0, 1, 0)
    assert (census.images_per_second, census.hours) == (0.0, 1.0)
    census.hear(trial, progress(50.0))
    now = 9000.0
    assert (counts(census), census.images_per_second, census.hours) == ((0, 1, 0, 0), 50.0, 1.5)


def test_what_a_search_adds_counts_as_waiting() -> None:
    trial = a_trial()
    census = Census()
    census.expect(total=1, left=1)
    census.hear(trial, a_result(trial))
    census.expect(total=3, left=2)
    assert counts(census) == (1, 0, 2, 0)


def test_speed_is_that_of_running_trials_and_hours_are_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = a_trial(seed=0), a_trial(seed=1)
    now = 0.0
    monkeypatch.setattr(pace.time, "monotonic", lambda: now)
    census = Census()
    census.hear(first, progress(100.0))
    census.hear(second, progress(40.0))
    now = 1800.0
    census.hear(second, progress(50.0))
    assert census.images_per_second == 150.0
    assert census.hours == pytest.approx(1.0)
    census.hear(first, a_result(first))
    now = 3600.0
    assert census.images_per_second == 50.0
    assert census.hours == pytest.approx(1.5)


def test_a_pulse_beats_until_it_is_over() -> None:
    beats, enough = [], threading.Event()

    def beat() -> None:
        beats.append(threading.current_thread())
        if len(beats) == 3:
            enough.set()

    pulse = Pulse(beat, 0.001)
    pulse.start()
    assert enough.wait(60)
    pulse.end()
    assert not pulse.thread.is_alive()
    assert threading.current_thread() not in beats
