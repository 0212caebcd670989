"""Trials on a small dataset: they learn, repeat to the bit, and name a NaN."""

import dataclasses
import hashlib
from collections.abc import Generator
from pathlib import Path

import pytest
import torch

import losses
from harness import config, plan
from harness.backbones import network
from harness.execution import estimate
from harness.execution.local import execute
from harness.spec import Event, Experiment, Failure, Job, Progress, Result, finish
from harness.spec.queries import PerQuery
from harness.spec.recipes import recipe_of
from harness.training import allocator
from harness.training import trial as training
from losses.base import Loss
from losses.triplet import Triplet
from tests.training.trials import blobs, job, run, set_up, trial

FOUR = ("group", "triplet", "proxy_nca", "normalized_softmax")


def test_the_same_trial_twice_gives_the_same_bits(small: Path, tmp_path: Path) -> None:
    repeated = trial("group", augment="drawings", epochs=2)
    (first, _), (second, _) = run(repeated, tmp_path / "first"), run(repeated, tmp_path / "second")
    assert first.metrics == second.metrics
    assert [row["loss"] for row in first.curve] == [row["loss"] for row in second.curve]


def test_another_seed_gives_another_run(small: Path, tmp_path: Path) -> None:
    first, second = run(trial(seed=0), tmp_path)[0], run(trial(seed=1), tmp_path)[0]
    assert first.curve[0]["loss"] != second.curve[0]["loss"]


@pytest.mark.parametrize("loss", FOUR)
def test_every_core_loss_trains_and_its_loss_falls(small: Path, tmp_path: Path, loss: str) -> None:
    knobs = {"temperature": 2.0} if loss == "group" else {}
    result, _ = run(trial(loss, knobs, epochs=12, lr=3e-3), tmp_path)
    assert result.curve[-1]["loss"] < result.curve[0]["loss"] - 0.02
    assert set(result.metrics) == {"R@1", "R@2", "R@4", "R@8", "MAP@R", "RP", "NMI"}
    assert all(0 <= value <= 1 for value in result.metrics.values())
    assert result.title == losses.get(loss).title
    assert recipe_of(result.conventions) == "lloyd"
    assert "collapsed" not in result.conventions


def test_the_metrics_follow_from_the_values_of_each_query(small: Path, tmp_path: Path) -> None:
    """On test classes only: search needs the metrics alone, and counts its queries."""
    tested, _ = run(trial(), tmp_path)
    values = PerQuery.from_bytes(tested.per_query)
    for metric in ("R@1", "R@2", "MAP@R", "RP"):
        assert values.values(metric)[values.counts].mean() == pytest.approx(tested.metrics[metric], abs=1e-7)
    assert values.depth == min(100, len(values.classes) - 1)  # though the dataset asks for R@8 at most
    assert tested.queries["sha256"] == hashlib.sha256(tested.per_query).hexdigest()
    assert tested.queries["without_match"] == 0
    assert len(values.names) == len(set(values.classes)) == blobs().test_classes
    searched, _ = run(trial(fold="val0"), tmp_path)
    assert searched.per_query == b""
    assert set(searched.queries) == {"count", "without_match"}
    for baseline in plan.baselines(Experiment(blobs(), config.protocol("tiny"), ())):
        assert PerQuery.from_bytes(run(baseline, tmp_path)[0].per_query).names == values.names


def test_nmi_is_measured_only_where_it_is_wanted(small: Path, tmp_path: Path) -> None:
    wanted, _ = run(trial(), tmp_path / "wanted")
    unwanted, reports = run(trial(), tmp_path / "unwanted", nmi=False)
    assert unwanted.metrics == {name: value for name, value in wanted.metrics.items() if name != "NMI"}
    assert "NMI" not in unwanted.conventions
    assert "cluster" not in {event.stage for event in reports}
    validated, _ = run(trial(epochs=2), tmp_path / "validated", validate=True, nmi=False)
    assert all("R@1" in row and "NMI" not in row for row in validated.curve)


