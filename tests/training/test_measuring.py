"""What is measured after each epoch and at the end, and what it costs."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from harness.data import transforms
from harness.evaluation import metrics as evaluate
from harness.spec import Job
from harness.training import measuring
from harness.training import trial as train
from tests.training.trials import blobs, run, set_up, trial


@pytest.mark.parametrize(
    "settings",
    [{"augment": "drawings"}, {"checkpoint": "best-test", "schedule": "reloads", "drops": (1,), "lr": 1e-2}],
    ids=["last", "best-test"],
)
def test_curves_change_neither_the_network_nor_its_metrics(
    small: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    one = trial("group", epochs=3, **settings)
    plain, _ = run(one, tmp_path / "plain", keep_weights=True)
    watched, _ = run(one, tmp_path / "watched", keep_weights=True, curves=True)
    assert watched.metrics == plain.metrics
    assert watched.artifacts == plain.artifacts  # with their sha256
    assert [row["loss"] for row in watched.curve] == [row["loss"] for row in plain.curve]
    for kind in ("weights", "embeddings"):
        first, second = ((tmp_path / way / kind / f"{one.id}.safetensors").read_bytes() for way in ("plain", "watched"))
        assert first == second
    assert all("train R@1" in row for row in watched.curve)
    assert not any("train R@1" in row for row in plain.curve)


def nearest_is_right(embeddings: torch.Tensor, labels: torch.Tensor) -> float:
    """Recall@1 by a loop."""
    hits = 0
    for query in range(len(labels)):
        distances = (embeddings.double() - embeddings[query].double()).square().sum(1)
        distances[query] = float("inf")
        hits += int(labels[distances.argmin()] == labels[query])
    return hits / len(labels)


def test_curves_hold_recall_of_the_held_out_and_of_the_training_images(small: Path, tmp_path: Path) -> None:
    one = trial("normalized_softmax", epochs=3, lr=3e-3, augment="drawings")
    result, seen = run(one, tmp_path, keep_weights=True, curves=True)
    first_epoch = [event.stage for event in seen[: [event.closes_epoch for event in seen].index(True)]]
    assert first_epoch.count("evaluate") >= 2  # it is told that both are embedded: that may take long
    bench, _ = set_up(one)
    bench.model.load_state_dict(load_file(tmp_path / "weights" / f"{one.id}.safetensors"))
    bench.model.eval()
    fold, last = bench.fold, result.curve[-1]
    for name, images, labels in (("R@1", fold.test, fold.test_labels), ("train R@1", fold.train, fold.train_labels)):
        batch = transforms.to_float(transforms.plain(bench.images, images, one))
        assert last[name] == pytest.approx(nearest_is_right(measuring.embed(bench, batch), labels))
    assert last["R@1"] == result.metrics["R@1"]
    assert last["R@1"] != last["train R@1"]  # else the comparison shows little
    assert len({row["train R@1"] for row in result.curve}) > 1


def test_curves_take_no_training_time_and_no_k_means(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retrieval, metrics, calls = evaluate.retrieval, evaluate.metrics, []

    def slow(*arguments: Any) -> dict[str, float]:
        time.sleep(0.5)
        return retrieval(*arguments)

    def counted(*arguments: Any) -> dict[str, float]:
        calls.append(arguments)
        return metrics(*arguments)

    monkeypatch.setattr(evaluate, "retrieval", slow)
    monkeypatch.setattr(evaluate, "metrics", counted)  # with NMI
    begun = time.perf_counter()
    result, _ = run(trial(epochs=2), tmp_path, curves=True)
    # twice in each epoch, and once in the end
    assert result.seconds["train"] <= time.perf_counter() - begun - 5 * 0.5
    assert len(calls) == 1


@pytest.mark.parametrize("begun_with", [True, False])
def test_a_curve_has_no_holes_whatever_it_began_with(small: Path, tmp_path: Path, begun_with: bool) -> None:
    """With curves a trial goes on where it was; without, its first epochs were not measured, so it starts again."""
    one = trial(epochs=3, pretrain_epochs=1)
    whole, _ = run(one, tmp_path / "whole", curves=True)
    broken = train.run(Job(one, blobs(), str(tmp_path / "cut"), threads=1, curves=begun_with))
    for event in broken:
        if event.closes_epoch and (event.stage, event.epoch) == ("train", 2):
            break
    broken.close()
    resumed, seen = run(one, tmp_path / "cut", curves=True)
    stages = [event.stage for event in seen]
    assert "pretrain" not in stages  # it is shared
    assert seen[stages.index("train")].epoch == (3 if begun_with else 1)
    assert resumed.metrics == whole.metrics
    for fact in ("epoch", "loss", "images", "R@1", "train R@1"):
        assert [row[fact] for row in resumed.curve] == [row[fact] for row in whole.curve]


def test_evaluation_is_not_in_the_training_seconds(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = evaluate.metrics

    def slow(*arguments: Any) -> dict[str, float]:
        time.sleep(1.0)
        return real(*arguments)

    monkeypatch.setattr(evaluate, "metrics", slow)
    begun = time.perf_counter()
    seconds = run(trial(), tmp_path)[0].seconds
    assert seconds["evaluate"] >= 1.0
    assert seconds["train"] <= time.perf_counter() - begun - 1.0
    assert seconds["total"] == pytest.approx(seconds["train"] + seconds["evaluate"], abs=0.01)
