"""The loop: resumed to the bit, and the best epoch on the held-out classes."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from harness.spec import Job, Progress, Trial
from harness.storage import Storage
from harness.training import loop, measuring, setup
from harness.training import trial as train
from tests.training.trials import blobs, run, trial

MEASURE = measuring.measure


def scripted(monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> None:
    """The held-out R@1 after each epoch is what the script says; the networks are real."""
    rest = iter(scores)

    def measure(*arguments: Any) -> Generator[Progress, None, dict[str, float]]:
        found = yield from MEASURE(*arguments)
        return {**found, "R@1": next(rest)}

    monkeypatch.setattr(measuring, "measure", measure)


def kept_states(one: Trial, folder: Path) -> list[dict[str, torch.Tensor]]:
    """The network after each epoch, from its checkpoints."""
    states = []
    running = train.run(Job(one, blobs(), str(folder), threads=1, keep_weights=True))
    for event in running:
        if event.closes_epoch and event.stage == "train":
            states.append(loop.Checkpoint.read(Storage(str(folder)), one).state["model"])
    return states


def test_best_test_ends_with_the_network_of_the_best_epoch(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = trial(epochs=4, checkpoint="best-test", schedule="drops", lr=1e-2)
    scripted(monkeypatch, [0.1, 0.6, 0.6, 0.3])
    states = kept_states(one, tmp_path)
    final = load_file(tmp_path / "weights" / f"{one.id}.safetensors")
    assert all(torch.equal(final[name], states[1][name]) for name in final)  # the first of the two best
    assert not all(torch.equal(final[name], states[3][name]) for name in final)


def test_best_test_records_what_it_chose_on_and_last_looks_at_nothing(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, [0.1, 0.6])
    chosen, _ = run(trial(epochs=2, checkpoint="best-test"), tmp_path)
    assert [row["R@1"] for row in chosen.curve] == [0.1, 0.6]
    monkeypatch.setattr(measuring, "measure", lambda *_: pytest.fail("looked at the held-out classes"))
    last, _ = run(trial(epochs=2), tmp_path)
    assert all("R@1" not in row for row in last.curve)


def test_reloads_go_on_from_the_best_network(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epoch 3 after a reload of epoch 1's network: a run whose epoch 2 leaves no trace but the optimizer's moments."""
    began: list[dict[str, torch.Tensor]] = []
    real = loop.load

    def spy(bench: setup.Bench, *more: Any) -> Any:
        began.append({name: value.clone() for name, value in bench.model.state_dict().items()})
        return real(bench, *more)

    monkeypatch.setattr(loop, "load", spy)
    scripted(monkeypatch, [0.9, 0.2, 0.3])
    one = trial(epochs=3, checkpoint="best-test", schedule="reloads", drops=(2,), lr=1e-2)
    states = kept_states(one, tmp_path)
    assert all(torch.equal(began[2][name], states[0][name]) for name in states[0])
    assert not all(torch.equal(began[2][name], states[1][name]) for name in states[1])


def test_a_reloading_trial_goes_on_from_its_checkpoint_with_the_same_bits(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = trial(epochs=4, checkpoint="best-test", schedule="reloads", drops=(2,), lr=1e-2)
    scores = [0.5, 0.2, 0.4, 0.1]
    scripted(monkeypatch, scores)
    whole, _ = run(one, tmp_path / "whole")
    scripted(monkeypatch, scores[:2])
    running = train.run(Job(one, blobs(), str(tmp_path / "cut"), threads=1))
    for event in running:
        if event.closes_epoch and event.epoch == 2:
            break
    running.close()
    scripted(monkeypatch, scores[2:])
    resumed, _ = run(one, tmp_path / "cut")
    assert resumed.metrics == whole.metrics
    assert [row["loss"] for row in resumed.curve] == [row["loss"] for row in whole.curve]


def test_a_trial_goes_on_from_its_checkpoint_with_the_same_bits(small: Path, tmp_path: Path) -> None:
    one = trial("group", epochs=3, pretrain_epochs=2, augment="drawings")
    whole, _ = run(one, tmp_path / "whole")
    for stage, epoch in (("pretrain", 1), ("train", 1), ("train", 2)):
        folder = tmp_path / f"{stage}{epoch}"
        broken = train.run(Job(one, blobs(), str(folder), threads=1))
        for event in broken:
            if event.closes_epoch and (event.stage, event.epoch) == (stage, epoch):
                break
        broken.close()
        resumed, seen = run(one, folder)
        assert resumed.metrics == whole.metrics
        for fact in ("epoch", "loss", "images"):
            assert [row[fact] for row in resumed.curve] == [row[fact] for row in whole.curve]
        first = seen[0]
        assert (first.stage, first.epoch) == (stage, epoch + 1) or (stage, epoch) == ("pretrain", 2)
