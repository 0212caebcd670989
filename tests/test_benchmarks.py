"""The benchmarks that train or dispatch run at their smallest: they call the same code as a run, and must follow it."""

import argparse
import contextlib
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from ray.cluster_utils import Cluster as RayCluster

from harness.spec import Failure
from harness.training import feeding
from tests.factories import a_trial

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def benchmark(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    for module in ("training", "sop_scale", "simulation", "object_store", "dispatch", "loss_functions"):
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


@pytest.mark.slow
def test_the_benchmark_of_dispatching_runs_trials_that_do_nothing(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dispatch = benchmark("dispatch", monkeypatch)
    monkeypatch.setattr(dispatch, "ROUNDS", 2)
    for measure in dispatch.ON_LOGICAL_GPUS.values():
        measure(cluster.address, 2, 20)
    dispatch.stored(2)
    dispatch.occupancy(cluster.address, 2, 0.1, trials=2, seeds=1)
    printed = capsys.readouterr().out
    assert "rate: 2 at once: " in printed
    assert "MB per 1,000 trials" in printed
    assert "reports/s" in printed
    assert "a GPU has none for " in printed
    assert "harness run with all 2 stored" in printed
    assert "trials worked in " in printed


def test_a_trial_that_fails_stops_the_benchmark_of_dispatching(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = Failure(a_trial(), "RuntimeError: no threads", "Traceback")
    with pytest.raises(RuntimeError, match="no threads"):
        benchmark("dispatch", monkeypatch).finish(failure.work, failure)


@pytest.mark.slow
def test_a_step_of_a_method_with_a_teacher_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = benchmark("loss_functions", monkeypatch).STEP
    monkeypatch.setattr(sys, "argv", ["-c", "rkd", "1"])
    exec(source, {})
    seconds, grown = json.loads(capsys.readouterr().out)
    assert seconds > 0
    assert grown >= 0


def test_a_part_of_the_dispatch_benchmark_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatch, ran = benchmark("dispatch", monkeypatch), []
    monkeypatch.setattr(dispatch.simulation, "nodes", lambda gpus: contextlib.nullcontext(f"of {gpus}"))
    monkeypatch.setitem(dispatch.ON_LOGICAL_GPUS, "pauses", lambda *words: ran.append(words))
    monkeypatch.setattr(sys, "argv", ["dispatch.py", "--parts", "pauses", "--concurrent", "2,20", "--noop", "7"])
    dispatch.main()
    assert ran == [("of 2", 2, 7), ("of 20", 20, 7)]
    monkeypatch.setattr(sys, "argv", ["dispatch.py", "--parts", "pause"])
    with pytest.raises(SystemExit):
        dispatch.main()


def test_a_simulation_counts_gpu_time_and_gaps_by_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = benchmark("simulation", monkeypatch)
    Work = simulation.Work
    seen = simulation.Simulation(2, lambda notes: lambda job: iter(()))
    seen.work = [Work("a", 0.0, 4.0), Work("b", 1.0, 3.0), Work("b", 3.5, 5.0), Work("a", 4.25, 10.0)]
    seen.reserved = [(-1.0, 2.0), *((moment, 1.5) for moment in range(11)), (11.0, 0.0)]
    seen.starts = [(-3.0, -1.0), (-2.0, 1.25), (1.5, 2.0)]
    assert sorted(seen.delays()) == [0.25, 0.5]
    assert seen.occupancy.of_started == 1.0
    assert (seen.occupancy.worked, seen.occupancy.reserved, seen.occupancy.there) == (13.25, 15.0, 20.0)


@pytest.mark.slow
def test_the_dispatch_benchmark_counts_the_requests_of_trials_and_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = benchmark("object_store", monkeypatch).requests(1, 1, "--executor", "local")
    assert counted.per_epoch == 1  # a checkpoint
    assert 0 < counted.per_trial < 20
    assert counted.per_run > 0
