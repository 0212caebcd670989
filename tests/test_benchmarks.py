"""The benchmarks that train run at their smallest: they call the same code as a trial, and must follow it."""

import argparse
import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from harness.training import feeding

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def benchmark(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    for module in ("training", "sop_scale"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return importlib.import_module(name)


@pytest.mark.slow
def test_the_training_benchmark_compares_our_loop_with_a_bare_one(monkeypatch: pytest.MonkeyPatch) -> None:
    training = benchmark("training", monkeypatch)
    _, setup, stage = training.prepared(argparse.Namespace(dataset="emoji", data_root="data", batches=2))
    batches = list(feeding.load(setup, stage, 1))
    ratio, checkpoint = training.ratio_to_bare(setup, stage, batches, epoch_steps=65)
    assert ratio > 0
    assert 0 < checkpoint < ratio
    assert set(training.parts(setup, stage)) == {"data", "forward", "loss", "backward", "optimizer"}


@pytest.mark.slow
def test_the_stand_in_of_stanford_online_products_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sop_scale = benchmark("sop_scale", monkeypatch)
    monkeypatch.setenv("HARNESS_CACHE", "")  # measure() sets it: this restores it
    sop_scale.measure(argparse.Namespace(fraction=0.004, losses="group", epochs=1, threads=1), tmp_path)
    printed = capsys.readouterr().out
    assert "45 + 45 classes, 238 + 242 images" in printed
    assert "k-means" in printed
    assert "our loop takes" in printed
