"""A teacher is a trial of its own: done once, before its students, with the seed and fold of each, and counted."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import commands, config, plan
from harness.analysis.budget import Budget
from harness.execution.account import Account
from harness.spec import Experiment, Job, Progress, Result, Trial, UserError, finish, pretraining_key
from harness.storage import Storage, checkpoint
from harness.storage import teacher as teacher_file
from harness.store import Store
from harness.training import teaching
from harness.training import trial as training
from tests.conftest import Harness
from tests.training.trials import blobs, job, run

RUN = ["run", "--losses", "rkd", "--dataset", "blobs", "--set", "dim=8"]


def experiment(*losses: str, **changes: Any) -> Experiment:
    specs = tuple(config.loss(name) for name in losses or ("rkd",))
    settings = {"dim": 8, "epochs": 2, **changes.pop("settings", {})}
    return Experiment(blobs(), config.protocol("tiny"), specs, settings=settings, **changes)


def student(**settings: Any) -> tuple[Trial, Trial]:
    """A trial of rkd, and its teacher."""
    asked = experiment(settings=settings)
    (planned,) = plan.final(asked, {})
    (need,) = plan.needs(asked, planned)
    return planned, need


def taught(planned: Trial, need: Trial, storage: Path, **options: Any) -> Job:
    """The job of a student whose teacher has ended."""
    result, _ = run(need, storage, teaches=True)
    Storage(str(storage)).remove(checkpoint(need.id))  # as the driver does when a trial has ended
    return job(planned, storage, needs=(result,), **options)


def stored(tmp_path: Path) -> dict[str, Result]:
    results, problems = Store(tmp_path / "results").results()
    assert not problems
    return {result.id: result for result in results}


# --- which trial it is ---


def test_a_teacher_is_the_triplet_trial_of_the_same_settings_seed_and_fold(small: Path) -> None:
    for settings in ({}, {"seed": 3, "fold": "val1"}, {"crop": 24, "warmup_epochs": 1.0}):
        planned, need = student(**settings)
        (same,) = plan.final(experiment("triplet", settings=settings), {})
        assert need == same
        assert planned.teacher == need.id


def test_rates_and_knobs_of_a_teacher_are_the_protocols(small: Path) -> None:
    _, usual = student()
    asked = experiment("rkd", "triplet", settings={"lr": 0.5, "weight_decay": 0.1}, knobs={"triplet": {"margin": 0.9}})
    planned = plan.final(asked, {})[0]
    assert (planned.lr, planned.weight_decay) == (0.5, 0.1)
    assert plan.needs(asked, planned) == (usual,)


def test_the_trials_of_a_search_share_a_teacher_per_fold(small: Path) -> None:
    asked = experiment("rkd", trials=4)
    searched = plan.search(asked)
    assert len({trial.id for trial in searched}) == 4
    assert len({trial.teacher for trial in searched}) == 1
    assert plan.needs(asked, searched[0])[0].fold == searched[0].fold == "val0"


def test_a_teacher_trains_for_all_epochs_also_where_its_student_stops_before(small: Path) -> None:
    planned, need = student(stop_after=1)
    assert (planned.stop_after, need.stop_after, need.epochs) == (1, 0, 2)
    assert need == student()[1]


def test_another_loss_may_teach(small: Path) -> None:
    asked = experiment("rkd", knobs={"rkd": {"teacher": "proxy-anchor"}})
    (planned,) = plan.final(asked, {})
    assert plan.needs(asked, planned)[0].loss == "proxy_anchor" == planned.knobs["teacher"]


def test_a_teacher_that_builds_its_head_needs_the_pre_training_that_its_training_looks_for(small: Path) -> None:
    """That of losses without an embedding layer, whatever the student's is."""
    asked = experiment("rkd", knobs={"rkd": {"teacher": "bier"}}, settings={"dim": 16, "pretrain_epochs": 1})
    (planned,) = plan.final(asked, {})
    own, taught_by = plan.needs(asked, planned)
    (pretraining,) = plan.needs(asked, taught_by)
    assert (own.dim, taught_by.dim, pretraining.dim) == (16, 16, None)
    assert pretraining_key(pretraining) == pretraining_key(taught_by, own_head=True)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rkd", "rkd.teacher=rkd: must be a loss that has no teacher itself"),
        ("triplett", "rkd.teacher=triplett: no loss named 'triplett'; did you mean 'triplet'"),
    ],
)
def test_what_cannot_teach_is_one_line(small: Path, harness: Harness, name: str, words: str) -> None:
    said = harness(*RUN, "--set", f"rkd.teacher={name}")
    assert said.code == 2
    assert words in said.err


