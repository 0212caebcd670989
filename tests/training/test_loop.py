"""The loop: one step, resuming to the bit, and the best epoch on the held-out classes."""

import copy
import dataclasses
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import losses
from harness.spec import COLLAPSED, Progress, Trial
from harness.storage import Storage
from harness.training import feeding, loop, measuring
from harness.training import trial as training
from harness.training.checkpoint import Checkpoint
from harness.training.setup import TrialSetup, main_stage
from losses.base import Batch, Loss
from tests.training.trials import blobs, job, run, run_until, set_up, trial

MEASURE = measuring.measure


# --- one step ---


def learner_of(trial: Trial) -> loop.Learner:
    setup, loss = set_up(trial)
    return loop.Learner.of(setup, main_stage(setup, loss))


def random_batch(seed: int) -> tuple[Tensor, Tensor]:
    """12 images of 4 classes."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(12, 3, 32, 32, generator=generator), torch.arange(4).repeat_interleave(3)


def test_a_step_is_forward_backward_and_the_optimizers_and_schedules_step(small: Path) -> None:
    """Against the textbook's five lines on copies of network and loss, over three steps."""
    learner = learner_of(trial("proxy_nca", lr=1e-2, schedule="drops"))
    model, loss = copy.deepcopy(learner.model), copy.deepcopy(learner.loss)
    optimizer = torch.optim.Adam([*model.parameters(), *loss.parameters()], lr=1e-2, eps=1e-8, fused=True)
    learner.train()
    model.train()
    loss.train()
    for seed in range(3):
        images, labels = random_batch(seed)
        value, embeddings = loop.step(learner, Batch(images, labels))
        expected = loss(model(images), labels)
        assert value == expected.detach()
        assert not value.requires_grad
        assert not embeddings.requires_grad
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        assert learner.scheduler.last_epoch == seed + 1
    for mine, theirs in ((learner.model, model), (learner.loss, loss)):
        for name, value in theirs.state_dict().items():
            torch.testing.assert_close(mine.state_dict()[name], value, msg=name)


def test_a_step_trains_what_the_learner_holds(small: Path) -> None:
    """Another loss in the learner is all it takes to train for something else."""

    class Pull(Loss):
        def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
            return embeddings.square().sum()

    learner = learner_of(trial(lr=1e-3, schedule="drops"))
    pulled = dataclasses.replace(learner, loss=Pull(2, 8))
    values = [float(loop.step(pulled, Batch(*random_batch(0)))[0]) for _ in range(20)]
    assert values[-1] < 0.9 * values[0]


def test_a_learners_state_continues_another_learner(small: Path) -> None:
    continued = trial("proxy_nca", lr=1e-2, epochs=2)
    first, second = learner_of(continued), learner_of(continued)
    first.train()
    second.train()
    loop.step(first, Batch(*random_batch(0)))
    second.load(copy.deepcopy(first.state()))
    values = [loop.step(learner, Batch(*random_batch(1)))[0] for learner in (first, second)]
    assert torch.equal(*values)
    assert set(first.state("model", "loss")) == {"model", "loss"}


# --- resuming ---


def test_a_trial_continues_from_its_checkpoint_with_the_same_bits(small: Path, tmp_path: Path) -> None:
    resumable = trial("group", epochs=3, pretrain_epochs=2, augment="drawings")
    whole, _ = run(resumable, tmp_path / "whole")
    for stage, epoch in (("pretrain", 1), ("train", 1), ("train", 2)):
        folder = tmp_path / f"{stage}{epoch}"
        run_until(resumable, folder, stage, epoch)
        resumed, reports = run(resumable, folder)
        assert resumed.metrics == whole.metrics
        for fact in ("epoch", "loss", "images"):
            assert [row[fact] for row in resumed.curve] == [row[fact] for row in whole.curve]
        assert (reports[0].stage, reports[0].epoch) == (stage, epoch + 1)


