"""Warm-up: the embedding layer and what the loss owns learn first, the trunk is held still."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness import config, plan
from harness.spec import SETTINGS, Experiment, Trial, UserError
from harness.storage import Storage
from harness.training import trial as training
from harness.training.checkpoint import Checkpoint
from harness.training.loop import Learner
from harness.training.optimizers import make_scheduler
from harness.training.setup import main_stage, warmup_stage
from losses.space import Range
from tests.training.trials import blobs, job, run, run_until, set_up, trial


def after_warmup(trial: Trial, folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The states of network and loss when the warm-up is over."""
    for event in training.run(job(trial, folder)):
        if event.closes_epoch and event.stage == "warmup":
            state = Checkpoint.read(Storage(str(folder)), trial, blobs().sha256).state
            return state["model"], state["loss"]
    raise AssertionError("no warm-up")


def test_only_the_embedding_layer_and_the_loss_learn(small: Path, tmp_path: Path) -> None:
    """BatchNorm's running statistics belong to the trunk: they stay as they are, too."""
    warmed = trial("normalized_softmax", warmup_epochs=1.0, lr=1e-2)
    setup, loss = set_up(warmed)
    model, own = after_warmup(warmed, tmp_path)
    before = setup.model.state_dict()
    assert any("running_mean" in name for name in before)
    for name, value in before.items():
        assert torch.equal(model[name], value) == name.startswith("trunk."), name
    assert not torch.equal(own["classifier.weight"], loss.state_dict()["classifier.weight"])