def test_a_trial_without_a_teacher_has_the_id_it_had(small: Path) -> None:
    planned, need = student()
    assert "teacher" not in need.to_json()
    assert planned.to_json()["teacher"] == need.id
    assert Trial.from_json(planned.to_json()) == planned
    assert dataclasses.replace(planned, teacher="").id != planned.id
    with pytest.raises(ValueError, match=r"trial.teacher='x' must be an id"):
        Trial.from_json({**planned.to_json(), "teacher": "x"})


def test_students_that_differ_in_seed_or_fold_alone_are_one_configuration(small: Path) -> None:
    (one, _), (other, _), (third, _) = student(), student(seed=1), student(fold="val0")
    assert len({one.teacher, other.teacher, third.teacher}) == 3
    assert one.configuration == other.configuration
    assert one.id_without("fold") == third.id_without("fold")


# --- the work ---


def test_a_run_trains_the_teacher_first_once_per_seed_and_counts_it(
    small: Path, tmp_path: Path, harness: Harness
) -> None:
    assert harness(*RUN, "--seeds", "2", "--ensemble", "2").code == 0
    results = stored(tmp_path)
    students = [result for result in results.values() if result.trial.loss == "rkd" and not result.is_ensemble]
    assert len(students) == 2
    for result in students:
        teacher = results[result.trial.teacher]
        assert (teacher.trial.loss, teacher.trial.seed, teacher.purpose) == ("triplet", result.trial.seed, "teacher")
        images = sum(row["images"] for row in teacher.curve)
        about = {"id": teacher.id, "title": "Triplet", "seconds": teacher.seconds["total"], "images": images}
        assert result.teacher == about
        spent = Budget(result.trial, (), (result,))
        own = sum(row["images"] for row in result.curve)
        assert spent.images == own + images
        threads = result.provenance["threads"]
        total = result.seconds["total"] + teacher.seconds["total"]
        assert spent.hours["CPU-hours"] == pytest.approx(total * threads / 3600)
        assert result.seconds["total"] == pytest.approx(
            sum(result.seconds[name] for name in ("train", "validate", "evaluate")), abs=0.01
        )
        assert result.conventions["distance"] == "Euclidean on raw embeddings"
    assert not (tmp_path / "results" / "artifacts" / "teachers").exists() or not list(
        (tmp_path / "results" / "artifacts" / "teachers").glob("*.safetensors")
    )
    table = harness("tables", "--table", "ensembles", "--published", "rows").out
    assert "Its teacher was trained with Triplet: 2 runs of" in table
    assert "A teacher's hours and images count for its students too." in table
    shown = harness("show", students[0].id).out
    assert students[0].trial.teacher in shown


def test_the_printed_command_names_the_same_student(small: Path, tmp_path: Path, harness: Harness) -> None:
    assert harness(*RUN, "--set", "lr=0.003", "--set", "epochs=1", "--set", "rkd.teacher=margin").code == 0
    (result,) = (result for result in stored(tmp_path).values() if result.trial.loss == "rkd")
    line = commands.command(result, config.protocol("tiny"))
    said = harness(*line.split()[1:], "--dry-run")
    assert re.search(rf"{result.trial.name} +0 +stored", said.out)


def test_a_teacher_that_was_asked_for_too_runs_once(small: Path, tmp_path: Path, harness: Harness) -> None:
    assert harness("run", "--losses", "rkd,triplet", *RUN[3:], "--set", "epochs=1").code == 0
    results = stored(tmp_path).values()
    assert sorted(result.trial.loss for result in results) == ["none", "none", "rkd", "triplet"]
    (teacher,) = (result for result in results if result.trial.loss == "triplet")
    assert teacher.purpose == "run"


