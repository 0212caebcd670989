"""Ensembles are a part of the run like its trials: planned, shown, failed, started again."""

import json
import re
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import config
from harness.data import loading
from harness.evaluation import ensembles
from harness.evaluation.step import Step
from harness.execution.text import position
from harness.spec import Event, Failure, Job, Measurement, Progress, Result, finish
from harness.storage import Storage
from harness.store import Store
from harness.training import measuring
from harness.training import trial as training
from tests.conftest import Harness
from tests.factories import a_result, a_trial
from tests.training.trials import blobs

RUN = ["run", "--losses", "triplet", "--dataset", "blobs", "--seeds", "3"]
BOTH = [*RUN, "--ensemble", "2,3"]


def results_of(tmp_path: Path) -> list[Result]:
    results, problems = Store(tmp_path / "results").results()
    assert not problems
    return results


def test_a_plan_names_its_ensembles(small: Path, tmp_path: Path, harness: Harness) -> None:
    said = harness(*BOTH, "--dry-run")
    names = re.findall(r"triplet-blobs-[23]-ensemble-\w{12} +to run +[23] of 3 networks", said.out)
    assert len(names) == 2
    assert "9 to run" in said.out  # four baselines, three final runs, two ensembles
    assert "7 trials and 2 ensembles: 0 stored, 9 to run" in harness(*BOTH).all_err
    assert "7 trials and 2 ensembles: all stored, nothing to run" in harness(*BOTH).all_err
    assert "nothing to run" in harness(*BOTH, "--dry-run").out
    later = harness(*BOTH, "--trials", "2", "--dry-run")
    assert "then 3 final runs with the values of the best R@1, and 2 ensembles of them" in later.out


def test_a_run_says_what_each_ensemble_gave_and_what_a_missing_one_needs_is_only_the_storage(
    small: Path, tmp_path: Path, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert harness(*RUN).code == 0
    monkeypatch.setattr(loading, "EMBEDDED", tmp_path / "gone")
    said = harness(*BOTH)
    assert said.code == 0
    for number, size in ((1, 2), (2, 3)):
        assert re.search(rf"\[{number}/2\] triplet-blobs-{size}-ensemble-\w{{12}}  R@1 [\d.]+  NMI", said.err)
    assert "subset 3/3  clustering for NMI" in said.err
    assert "| Triplet, 2-ensemble |" in said.out


def test_an_ensemble_that_fails_is_recorded_and_measured_by_the_same_command_again(
    small: Path, tmp_path: Path, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = training.events

    def events(job: Job, *rest: object) -> Iterator[Event]:
        if job.measurement and job.measurement.ensemble == 3:
            yield Failure(job.work, "RuntimeError: no", "")
        else:
            yield from real(job, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(training, "events", events)
        said = harness(*BOTH)
    assert said.code == 1
    assert re.search(r"failed: triplet-blobs-3-ensemble-\w{12}: RuntimeError: no", said.err)
    (file,) = Store(tmp_path / "results").failures()
    record = json.loads(file.read_text())
    assert record["name"].endswith(record["id"])
    assert record["id"] == file.stem
    assert "triplet-blobs-3-ensemble" in harness("status").out
    assert "RuntimeError: no" in harness("show", record["id"]).out
    assert {result.ensemble for result in results_of(tmp_path)} == {0, 2}
    assert harness(*BOTH).code == 0
    assert {result.ensemble for result in results_of(tmp_path)} == {0, 2, 3}
    assert not Store(tmp_path / "results").failures()


def test_an_ensemble_whose_run_failed_is_named_as_not_run(
    small: Path, tmp_path: Path, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = training.events

    def events(job: Job, *rest: object) -> Iterator[Event]:
        if job.trial.loss == "triplet" and job.trial.seed == 1:
            yield Failure(job.work, "RuntimeError: no", "")
        else:
            yield from real(job, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(training, "events", events)
        said = harness(*RUN, "--ensemble", "2")
    assert said.code == 1
    assert re.search(r"2-ensemble-\w{12}: not run: it needs triplet-blobs-test-\w{12}, which failed: Run", said.err)
    assert not any(result.is_ensemble for result in results_of(tmp_path))
    assert harness(*RUN, "--ensemble", "2").code == 0
    assert sum(result.is_ensemble for result in results_of(tmp_path)) == 1


def test_rerun_measures_ensembles_again_after_their_runs(small: Path, tmp_path: Path, harness: Harness) -> None:
    assert harness(*RUN, "--ensemble", "2").code == 0
    before = {result.id: result.metrics for result in results_of(tmp_path)}
    said = harness(*RUN, "--ensemble", "2", "--rerun")
    assert re.search(r"\[8/8\] triplet-blobs-2-ensemble", said.err)
    assert {result.id: result.metrics for result in results_of(tmp_path)} == before


def test_a_measurement_reports_which_networks_it_joins(small: Path, tmp_path: Path, harness: Harness) -> None:
    assert harness(*RUN).code == 0
    runs = sorted((result for result in results_of(tmp_path) if result.is_final), key=lambda run: run.trial.seed)
    runs[0] = replace(runs[0], provenance={**runs[0].provenance, "finished": "2026-01-01T00:00:00+00:00"})
    ensemble = Measurement(runs=tuple(run.trial for run in runs), ensemble=2)
    storage = str(tmp_path / "results" / "artifacts")
    job = Job(ensemble.trial, blobs(), storage, needs=tuple(runs), measurement=ensemble)
    *reports, result = training.events(job)
    assert isinstance(result, Result)
    assert result.provenance["finished"] >= runs[1].provenance["finished"]  # it is not as old as its first run
    assert all(isinstance(report, Progress) for report in reports)
    assert [report.subset for report in reports if report.stage == "rank"][:1] == ["1/3"]
    assert {report.subset for report in reports} == {"1/3", "2/3", "3/3"}
    assert position(reports[-1]).startswith("subset 3/3  clustering for NMI")
    alone = finish(ensembles.measure(ensemble, runs, job.dataset.recall_at, Storage(storage)))
    assert (result.metrics, result.members) == (alone.metrics, alone.members)
    assert result.id == ensemble.id
    gone = replace(job, storage=str(tmp_path / "elsewhere"))
    (failure,) = training.events(gone)
    assert isinstance(failure, Failure)
    assert failure.work == ensemble
    assert "are not in" in failure.error


@pytest.mark.parametrize(("device", "expected"), [(None, "cuda"), ("cpu", "cpu")])
@pytest.mark.parametrize("kind", [{"ensemble": 2}, {"recipe": "sklearn"}])
def test_an_ensemble_and_a_run_measured_again_are_measured_on_the_workers_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: dict[str, Any], device: str | None, expected: str
) -> None:
    """A worker that has a GPU is given no device."""
    devices: list[str] = []

    def measure(*words: Any) -> Generator[Step, None, Result]:
        devices.append(str(words[-1]))
        yield from ()
        return a_result()

    monkeypatch.setattr(ensembles, "measure", measure)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    runs = tuple(a_result(a_trial(seed=seed)) for seed in range(2 if "ensemble" in kind else 1))
    measurement = Measurement(runs=tuple(run.trial for run in runs), **kind)
    job = Job(
        measurement.trial, config.dataset("emoji"), str(tmp_path), measurement=measurement, needs=runs, device=device
    )
    finish(measuring.measure_stored(job, measurement))
    assert devices == [expected]
