"""What is measured after each epoch and at the end, and what it costs."""

import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from harness.data import transforms
from harness.evaluation import metrics
from harness.evaluation.step import Step
from harness.training import measuring
from tests.training.trials import run, run_until, set_up, trial


@pytest.mark.parametrize(
    "settings",
    [{"augment": "drawings"}, {"checkpoint": "best-test", "schedule": "reloads", "drops": (1,), "lr": 1e-2}],
    ids=["last", "best-test"],
)
def test_curves_change_neither_the_network_nor_its_metrics(
    small: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    final = trial("group", epochs=3, **settings)
    plain, _ = run(final, tmp_path / "plain", keep_weights=True)
    watched, _ = run(final, tmp_path / "watched", keep_weights=True, curves=True)
    assert watched.metrics == plain.metrics
    assert watched.artifacts == plain.artifacts  # with their sha256
    assert [row["loss"] for row in watched.curve] == [row["loss"] for row in plain.curve]
    for kind in ("weights", "embeddings"):
        name = plain.artifacts[kind]["path"]
        files = [tmp_path / folder / name for folder in ("plain", "watched")]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert all("train R@1" in row for row in watched.curve)
    assert not any("train R@1" in row for row in plain.curve)


def slow_recall_at_1(embeddings: torch.Tensor, labels: torch.Tensor) -> float:
    """Recall@1 by a loop."""
    hits = 0
    for query in range(len(labels)):
        distances = (embeddings.double() - embeddings[query].double()).square().sum(1)
        distances[query] = float("inf")
        hits += int(labels[distances.argmin()] == labels[query])
    return hits / len(labels)


def test_curves_hold_recall_of_the_held_out_and_of_the_training_images(small: Path, tmp_path: Path) -> None:
    watched = trial("normalized_softmax", epochs=3, lr=3e-3, augment="drawings")
    result, reports = run(watched, tmp_path, keep_weights=True, curves=True)
    first_epoch = [event.stage for event in reports[: [event.closes_epoch for event in reports].index(True)]]
    assert first_epoch.count("evaluate") >= 2  # embedding both may take long, so both are reported
    setup, _ = set_up(watched)
    setup.model.load_state_dict(load_file(tmp_path / result.artifacts["weights"]["path"]))
    setup.model.eval()
    fold, last = setup.fold, result.curve[-1]
    for name, images, labels in (("R@1", fold.test, fold.test_labels), ("train R@1", fold.train, fold.train_labels)):
        batch = transforms.to_float(transforms.plain(setup.images, images, watched))
        assert last[name] == pytest.approx(slow_recall_at_1(measuring.embed(setup, batch), labels))
    assert last["R@1"] == result.metrics["R@1"]
    assert last["R@1"] != last["train R@1"]  # else the comparison shows little
    assert len({row["train R@1"] for row in result.curve}) > 1


class Clock:
    """Stands in for the machine's clock: a millisecond passes per look at it, and more where a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", self.look)

    def look(self) -> float:
        self.now += 1e-3
        return self.now


def test_the_training_seconds_leave_the_last_evaluation_out(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, real = Clock(monkeypatch), metrics.measure

    def slow(*arguments: Any, **more: Any) -> Generator[Step, None, dict[str, float]]:
        clock.now += 1000
        return (yield from real(*arguments, **more))

    monkeypatch.setattr(metrics, "measure", slow)
    seconds = run(trial(), tmp_path)[0].seconds
    assert 1000 < seconds["evaluate"] < 1001
    assert 0 < seconds["train"] < 1
    assert seconds["total"] == pytest.approx(seconds["train"] + seconds["evaluate"], abs=0.002)  # each is rounded


def test_curves_take_no_training_time_but_time_of_their_own_and_no_k_means(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, score, cluster, calls = Clock(monkeypatch), metrics.score, metrics.cluster, []

    def slow_score(*arguments: Any, **more: Any) -> Generator[Step, None, metrics.Scores]:
        clock.now += 1000
        calls.append("retrieval")
        return (yield from score(*arguments, **more))

    def counted_cluster(*arguments: Any) -> Generator[Step, None, torch.Tensor]:
        calls.append("NMI")
        return (yield from cluster(*arguments))

    monkeypatch.setattr(metrics, "score", slow_score)
    monkeypatch.setattr(metrics, "cluster", counted_cluster)
    result, _ = run(trial(epochs=2), tmp_path, curves=True)
    assert 0 < result.seconds["train"] < 1
    assert 4000 < result.seconds["validate"] < 4001
    assert 5000 < result.seconds["total"] < 5002
    assert calls == 4 * ["retrieval"] + ["retrieval", "NMI"]  # twice per epoch, and at the end


@pytest.mark.parametrize("begun_with_curves", [True, False])
def test_a_curve_has_no_holes_however_it_began(small: Path, tmp_path: Path, begun_with_curves: bool) -> None:
    """Begun with curves, a trial continues; begun without, its first epochs were not measured, so it starts over."""
    resumable = trial(epochs=3, pretrain_epochs=1)
    whole, _ = run(resumable, tmp_path / "whole", curves=True)
    run_until(resumable, tmp_path / "cut", "train", 2, curves=begun_with_curves)
    resumed, reports = run(resumable, tmp_path / "cut", curves=True)
    stages = [event.stage for event in reports]
    assert "pretrain" not in stages  # it is shared
    assert reports[stages.index("train")].epoch == (3 if begun_with_curves else 1)
    assert resumed.metrics == whole.metrics
    for fact in ("epoch", "loss", "images", "R@1", "train R@1"):
        assert [row[fact] for row in resumed.curve] == [row[fact] for row in whole.curve]