def test_the_trunk_computes_as_in_evaluation_and_without_a_graph(small: Path) -> None:
    setup, loss = set_up(trial("group", warmup_epochs=1.0))
    main = main_stage(setup, loss)
    learner = Learner.of(setup, warmup_stage(main, 1.0))
    learner.train()
    assert not any(module.training for module in setup.model.trunk.modules())
    assert setup.model.head.training
    embeddings = setup.model(torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    embeddings.sum().backward()
    assert all(parameter.grad is None for parameter in setup.model.trunk.parameters())
    assert setup.model.head.weight.grad is not None

    Learner.of(setup, main).train()
    normalisations = [module for module in setup.model.trunk.modules() if isinstance(module, nn.BatchNorm2d)]
    assert normalisations
    assert all(module.training for module in normalisations)


def test_the_main_stage_begins_anew_with_its_optimizer_and_schedule(small: Path, tmp_path: Path) -> None:
    """No moments are carried over, and its one cycle has as many steps as without a warm-up."""
    setup, loss = set_up(trial("group", warmup_epochs=1.0, epochs=2))
    main = main_stage(setup, loss)
    warming = Learner.of(setup, warmup_stage(main, 1.0))
    rate = main.head_lr
    assert [group["lr"] for group in warming.optimizer.param_groups] == [rate, rate]
    learner = Learner.of(setup, main)
    assert not learner.optimizer.state
    assert make_scheduler(learner.optimizer, main).total_steps == 2 * len(main.batches)
    _, reports = run(trial("group", warmup_epochs=1.0, epochs=2), tmp_path)
    ends = [(event.stage, event.epoch, event.epochs) for event in reports if event.closes_epoch]
    assert ends == [("warmup", 1, 1), ("train", 1, 2), ("train", 2, 2)]


@pytest.mark.parametrize(
    ("epochs", "steps"),
    [(0.01, [1]), (0.5, [3]), (1.0, [6]), (1.5, [6, 3]), (2.0, [6, 6])],
)
def test_a_fraction_of_an_epoch_ends_it_early(small: Path, tmp_path: Path, epochs: float, steps: list[int]) -> None:
    """72 images in batches of 12: an epoch has 6."""
    result, reports = run(trial("group", warmup_epochs=epochs, epochs=1), tmp_path)
    warmup = [event for event in reports if event.stage == "warmup"]
    assert [event.step for event in warmup if event.closes_epoch] == steps
    assert not any(event.seconds_left for event in warmup)  # it does not tell how long the epochs take
    assert [(row["epoch"], row["images"]) for row in result.curve] == [(0, 12 * sum(steps)), (1, 72)]


def test_the_record_has_its_seconds_and_its_loss(small: Path, tmp_path: Path) -> None:
    result, reports = run(trial("group", warmup_epochs=1.5, epochs=1, pretrain_epochs=1), tmp_path)
    work = {"pretrain", "warmup", "train", "validate", "evaluate"}
    assert set(result.seconds) == {"images", "wait", *work, "total"}
    assert result.seconds["total"] == pytest.approx(math.fsum(result.seconds[name] for name in work), abs=0.01)
    (last,) = (event for event in reports if event.stage == "warmup" and event.epoch == 2 and event.closes_epoch)
    assert result.curve[0]["loss"] == last.loss


def test_it_is_skipped_where_nothing_but_the_trunk_can_learn(small: Path, tmp_path: Path) -> None:
    without, reports = run(trial("triplet", dim=None, warmup_epochs=1.0), tmp_path)
    assert "warmup" not in {event.stage for event in reports}
    assert "warmup" not in without.seconds
    never, _ = run(trial("triplet", dim=None), tmp_path)
    assert without.metrics == never.metrics
    _, reports = run(trial("triplet", warmup_epochs=1.0), tmp_path)  # it has an embedding layer
    assert "warmup" in {event.stage for event in reports}


def test_a_warmed_trial_continues_from_its_checkpoint_with_the_same_bits(small: Path, tmp_path: Path) -> None:
    resumable = trial("group", epochs=2, warmup_epochs=1.5, pretrain_epochs=1, augment="drawings")
    whole, _ = run(resumable, tmp_path / "whole")
    for stage, epoch in (("warmup", 1), ("warmup", 2), ("train", 1)):
        folder = tmp_path / f"{stage}{epoch}"
        run_until(resumable, folder, stage, epoch)
        resumed, reports = run(resumable, folder)
        assert resumed.metrics == whole.metrics
        for fact in ("epoch", "loss", "images"):
            assert [row[fact] for row in resumed.curve] == [row[fact] for row in whole.curve]
        assert set(resumed.seconds) == set(whole.seconds)
        assert (stage, epoch) not in {(event.stage, event.epoch) for event in reports}
        assert "pretrain" not in {event.stage for event in reports}


def test_curves_measure_the_main_stage_alone(small: Path, tmp_path: Path) -> None:
    result, _ = run(trial("group", epochs=2, warmup_epochs=0.5), tmp_path, curves=True)
    assert ["R@1" in row for row in result.curve] == [False, True, True]
    assert result.has_curves


def test_the_untrained_network_has_none(small: Path) -> None:
    protocol = config.protocol("tiny")
    warmed = dataclasses.replace(protocol, settings={**protocol.settings, "warmup_epochs": 1.0})
    assert plan.baselines(Experiment(blobs(), warmed, ())) == plan.baselines(Experiment(blobs(), protocol, ()))


def test_random_search_may_draw_it(small: Path) -> None:
    protocol = dataclasses.replace(config.protocol("tiny"), search={"warmup_epochs": Range(0.25, 4.0, log=True)})
    group = (config.loss("group"),)
    drawn = plan.search(Experiment(blobs(), protocol, group, trials=5))
    assert len({trial.warmup_epochs for trial in drawn}) == 5
    assert all(0.25 <= trial.warmup_epochs <= 4.0 for trial in drawn)
    best = drawn[3]
    (final,) = plan.final(Experiment(blobs(), protocol, group, trials=5), {"group": best.searched})
    assert final.warmup_epochs == best.warmup_epochs
    assert {**final.searched, "fold": "val0"} == {**best.searched, "fold": best.fold}


@pytest.mark.parametrize("value", [-1.0, "much", None])
def test_a_value_that_makes_no_sense_is_named(small: Path, value: Any) -> None:
    with pytest.raises(UserError, match=r"warmup_epochs=.*: must be a number >= 0"):
        SETTINGS["warmup_epochs"].check(value)
