"""Classification before the loss: done once, shared by every loss."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from harness.storage import Storage
from harness.training import loop, pretraining
from tests.training.trials import run, set_up, trial


def test_pretraining_runs_once_and_is_shared_by_every_loss(small: Path, tmp_path: Path) -> None:
    stages = []
    for loss in ("group", "triplet", "normalized_softmax"):
        _, seen = run(trial(loss, pretrain_epochs=2), tmp_path)
        stages.append({event.stage for event in seen})
    assert stages == [{"pretrain", "train", "evaluate"}, {"train", "evaluate"}, {"train", "evaluate"}]
    assert len(list((tmp_path / "pretrained").glob("*.safetensors"))) == 1


def test_shared_pretraining_gives_the_same_bits_as_ones_own(small: Path, tmp_path: Path) -> None:
    alone, _ = run(trial("group", pretrain_epochs=1), tmp_path / "a")
    run(trial("triplet", pretrain_epochs=1), tmp_path / "b")
    shared, _ = run(trial("group", pretrain_epochs=1), tmp_path / "b")
    assert alone.metrics == shared.metrics


def test_pretraining_is_its_own_for_another_seed_fold_or_network_and_shared_across_knobs(small: Path) -> None:
    key = pretraining.pretraining_key(trial(pretrain_epochs=1))
    for change in ({"seed": 1}, {"fold": "val0"}, {"dim": 4}, {"pretrain_lr": 0.1}, {"pretrain_epochs": 2}):
        assert pretraining.pretraining_key(trial(**{"pretrain_epochs": 1, **change})) != key
    for change in ({"lr": 0.5}, {"weight_decay": 0.5}, {"epochs": 9}, {"augment": "drawings"}):
        assert pretraining.pretraining_key(trial(pretrain_epochs=1, **change)) == key
    assert pretraining.pretraining_key(trial("group", pretrain_epochs=1)) == key


@pytest.mark.parametrize(("loss", "handed"), [("group", True), ("normalized_softmax", True), ("proxy_nca", False)])
def test_the_classifier_is_handed_on_where_shapes_match(small: Path, tmp_path: Path, loss: str, handed: bool) -> None:
    one = trial(loss, pretrain_epochs=1)
    bench, module = set_up(one)
    list(pretraining.pretrain(bench, module, Storage(str(tmp_path)), loop.Checkpoint()))
    (file,) = (tmp_path / "pretrained").glob("*.safetensors")
    stored = load_file(file)
    assert torch.equal(bench.model.head.weight, stored["model.head.weight"])
    if handed:
        assert torch.equal(module.classifier.weight, stored["loss.classifier.weight"])
    else:
        assert "classifier.weight" not in module.state_dict()
