"""`harness status` after interruptions and deaths, with damaged files, and what the next run sweeps up."""

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.execution import announcement, heartbeat, local, status
from harness.execution.leftovers import sweep
from harness.execution.run import Executor
from harness.spec import Event, Job, Listener, Progress, Trial
from harness.storage import Storage, checkpoint
from harness.store import PART_AGE, Store
from tests.conftest import Harness
from tests.execution.plans import dead_process, write_heartbeat, write_plan
from tests.execution.test_run import a_run, experiment, made_up
from tests.factories import a_result, a_trial
from tests.processes import until

RUN = ["run", "--losses", "triplet", "--dataset", "blobs"]


def status_of(folder: Path) -> list[str]:
    store = Store(folder / "results")
    return status.describe(store, Storage(str(store.artifacts)))[0].splitlines()


# --- drivers that end too early ---


@pytest.mark.fault("Ctrl-C in training, then harness status", "interrupted, how many trials are left, the same command")
def test_an_interrupted_run_says_what_is_left(
    small: Path, tmp_path: Path, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(jobs: Iterable[Job | None], listener: Listener, device: str | None = None) -> None:
        def pass_on(trial: Trial, event: Event) -> None:
            listener(trial, event)
            if trial.loss == "triplet" and isinstance(event, Progress) and event.closes_epoch:
                raise KeyboardInterrupt

        real(jobs, pass_on, device)

    real = local.execute
    with monkeypatch.context() as patched:
        patched.setattr(local, "execute", interrupt)
        assert harness(*RUN, "--set", "epochs=2").code == 130
    said = harness("status")
    assert said.code == 0
    first, second = said.out.splitlines()
    assert first == "blobs · tiny: 2 trials stored, none running"
    assert second.startswith("  interrupted 0:0")
    assert "1 trial left; to continue, run: harness run --losses triplet --dataset blobs" in second
    again = harness(*RUN, "--set", "epochs=2")
    assert again.code == 0
    assert "epoch 1/2" not in again.err  # its checkpoint was kept
    assert harness("status").out == "blobs · tiny: 3 trials stored, none running\n"
    artifacts = tmp_path / "results" / "artifacts"
    assert not [file for folder in ("plans", "running", "checkpoints") for file in (artifacts / folder).iterdir()]


@pytest.mark.fault(
    "a driver killed on this node, or silent on another one; its workers' heartbeats are still fresh",
    "its trials are not called running; how many are left",
)
@pytest.mark.parametrize(
    ("driver", "words"),
    [
        (lambda: {"pid": dead_process()}, "no sign of life of the driver on"),
        (lambda: {"node": "elsewhere", "time": time.time() - 7200}, "of the driver on elsewhere for 2:0"),
        (lambda: {"interrupted": True}, "interrupted 0:0"),
    ],
    ids=["killed here", "silent elsewhere", "interrupted"],
)
def test_the_trials_of_a_driver_that_is_gone_do_not_run(
    tmp_path: Path, driver: Callable[[], dict[str, Any]], words: str
) -> None:
    storage, names = Storage(str(tmp_path / "results" / "artifacts")), [a_trial(seed=seed).name for seed in (0, 1)]
    write_plan(storage, "gone", names, unnamed=1, **driver())
    write_heartbeat(storage, names[0], "gone", node="elsewhere")
    first, second = status_of(tmp_path)
    assert first == "emoji · quick: 0 trials stored, none running"
    assert words in second
    assert "3 trials left" in second


def test_the_trials_of_a_driver_on_another_node_run_while_it_beats(tmp_path: Path) -> None:
    storage, name = Storage(str(tmp_path / "results" / "artifacts")), a_trial().name
    write_plan(storage, "other", [name], node="elsewhere", pid=1)
    write_heartbeat(storage, name, "other", node="elsewhere", pid=1)
    headline = "emoji · quick: 0 of 1 done, 1 running, 0 waiting, 0 failed"
    assert status_of(tmp_path) == [headline, f"  {name}  epoch 1/2  on elsewhere"]


def test_a_driver_beats_while_its_trials_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcement, "INTERVAL", 0.01)
    storage, times = Storage(str(tmp_path / "storage")), set[float]()

    def slow(jobs: Iterable[Job | None], listener: Listener) -> None:
        for job in jobs:
            assert job is not None
            while len(times) < 3:
                (plan,) = announcement.read(storage)
                assert plan.is_alive
                assert job.plan == plan.id
                times.add(plan.time)
            made_up([job], listener)

    a_run(tmp_path, experiment("triplet"), slow)()
    assert not announcement.read(storage)