def test_what_is_no_final_run_of_the_request_keeps_no_weights_and_is_not_watched(small: Path, tmp_path: Path) -> None:
    asked = experiment("rkd", trials=2, curves=True, scheduler="asha")
    account = Account(asked, Store(tmp_path))
    searched = account.needs(account.known)[0]
    assert (account.purpose(searched), account.is_watched(searched)) == ("teacher", False)
    final = account.needs(account.unnamed())[0]
    assert (account.is_final(final), account.draws_curves(final)) == (False, False)
    assert {searched.id, final.id} == account.teachers


def test_a_failed_teacher_is_named_and_its_weights_wait_for_a_failed_student(
    small: Path, tmp_path: Path, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = teaching.network

    def network(*_: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(teaching, "network", network)
    assert harness(*RUN).code == 1
    (file,) = (tmp_path / "results" / "artifacts" / "teachers").glob("*.safetensors")
    monkeypatch.setattr(teaching, "network", real)
    assert harness("gc", "--yes").code == 0
    assert file.exists()
    assert harness(*RUN).code == 0
    assert not file.exists()


@pytest.mark.parametrize("content", [None, b"damaged"])
def test_weights_that_are_gone_or_damaged_are_made_again_with_the_same_bits(
    small: Path, tmp_path: Path, content: bytes | None
) -> None:
    planned, need = student()
    ready = taught(planned, need, tmp_path)
    storage, name = Storage(str(tmp_path)), teacher_file(need.id)
    before = storage.read(name)
    expected = finish(training.run(ready))
    storage.remove(checkpoint(planned.id))
    storage.remove(name)
    if content is not None:
        storage.write(name, content)
    reports: list[Progress] = []
    found = finish(training.run(ready), reports.append)
    assert storage.read(name) == before
    assert found.per_query == expected.per_query
    assert [row["loss"] for row in found.curve] == [row["loss"] for row in expected.curve]
    assert any(report.stage == "teacher" and report.images_per_second for report in reports)
    assert sum(report.closes_epoch for report in reports) == planned.epochs
    assert any("moved to damaged/" in report.note for report in reports) is (content is not None)
    assert found.seconds["teacher"] > 0
    assert not storage.names("checkpoints") or f"checkpoints/{need.id}.pt" not in storage.names("checkpoints")


@pytest.mark.parametrize("change", [{"fold": "val0"}, {"seed": 5}])
def test_a_teacher_of_another_fold_or_seed_is_refused(small: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    planned, _ = student()
    other = student(**change)[1]
    result, _ = run(other, tmp_path, teaches=True)
    wrong = dataclasses.replace(planned, teacher=other.id)
    ((name, value),) = change.items()
    with pytest.raises(UserError, match=f"its teacher {other.id} has {name}={value}; must be"):
        finish(training.run(job(wrong, tmp_path, needs=(result,))))
    with pytest.raises(UserError, match="has no result"):
        finish(training.run(job(planned, tmp_path, needs=(result,))))


def test_a_killed_student_continues_to_the_bit(small: Path, tmp_path: Path) -> None:
    planned, need = student(epochs=3)
    expected = finish(training.run(taught(planned, need, tmp_path / "whole")))
    ready = taught(planned, need, tmp_path / "resumed")
    running = training.run(ready)
    for event in running:
        if event.closes_epoch and event.epoch == 1:
            break
    running.close()
    reports: list[Progress] = []
    found = finish(training.run(ready), reports.append)
    assert [report.epoch for report in reports if report.closes_epoch] == [2, 3]
    assert found.metrics == expected.metrics
    assert [row["loss"] for row in found.curve] == [row["loss"] for row in expected.curve]
    assert found.per_query == expected.per_query


def test_a_teacher_compares_what_its_run_measured(small: Path, tmp_path: Path) -> None:
    """Unit rows, without a gradient, the same in any mode of the student."""
    planned, need = student()
    ready = taught(planned, need, tmp_path)
    state = teaching.stored(Storage(str(tmp_path)), need, blobs().sha256)
    assert state is not None
    images = torch.rand(4, 3, 32, 32)
    rows = teaching.network(teaching.job_of(ready), state)(images)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(4))
    assert not rows.requires_grad
    assert not rows.is_inference()