def test_a_record_says_that_its_network_has_collapsed(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that maps all images to one point."""

    def embed(self: network.Embedder, images: torch.Tensor) -> torch.Tensor:
        return torch.full((len(images), 4), 0.5)

    monkeypatch.setattr(network.Embedder, "embed", embed)
    result, _ = run(trial(), tmp_path)
    assert result.conventions["collapsed"] == "mean cosine of two images 1.000000"
    assert result.metrics["NMI"] == 0.0


def test_training_beats_the_untrained_network(small: Path, tmp_path: Path) -> None:
    _, untrained = plan.baselines(Experiment(blobs(), config.protocol("tiny"), ()))
    trained = trial("normalized_softmax", epochs=15, lr=3e-3)
    assert run(trained, tmp_path)[0].metrics["MAP@R"] > run(untrained, tmp_path)[0].metrics["MAP@R"]


def test_baselines_train_nothing(small: Path, tmp_path: Path) -> None:
    pixels, untrained = plan.baselines(Experiment(blobs(), config.protocol("tiny"), ()))
    for baseline, title, distance in (
        (pixels, "Raw pixels", "Euclidean on raw pixels"),
        (untrained, "Untrained network", "Euclidean on unit-length embeddings"),
    ):
        result, reports = run(baseline, tmp_path)
        assert result.title == title
        assert result.curve == ()
        assert result.conventions["distance"] == distance
        assert result.artifacts == {}
        assert set(result.seconds) == {"images", "wait", "evaluate", "total"}
        assert result.seconds["total"] == result.seconds["evaluate"]  # as of a loss: work alone
        assert {event.stage for event in reports} == {"evaluate", "rank", "cluster"}
    assert run(pixels, tmp_path)[0].parameters == 0


def test_progress_reports_epoch_step_loss_and_speed(small: Path, tmp_path: Path) -> None:
    result, reports = run(trial(epochs=2), tmp_path)
    closing = [event for event in reports if event.stage == "train" and event.step == event.steps]
    assert [event.epoch for event in closing] == [1, 2]
    assert [event.loss for event in closing] == pytest.approx([row["loss"] for row in result.curve])
    assert all(event.seconds_left >= 0 for event in reports)
    assert all(event.images_per_second > 0 for event in reports if event.stage not in ("rank", "cluster"))


def test_the_curve_counts_the_images_each_epoch_saw(small: Path, tmp_path: Path) -> None:
    """72 images of 12 classes in batches of 5 classes x 3: 5 batches of 15, whatever the 72. A class has 6 images, so
    it gives 6 of 8: 3 turns of 5 classes, 30 a batch."""
    for samples, images in ((3, 5 * 15), (8, 3 * 30)):
        result, _ = run(trial(epochs=2, classes_per_batch=5, samples_per_class=samples), tmp_path)
        assert [(row["epoch"], row["images"]) for row in result.curve] == [(1, images), (2, images)]


class Poisoned(Loss):
    """Not a number from the third step on."""

    title, cite = "Poisoned", "nobody"
    calls = 0

    def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return embeddings.sum() * (float("nan") if self.calls >= 3 else 0.0)


def test_a_nan_fails_with_epoch_and_step_and_the_next_trial_goes_on(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = losses.get
    monkeypatch.setattr(losses, "get", lambda name, _="": Poisoned if name == "softmax" else real(name))
    bad = dataclasses.replace(trial("softmax"), knobs={})
    jobs = [job(bad, tmp_path), job(trial("triplet"), tmp_path)]
    ends: list[Event] = []
    execute(jobs, lambda _, event: None if isinstance(event, Progress) else ends.append(event))
    assert isinstance(ends[0], Failure)
    assert ends[0].error == "FloatingPointError: loss is nan at epoch 1, step 3"
    assert "check_finite" in ends[0].traceback
    assert isinstance(ends[1], Result)


def test_running_out_of_gpu_memory_says_which_settings_to_change(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    monkeypatch.setattr(training, "set_up", full)
    *_, failure = training.events(job(trial(), tmp_path))
    assert isinstance(failure, Failure)
    for knob in ("--gpus-per-trial", "--set classes_per_batch", "--set precision=amp"):
        assert knob in failure.error


def test_a_trial_on_a_cpu_keeps_the_memory_it_frees_and_an_estimate_changes_nothing(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(allocator, "keep_freed", lambda: calls.append(True))
    estimate.probe(Job(trial(), blobs(), ""))
    assert calls == []
    run(trial(), tmp_path)
    assert calls == [True]


def test_finish_reports_every_item_and_returns_what_the_generator_returns() -> None:
    def steps() -> Generator[int, None, str]:
        yield 1
        yield 2
        return "done"

    items: list[int] = []
    assert finish(steps(), items.append) == "done"
    assert items == [1, 2]
    assert finish(steps()) == "done"


def test_a_probe_costs_an_image_in_seconds(small: Path) -> None:
    cost = estimate.probe(Job(trial(), blobs(), ""))
    assert cost.train > 0
    assert cost.evaluate > 0
    assert cost.parameters == run(trial(), small)[0].parameters


def test_a_knob_that_a_trial_leaves_out_means_what_it_meant_when_records_were_made(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default has moved since: the trial does not say, so it is `added` that counts."""
    older = trial()
    knobs = {name: value for name, value in older.knobs.items() if name != "margin"}
    monkeypatch.setattr(Triplet, "added", {"margin": 0.7})
    _, loss = set_up(dataclasses.replace(older, knobs=knobs))
    assert loss.margin == 0.7