@pytest.mark.parametrize("stage", ["evaluate", "rank", "cluster"])
def test_a_trial_that_evaluates_is_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    """Every report of an evaluation reaches its heartbeat."""
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.01)
    words = {"evaluate": "evaluating", "rank": "ranking 3/9 queries", "cluster": "clustering for NMI"}

    def events(job: Job, *_: object) -> Iterator[Event]:
        yield Progress(stage, 1, 1, 3, 9, math.nan, 1.0, 1.0)
        until(lambda: [beat.position.startswith(words[stage]) for beat in heartbeat.read(storage)] == [True])
        assert not heartbeat.read(storage)[0].is_silent
        yield a_result(job.trial)

    storage = Storage(str(tmp_path / "storage"))
    monkeypatch.setattr(local.training, "events", events)
    assert a_run(tmp_path, experiment("triplet"), local.execute)()


@pytest.mark.fault(
    "a loss forks, and its other process still writes a heartbeat and a checkpoint when its trial has ended",
    "the trial is done, not running or lost; the next run removes both",
)
def test_what_a_process_writes_after_its_trial_ended_is_passed_over(tmp_path: Path) -> None:
    store, trial = Store(tmp_path / "results"), a_trial()
    storage = Storage(str(store.artifacts))
    write_plan(storage, "living", [trial.name, a_trial(seed=1).name], started=1)
    store.put(a_result(trial))
    storage.write(checkpoint(trial.id), b"late")
    for silence in (0, 1000):
        write_heartbeat(storage, trial.name, "living", time=time.time() - silence)
        assert (
            status_of(tmp_path)[0] == "emoji · quick: 1 of 2 done, 0 running, 1 waiting, 0 failed, about 0:00:02 left"
        )
    storage.remove("plans/living.json")
    sweep(storage, store)
    assert not storage.names("running") + storage.names("checkpoints")


def test_what_two_interrupted_runs_share_is_counted_once(tmp_path: Path) -> None:
    storage, names = Storage(str(tmp_path / "results" / "artifacts")), [a_trial(seed=seed).name for seed in range(3)]
    write_plan(storage, "first", names[:2], interrupted=True, started=1)
    write_plan(storage, "second", names[1:], interrupted=True, started=2)
    assert ["2 trials left" in line for line in status_of(tmp_path)] == [False, True, False]
    assert "1 trial left" in status_of(tmp_path)[2]
    write_plan(storage, "third", names, started=3)  # the same again, at work
    assert status_of(tmp_path) == ["emoji · quick: 0 of 3 done, 0 running, 3 waiting, 0 failed"]


# --- damaged files ---


