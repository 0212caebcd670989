"""Classification before the loss: done once, shared by every loss."""

import dataclasses
import typing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from harness.execution.text import position
from harness.spec import NOT_OF_PRETRAINING, Trial, finish, pretraining_key
from harness.storage import Storage
from harness.training import trial as training
from harness.training.checkpoint import Checkpoint
from harness.training.pretraining import pretrain
from tests.training.trials import blobs, job, run, run_until, set_up, trial


def test_pretraining_runs_once_and_is_shared_by_every_loss(small: Path, tmp_path: Path) -> None:
    stages = []
    for loss in ("group", "triplet", "normalized_softmax"):
        _, reports = run(trial(loss, pretrain_epochs=2), tmp_path)
        stages.append({event.stage for event in reports} - {"rank", "cluster"})
    assert stages == [{"pretrain", "train", "evaluate"}, {"train", "evaluate"}, {"train", "evaluate"}]
    assert len(list((tmp_path / "pretrained").glob("*.safetensors"))) == 1


def test_shared_pretraining_gives_the_same_bits_as_a_trials_own(small: Path, tmp_path: Path) -> None:
    own, _ = run(trial("group", pretrain_epochs=1), tmp_path / "a")
    run(trial("triplet", pretrain_epochs=1), tmp_path / "b")
    shared, _ = run(trial("group", pretrain_epochs=1), tmp_path / "b")
    assert own.metrics == shared.metrics


def test_waiting_for_pretraining_is_reported_and_is_no_pretraining(small: Path, tmp_path: Path) -> None:
    run(trial("group", pretrain_epochs=1), tmp_path)
    waiting, storage = trial("triplet", pretrain_epochs=1), Storage(str(tmp_path))
    file = tmp_path / "pretrained" / f"{pretraining_key(waiting)}.safetensors"
    weights = file.read_bytes()
    file.unlink()
    running, reports = training.run(job(waiting, tmp_path)), []
    with storage.lock(f"pretrained/{file.name}"):
        reports = [next(running), next(running)]  # a second each
        file.write_bytes(weights)
    assert [position(event) for event in reports] == 2 * ["waiting for pre-training"]
    assert not any(event.closes_epoch for event in reports)
    seconds = finish(running).seconds
    assert seconds["wait"] >= 2
    assert "pretrain" not in seconds


def test_trials_read_a_stored_pretraining_at_the_same_time(small: Path, tmp_path: Path) -> None:
    """One after another, those on hundreds of GPUs would wait for each other."""
    run(trial("group", pretrain_epochs=1), tmp_path)
    other = trial("triplet", pretrain_epochs=1)
    with Storage(str(tmp_path)).lock(f"pretrained/{pretraining_key(other)}.safetensors"):
        _, reports = run(other, tmp_path)
    assert "pretrain" not in {report.stage for report in reports}


def test_a_resumed_trial_counts_what_its_checkpoint_knows(small: Path, tmp_path: Path) -> None:
    resumable, storage = trial("group", epochs=2, warmup_epochs=1.0, pretrain_epochs=2), Storage(str(tmp_path))
    spent: dict[str, float] = {}
    for stage in ("pretrain", "warmup", "train"):
        run_until(resumable, tmp_path, stage, 1, curves=True)
        before, spent = spent, Checkpoint.read(storage, resumable, blobs().sha256).seconds
        assert all(spent[name] >= before[name] for name in before)
        assert spent[stage] > before.get(stage, 0)
    result, _ = run(resumable, tmp_path, curves=True)
    for name in ("pretrain", "warmup"):
        assert result.seconds[name] == round(spent[name], 3)
    for name in ("train", "validate"):
        assert result.seconds[name] > round(spent[name], 3) > 0


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Trial)])
def test_every_field_counts_for_pretraining_unless_it_is_listed(small: Path, field: str) -> None:
    """A field added later counts until somebody lists it: then pre-training is done again, never shared wrongly."""
    before = trial(pretrain_epochs=1)
    changed = dataclasses.replace(before, **{field: another_value(field, getattr(before, field))})
    assert (pretraining_key(changed) == pretraining_key(before)) == (field in NOT_OF_PRETRAINING)


def another_value(field: str, value: Any) -> Any:
    """An allowed value of this field that is not the given one."""
    hint = typing.get_type_hints(Trial)[field]
    if typing.get_origin(hint) is typing.Literal:
        return next(choice for choice in typing.get_args(hint) if choice != value)
    match value:
        case bool():
            return not value
        case str():
            return f"{value}x"
        case dict():
            return {**value, "knob": 1}
        case tuple():
            return (*value, 1)
        case _:
            return value - 1 if field == "crop" else value + 1


def test_the_fields_that_do_not_count_are_those_of_the_main_stage(small: Path) -> None:
    """A search over these shares one pre-training; the list is written out here so that a change is noticed."""
    loss = {"protocol", "loss", "loss_version", "knobs", "teacher"}
    batches = {"augment", "crop_scale", "classes_per_batch", "samples_per_class"}
    optimization = {"epochs", "warmup_epochs", "stop_after", "lr", "weight_decay", "schedule", "drops", "checkpoint"}
    assert loss | batches | optimization == set(NOT_OF_PRETRAINING)
    assert pretraining_key(trial("group", pretrain_epochs=1, lr=0.5)) == pretraining_key(trial(pretrain_epochs=1))


@pytest.mark.parametrize(("loss", "handed"), [("group", True), ("normalized_softmax", True), ("proxy_nca", False)])
def test_the_classifier_is_handed_on_where_shapes_match(small: Path, tmp_path: Path, loss: str, handed: bool) -> None:
    setup, module = set_up(trial(loss, pretrain_epochs=1))
    storage, key = Storage(str(tmp_path)), pretraining_key(setup.trial)
    finish(pretrain(setup, module, storage, Checkpoint()))
    stored = load(
        storage.read_sealed(f"pretrained/{key}.safetensors", f"pre-training {key} on images {blobs().sha256[:12]}")
    )
    assert torch.equal(setup.model.state_dict()["head.weight"], stored["model.head.weight"])
    if handed:
        assert torch.equal(module.classifier.weight, stored["loss.classifier.weight"])
    else:
        assert "classifier.weight" not in module.state_dict()