def test_memory_that_runs_out_while_a_checkpoint_is_loaded_does_not_make_it_damaged(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumable = trial(epochs=2)
    run_until(resumable, tmp_path, "train", 1)

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(loop.Learner, "load", full)
    with pytest.raises(torch.OutOfMemoryError):
        run(resumable, tmp_path)
    assert Checkpoint.read(Storage(str(tmp_path)), resumable, blobs().sha256).epoch == 1


# --- the best epoch on the held-out classes, as in the released code ---


def script_scores(monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> None:
    """The held-out R@1 after each epoch is what the script says; the networks are real."""
    remaining = iter(scores)

    def measure(*arguments: Any, **options: Any) -> Generator[Progress, None, dict[str, float]]:
        metrics = yield from MEASURE(*arguments, **options)
        return {**metrics, "R@1": next(remaining)}

    monkeypatch.setattr(measuring, "measure", measure)


def states_after_each_epoch(trial: Trial, folder: Path) -> list[dict[str, Tensor]]:
    """The network after each epoch, from its checkpoints."""
    states = []
    for event in training.run(job(trial, folder, keep_weights=True)):
        if event.closes_epoch and event.stage == "train":
            states.append(Checkpoint.read(Storage(str(folder)), trial, blobs().sha256).state["model"])
    return states


def test_best_test_ends_with_the_network_of_the_best_epoch(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = trial(epochs=4, checkpoint="best-test", schedule="drops", lr=1e-2)
    script_scores(monkeypatch, [0.1, 0.6, 0.6, 0.3])
    states = states_after_each_epoch(chosen, tmp_path)
    (file,) = (tmp_path / "weights").glob(f"{chosen.id}-*.safetensors")
    final = load_file(file)
    assert all(torch.equal(final[name], states[1][name]) for name in final)  # the first of the two best
    assert not all(torch.equal(final[name], states[3][name]) for name in final)


def test_best_test_records_what_it_chose_by_and_last_measures_nothing(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_scores(monkeypatch, [0.1, 0.6])
    chosen, _ = run(trial(epochs=2, checkpoint="best-test"), tmp_path)
    assert [row["R@1"] for row in chosen.curve] == [0.1, 0.6]
    monkeypatch.setattr(measuring, "measure", lambda *_: pytest.fail("measured the held-out classes"))
    last, _ = run(trial(epochs=2), tmp_path)
    assert all("R@1" not in row for row in last.curve)


def test_reloads_continue_with_the_best_network(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epoch 3 begins with epoch 1's network: of epoch 2 only the optimizer's moments are left."""
    beginnings: list[dict[str, Tensor]] = []
    real = feeding.load

    def spy(setup: TrialSetup, *more: Any) -> Any:
        beginnings.append({name: value.clone() for name, value in setup.model.state_dict().items()})
        return real(setup, *more)

    monkeypatch.setattr(feeding, "load", spy)
    script_scores(monkeypatch, [0.9, 0.2, 0.3])
    reloading = trial(epochs=3, checkpoint="best-test", schedule="reloads", drops=(2,), lr=1e-2)
    states = states_after_each_epoch(reloading, tmp_path)
    assert all(torch.equal(beginnings[2][name], states[0][name]) for name in states[0])
    assert not all(torch.equal(beginnings[2][name], states[1][name]) for name in states[1])


def test_a_reloading_trial_continues_from_its_checkpoint_with_the_same_bits(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reloading = trial(epochs=4, checkpoint="best-test", schedule="reloads", drops=(2,), lr=1e-2)
    scores = [0.5, 0.2, 0.4, 0.1]
    script_scores(monkeypatch, scores)
    whole, _ = run(reloading, tmp_path / "whole")
    script_scores(monkeypatch, scores[:2])
    run_until(reloading, tmp_path / "cut", "train", 2)
    script_scores(monkeypatch, scores[2:])
    resumed, _ = run(reloading, tmp_path / "cut")
    assert resumed.metrics == whole.metrics
    assert [row["loss"] for row in resumed.curve] == [row["loss"] for row in whole.curve]


# --- a collapse is seen while it happens ---


def test_the_mean_cosine_is_of_images_of_different_classes() -> None:
    """By hand: two classes at a right angle, whose own images point the same way; lengths do not count."""
    apart = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 5.0]])
    labels = torch.tensor([0, 0, 1, 1])
    assert loop.mean_cosine(apart, labels).item() == pytest.approx(0)
    sixty = torch.tensor([[1.0, 0.0], [1.0, 3**0.5]])
    assert loop.mean_cosine(sixty, torch.tensor([0, 1])).item() == pytest.approx(0.5)
    assert loop.mean_cosine(apart.abs().sum(dim=1, keepdim=True), labels).item() == pytest.approx(1)


@pytest.mark.parametrize(
    ("fill", "labels", "expected"),
    [(0.0, [0, 1, 2], 1.0), (float("nan"), [0, 1, 2], 1.0), (2.0, [1, 1, 1], 0.0)],
    ids=["a dead network", "not a number", "one class"],
)
def test_the_mean_cosine_where_there_is_no_angle(fill: float, labels: list[int], expected: float) -> None:
    assert loop.mean_cosine(torch.full((3, 4), fill), torch.tensor(labels)).item() == expected


class Shrink(Loss):
    """Pulls all embeddings to one point."""

    title, cite = "Shrink", "nobody"

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return (embeddings - 1).square().sum()


def test_a_collapse_is_reported_and_recorded(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy, reports = run(trial("triplet", epochs=1, lr=1e-5), tmp_path)
    assert not any(event.collapsed for event in reports)
    assert healthy.collapsed_in is None

    real = losses.get
    monkeypatch.setattr(losses, "get", lambda name, _="": Shrink if name == "softmax" else real(name))
    shrinking = dataclasses.replace(trial("softmax", epochs=30, lr=1e-2), knobs={})
    collapsed, reports = run(shrinking, tmp_path)
    assert all(event.stage == "train" for event in reports if event.collapsed)
    ends = {event.epoch: event.cosine for event in reports if event.stage == "train"}  # the last of each epoch
    healthy_epochs = [epoch for epoch, cosine in ends.items() if round(cosine, 4) < COLLAPSED]  # as the record has it
    assert collapsed.collapsed_in == max(healthy_epochs) + 1  # it may recover before, for an epoch
    assert collapsed.curve[-1]["cosine"] >= COLLAPSED