@pytest.mark.fault(
    "heartbeats and plans that are garbage, of wrong types, too deeply nested, a folder, a pipe, or of an impossible "
    "process",
    "passed over; status counts the rest, and the next run removes them",
)
def test_malformed_heartbeats_and_plans_are_passed_over(harness: Harness, tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    store.put(a_result())
    storage = Storage(str(store.artifacts))
    contents = {
        "garbage": b"\x93\x00",
        "empty": b"",
        "list": b"[]",
        "name": b'{"name": 1}',
        "types": b'{"pid": "a", "node": 3}',
        "deep": b"[" * 100_000,
        "digits": b'{"pid": ' + b"1" * 5000 + b"}",
    }
    for folder in ("plans", "running"):
        for name, content in contents.items():
            storage.write(f"{folder}/{name}.json", content)
        (store.artifacts / folder / "folder.json").mkdir()
        os.mkfifo(store.artifacts / folder / "pipe.json")
    node = os.uname().nodename
    write_plan(storage, "huge", [a_trial(seed=1).name], node=node, pid=10**14)
    write_heartbeat(storage, a_trial(seed=1).name, "huge", node=node, pid=10**14, time=1e300)
    said = harness("status")
    assert said.code == 0
    assert said.out.splitlines()[0] == "emoji · quick: 1 trial stored, none running"
    sweep(storage, store)
    assert storage.names("plans") == ["plans/folder.json", "plans/huge.json"]  # the second says what is left
    assert storage.names("running") == ["running/folder.json"]


@pytest.mark.fault(
    "records and failures that cannot be read, then harness status", "counted and named; the exit code is 1"
)
def test_status_counts_what_it_cannot_read(harness: Harness, tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    store.put(a_result())
    store.path(a_trial(seed=1)).write_text("{")
    failures = tmp_path / "results" / "failures" / "emoji" / "triplet"
    failures.mkdir(parents=True)
    (failures / "a.json").write_text('{"name": 1, "error": [], "log": null}')
    said = harness("status")
    assert said.code == 1
    assert said.out == "emoji · quick: 1 trial stored, none running\n2 files cannot be read\n"
    assert said.err.count("\n") == 2


# --- leftovers ---


@pytest.mark.fault(
    "a driver killed right after a record was stored: checkpoint, heartbeat, unfinished files, Tune's folder stay",
    "the next run removes them, also on another node and also if nothing is to run; not while another driver lives",
)
def test_leftovers_are_swept_where_no_other_driver_lives(tmp_path: Path) -> None:
    store, storage = Store(tmp_path / "results"), Storage(str(tmp_path / "storage"))
    stored, unfinished = a_trial(), a_trial(seed=1)
    store.put(a_result(stored))
    for trial in (stored, unfinished):
        storage.write(checkpoint(trial.id), b"content")
        write_heartbeat(storage, trial.name, "gone")
    storage.write("tune/state", b"")
    for folder in ("checkpoints", "embeddings"):
        storage.write(f"{folder}/x.pt.12345678.part", b"")
    part = store.path(stored).with_name("x.json.12345678.part")
    part.touch()
    write_plan(storage, "gone", [stored.name], node="elsewhere", time=time.time() - 200)
    write_plan(storage, "living", [], node="elsewhere")
    sweep(storage, store)
    assert storage.names("plans") == ["plans/living.json"]
    assert not storage.names("running")  # they are no driver's that lives
    assert len(storage.names("checkpoints")) == 2
    assert storage.exists("tune/state")
    storage.remove("plans/living.json")
    sweep(storage, store)
    assert storage.names("checkpoints") == [checkpoint(unfinished.id)]
    assert not storage.names("checkpoints", parts=True) + storage.names("embeddings", parts=True)
    assert not storage.exists("tune/state")
    assert part.exists()  # another driver may be writing it, with another storage
    os.utime(part, (0, time.time() - PART_AGE - 1))
    sweep(storage, store)
    assert not part.exists()
    assert store.get(stored) is not None


@pytest.mark.fault(
    "Ctrl-C in a --rerun, then another run, then the --rerun again", "its checkpoint is still there to continue from"
)
def test_the_checkpoint_of_an_interrupted_rerun_is_kept(tmp_path: Path) -> None:
    store, storage = Store(tmp_path / "results"), Storage(str(tmp_path / "storage"))
    store.put(a_result())
    storage.write(checkpoint(a_trial().id), b"content")
    write_plan(storage, "rerun", [a_trial().name], started=time.time() + 1, interrupted=True)
    sweep(storage, store)
    assert storage.exists(checkpoint(a_trial().id))
    write_plan(storage, "rerun", [a_trial().name], started=0.0, interrupted=True)  # the record is newer: it ended
    sweep(storage, store)
    assert not storage.exists(checkpoint(a_trial().id))
    assert not storage.names("plans")


def test_a_plan_that_nobody_continues_is_forgotten(tmp_path: Path) -> None:
    store, storage = Store(tmp_path / "results"), Storage(str(tmp_path / "storage"))
    write_plan(storage, "old", [a_trial().name], time=time.time() - 31 * 24 * 3600)
    write_plan(storage, "new", [a_trial().name], time=time.time() - 29 * 24 * 3600)
    sweep(storage, store)
    assert storage.names("plans") == ["plans/new.json"]


@pytest.mark.fault("leftovers, then a run in which every trial is stored", "they are removed too")
def test_a_run_without_anything_to_do_sweeps_too(tmp_path: Path) -> None:
    def forbidden(jobs: Iterable[Job | None], listener: Listener) -> None:
        raise AssertionError

    def finished(executor: Executor) -> None:
        a_run(tmp_path, experiment("triplet"), executor)()

    finished(made_up)
    storage = Storage(str(tmp_path / "storage"))
    (record, *_) = Store(tmp_path / "results").files()
    storage.write(checkpoint(record.stem), b"content")
    finished(forbidden)
    assert not storage.names("checkpoints")
