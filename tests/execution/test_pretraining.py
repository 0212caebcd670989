"""Pre-training is a trial of its own: done once, before what needs it, and counted for each loss."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import config, plan
from harness.execution.account import Account
from harness.execution.agenda import Agenda
from harness.spec import Event, Experiment, Failure, Job, Result, Trial, finish, pretraining_key, pretraining_of
from harness.storage import Storage, heartbeat
from harness.store import Store
from harness.training import trial as training
from tests.conftest import Harness
from tests.execution.plans import write_heartbeat, write_plan
from tests.factories import a_result, a_trial
from tests.training.trials import blobs, job, run, run_until, trial

RUN = ["run", "--losses", "group,triplet", "--dataset", "blobs", "--set", "pretrain_epochs=2"]


def needs(one: Trial) -> tuple[Trial, ...]:
    losses = () if one.is_pretraining else (config.loss(one.loss),)
    return plan.needs(Experiment(blobs(), config.protocol("tiny"), losses), one)


def stored(tmp_path: Path) -> list[Result]:
    results, problems = Store(tmp_path / "results").results()
    assert not problems
    return results


def test_trials_that_share_a_pretraining_need_the_same_trial(small: Path) -> None:
    first, second = trial("group", pretrain_epochs=2), trial("triplet", pretrain_epochs=2, lr=0.5)
    (need,) = needs(first)
    assert needs(second) == (need,)
    assert needs(need) == ()
    assert needs(trial("group", pretrain_epochs=2, seed=1)) != (need,)
    assert needs(trial("group")) == ()
    assert pretraining_key(need) == pretraining_key(first)
    assert (need.on_test, need.is_final, need.fold) == (False, False, "test")


def test_a_run_pretrains_once_per_key_and_gives_the_bits_of_trials_alone(
    small: Path, tmp_path: Path, harness: Harness
) -> None:
    assert harness(*RUN, "--trials", "1").code == 0
    pretrained = [result for result in stored(tmp_path) if result.trial.is_pretraining]
    assert sorted(result.trial.fold for result in pretrained) == ["test", "val0"]
    for result in pretrained:
        assert result.purpose == "pretraining"
        assert result.seconds["total"] == result.seconds["pretrain"] > 0
        assert [row["epoch"] for row in result.curve] == [1, 2]
        assert (tmp_path / "results" / "artifacts" / result.artifacts["pretrained"]["path"]).exists()
    others = [result for result in stored(tmp_path) if not result.trial.is_baseline and result not in pretrained]
    assert len(others) == 4
    seconds = {result.id: result.seconds["total"] for result in pretrained}
    for result in others:
        assert "pretrain" not in result.seconds
        assert result.pretraining["seconds"] == seconds[result.pretraining["id"]]
        alone, _ = run(result.trial, tmp_path / "alone" / result.id, nmi=result.trial.on_test)
        assert (alone.metrics, alone.curve[-1]["loss"]) == (result.metrics, result.curve[-1]["loss"])
        assert alone.seconds["pretrain"] > 0


def test_a_stored_run_needs_no_pretraining(small: Path, tmp_path: Path, harness: Harness) -> None:
    """Whoever has the results of an older version has no record of it, and nothing is made again."""
    assert harness(*RUN).code == 0
    for result in stored(tmp_path):
        if result.trial.is_pretraining:
            assert harness("rm", result.id).code == 0
    assert "nothing to run" in harness(*RUN, "--dry-run").out
    before = {result.id for result in stored(tmp_path)}
    assert harness(*RUN).code == 0
    assert {result.id for result in stored(tmp_path)} == before


def test_a_pretraining_whose_file_is_gone_is_done_again(small: Path, tmp_path: Path, harness: Harness) -> None:
    assert harness(*RUN).code == 0
    (file,) = (tmp_path / "results" / "artifacts" / "pretrained").glob("*.safetensors")
    content = file.read_bytes()
    file.unlink()
    said = harness(*RUN, "--set", "lr=0.002", "--dry-run")
    assert re.search(r"pretraining-blobs-test-\w{12} +0 +to run +0.001 +pretrain_epochs=2 *\n", said.out)
    assert harness(*RUN, "--set", "lr=0.002").code == 0
    assert file.read_bytes() == content
    assert not any("pretrain" in result.seconds for result in stored(tmp_path) if not result.trial.is_pretraining)


def test_what_needs_a_failed_pretraining_is_named_and_the_others_go_on(
    small: Path, tmp_path: Path, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = training.events

    def events(job: Job, *rest: object) -> Iterator[Event]:
        if job.trial.is_pretraining:
            yield Failure(job.trial, "RuntimeError: no", "")
        else:
            yield from real(job, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(training, "events", events)
        said = harness(*RUN)
    assert said.code == 1
    assert said.err.count("failed: not run: it needs pretraining-blobs-test-") == 2
    assert "which failed: RuntimeError: no" in said.err
    assert {result.trial.loss for result in stored(tmp_path)} == {"none"}
    assert harness(*RUN).code == 0
    assert {result.trial.loss for result in stored(tmp_path)} == {"none", "pretraining", "group", "triplet"}


def test_a_pretraining_goes_on_from_its_checkpoint_with_the_same_bits(small: Path, tmp_path: Path) -> None:
    need = pretraining_of(trial(pretrain_epochs=3))
    assert need is not None
    whole, _ = run(need, tmp_path / "whole")
    run_until(need, tmp_path / "broken", "pretrain", 2)
    resumed, reports = run(need, tmp_path / "broken")
    assert [report.epoch for report in reports if report.closes_epoch] == [3]
    assert resumed.artifacts == whole.artifacts  # the same checksum


def test_a_damaged_checkpoint_of_a_pretraining_is_set_aside(small: Path, tmp_path: Path) -> None:
    need = pretraining_of(trial(pretrain_epochs=2))
    assert need is not None
    run_until(need, tmp_path, "pretrain", 1)
    (tmp_path / "checkpoints" / f"{need.id}.pt").write_bytes(b"x")
    notes: list[str] = []
    finish(training.run(job(need, tmp_path)), lambda event: notes.append(event.note))
    assert any("is damaged" in note for note in notes)


def test_commands_that_read_results_know_pretraining(small: Path, tmp_path: Path, harness: Harness) -> None:
    assert harness(*RUN, "--seeds", "2", "--ensemble", "2").code == 0
    (first, *_) = (result for result in stored(tmp_path) if result.trial.is_pretraining)
    for words in (
        ["ls", "runs"],
        ["tables"],
        ["tables", "--table", "search"],
        ["status"],
        ["show", first.id],
        ["report"],
    ):
        said = harness(*words)
        assert said.code == 0, said.err
    assert harness("status").out.splitlines()[:2] == [
        "blobs · any: 2 pre-trainings stored",
        "blobs · tiny: 7 trials stored, none running",
    ]
    assert "A pre-training that losses share counts for each of them." in harness("tables").out
    assert "Pre-training" not in harness("tables", "--format", "csv").out
    assert first.id in harness("ls", "runs").out


def test_status_counts_a_pretraining_and_what_waits_for_it(tmp_path: Path, harness: Harness) -> None:
    losses = (config.loss("group"), config.loss("triplet"))
    settings = {"pretrain_epochs": 1}
    planned = Experiment(config.dataset("emoji"), config.protocol("quick"), losses, settings=settings)
    store = Store(tmp_path / "results")
    storage = Storage(str(store.artifacts))
    account = Account(planned, store, storage=storage)
    (need,) = account.needs(account.known)
    write_plan(storage, "p", [one.name for one in (need, *account.known)])
    write_heartbeat(storage, need.name, "p", position="pretrain epoch 1/1")
    during = harness("status").out
    assert "0 of 5 done, 1 running, 4 waiting, 0 failed" in during  # two losses and two baselines wait
    assert f"{need.name}  pretrain epoch 1/1  on " in during
    store.put(a_result(need))
    storage.remove(heartbeat(need.id))
    assert "1 of 5 done, 0 running, 4 waiting, 0 failed" in harness("status").out


def test_status_counts_a_pretraining_that_failed_with_the_run_that_asked_for_it(
    tmp_path: Path, harness: Harness
) -> None:
    need = pretraining_of(a_trial(pretrain_epochs=1))
    assert need is not None
    store = Store(tmp_path / "results")
    write_plan(Storage(str(store.artifacts)), "p", [need.name, a_trial().name])
    store.note(Failure(need, "RuntimeError: no", ""))
    said = harness("status").out
    assert said.startswith("emoji · quick: 0 of 2 done, 0 running, 1 waiting, 1 failed\n")
    assert "emoji · any" not in said


def test_the_pretraining_of_final_runs_is_planned_before_their_values_are_chosen(small: Path, tmp_path: Path) -> None:
    losses = (config.loss("group"), config.loss("triplet"))
    settings = {"pretrain_epochs": 1}
    planned = Experiment(blobs(), config.protocol("tiny"), losses, trials=2, seeds=2, settings=settings)
    account = Account(planned, Store(tmp_path / "results"), storage=Storage(str(tmp_path / "storage")))
    needed = account.needs([*account.known, *account.unnamed()])
    assert [(need.fold, need.seed) for need in needed] == [("val0", 0), ("test", 0), ("test", 1)]
    assert all(isinstance(need, Trial) and need.is_pretraining for need in needed)
    assert dataclasses.replace(needed[1], seed=1) == needed[2]


def test_a_stored_pretraining_is_looked_for_once_however_many_trials_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an object store each look is a request."""
    losses = (config.loss("triplet"),)
    planned = Experiment(
        config.dataset("emoji"), config.protocol("quick"), losses, trials=30, settings={"pretrain_epochs": 1}
    )
    store, storage = Store(tmp_path / "results"), Storage(str(tmp_path / "storage"))
    (need,) = plan.needs(planned, plan.search(planned)[0])
    result = dataclasses.replace(a_result(need), artifacts={"pretrained": {"path": "pretrained/a", "sha256": "0" * 64}})
    store.put(result)
    storage.write("pretrained/a", b"weights")
    looks: list[str] = []
    monkeypatch.setattr(Storage, "exists", lambda _, name: looks.append(name) is None)
    account = Account(planned, store, storage=storage)
    agenda = Agenda(account, account.known)
    assert len([trial for trial in agenda.ready if trial.loss == "triplet"]) == 30
    assert looks == ["pretrained/a"]
