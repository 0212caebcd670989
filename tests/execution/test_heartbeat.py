"""Heartbeats: written beside the training, and true when training hangs."""

import threading
from pathlib import Path
from typing import Any

import pytest

from harness import config
from harness.execution import announcement, heartbeat
from harness.execution.heartbeat import Heart
from harness.spec import Job, Progress, StorageError
from harness.storage import Storage
from tests.factories import a_trial

PROGRESS = Progress("train", 1, 4, 2, 10, 0.5, 100.0, 3.0)


def job_in(folder: Path) -> Job:
    return Job(a_trial(), config.dataset("emoji"), str(folder), plan="p")


def test_it_says_when_the_trial_was_last_heard_not_when_it_was_written(tmp_path: Path) -> None:
    """Else a training that hangs would look alive for ever."""
    storage, job = Storage(str(tmp_path)), job_in(tmp_path)
    heart = Heart(storage, job)
    heart.end()  # its first beat has been written; from here on it beats by hand
    (begun,) = heartbeat.read(storage)
    assert begun.position == "starting"
    heart.hear(PROGRESS)
    heard = heart.heard[0]
    heart.beat()
    (beat,) = heartbeat.read(storage)
    assert beat.time == heard
    assert "epoch 1/4" in beat.position
    storage.remove(f"running/{job.trial.id}.json")
    heart.beat()
    assert heartbeat.read(storage) == []  # nothing new was heard


def test_training_does_not_wait_for_a_storage_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, released = threading.Event(), threading.Event()

    def hang(*_: Any) -> None:
        hangs.set()
        assert released.wait(60)

    monkeypatch.setattr(Storage, "write_json", hang)
    heart = Heart(Storage(str(tmp_path)), job_in(tmp_path))
    assert hangs.wait(60)
    heart.hear(PROGRESS)  # returns
    assert not released.is_set()
    released.set()
    heart.end()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), StorageError("no answer")])
def test_one_that_cannot_be_written_fails_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(Storage, "write_json", fail)
    heart = Heart(Storage(str(tmp_path)), job_in(tmp_path))
    heart.beat()
    heart.end()


def test_signs_of_life_are_rare_on_an_object_store_and_a_trial_is_lost_long_after_several(tmp_path: Path) -> None:
    bucket, folder = Storage("memory://bench"), Storage(str(tmp_path))
    assert heartbeat.interval(folder) == 1
    assert heartbeat.interval(bucket) == 20
    heart = Heart(bucket, job_in(tmp_path))
    heart.end()
    assert heart.pulse.seconds == 20
    plan = announcement.Announced(bucket, "harness run", "emoji", "quick")
    assert plan.pulse.seconds == 20
    assert plan.pulse.seconds * 5 < announcement.SILENCE
    assert heartbeat.interval(bucket) * 10 < heartbeat.SILENCE
