"""What a node must have for trials: what lacks is named, by column, and nothing else is looked at in vain."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import provenance
from harness.execution import node
from harness.spec import Job, Progress, finish
from harness.storage import Storage
from harness.training import trial as training
from tests.execution.ray_runs import experiment, jobs_of


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return jobs_of(experiment("triplet"), tmp_path / "storage")[0]


@pytest.fixture
def expected(job: Job) -> node.Expected:
    Storage(job.storage).write("probe", b"word")
    return node.Expected(job.storage, "probe", b"word", provenance.versions())


def findings(expected: node.Expected, *jobs: Job, gpus: float = 0) -> node.Findings:
    return finish(node.prepare(expected, jobs, gpus))


def test_a_node_as_the_driver_expects_it_has_no_problem(expected: node.Expected, job: Job) -> None:
    signs: list[Progress] = []
    found = finish(node.prepare(expected, [job], 0), signs.append)
    assert found.problems == {}
    assert found.contents == (job.dataset.sha256,)
    assert len(signs) == 1, "a sign of life, once the storage was looked at"
    assert set(expected.packages) == {"torch", "torchvision", "timm", "numpy", "pillow"}
    assert all(expected.packages.values())


def test_another_version_is_named_with_the_drivers(expected: node.Expected) -> None:
    other = dataclasses.replace(expected, packages={**expected.packages, "timm": "0.1"})
    here = expected.packages["timm"]
    assert findings(other).problems == {"packages": f"timm {here}, the driver has 0.1"}


def test_a_package_that_is_missing_is_named(expected: node.Expected, monkeypatch: pytest.MonkeyPatch) -> None:
    real = provenance.version_of
    monkeypatch.setattr(provenance, "version_of", lambda name: None if name == "pillow" else real(name))
    version = expected.packages["pillow"]
    assert findings(expected).problems == {"packages": f"pillow is missing, the driver has {version}"}


def test_a_storage_without_the_drivers_file_is_not_seen(expected: node.Expected, tmp_path: Path) -> None:
    elsewhere = dataclasses.replace(expected, storage=str(tmp_path / "another disk"))
    assert findings(elsewhere).problems == {"storage": "not seen"}
    stale = dataclasses.replace(expected, content=b"of another driver")
    assert findings(stale).problems == {"storage": "not seen"}


@pytest.mark.parametrize(("failures", "problem"), [(2, {}), (3, {"storage": "not seen (OSError: come back later)"})])
def test_a_storage_that_fails_once_or_twice_is_asked_again(
    expected: node.Expected, monkeypatch: pytest.MonkeyPatch, failures: int, problem: dict[str, str]
) -> None:
    left = [failures]

    def flaky(read: Callable[..., Any]) -> Callable[..., Any]:
        def failing(self: Storage, name: str) -> bytes | None:
            left[0] -= 1
            if left[0] >= 0:
                raise OSError("come back later")
            return read(self, name)

        return failing

    monkeypatch.setattr(node, "PAUSE", 0)
    monkeypatch.setattr(Storage, "read", flaky(Storage.read))
    assert findings(expected).problems == problem


def test_weights_that_are_not_there_or_are_others_are_named(expected: node.Expected, job: Job, tmp_path: Path) -> None:
    def with_weights(name: str) -> Job:
        trial = dataclasses.replace(job.trial, weights="file:000000000000")
        return dataclasses.replace(job, trial=trial, weights_file=str(tmp_path / name))

    assert list(findings(expected, with_weights("missing.pth")).problems) == ["weights"]
    (tmp_path / "other.pth").write_bytes(b"other")
    (problem,) = findings(expected, with_weights("other.pth")).problems.values()
    assert "the trial's weights have 000000000000; it was changed or replaced" in problem


def test_images_that_are_not_there_are_named(expected: node.Expected, job: Job, own_cache: Path) -> None:
    dataset = dataclasses.replace(job.dataset, name="photos", layout="folder", folder="/nowhere", path="/nowhere")
    problems = findings(expected, dataclasses.replace(job, dataset=dataset)).problems
    assert problems["images"].startswith("photos: not found at /nowhere")


def test_a_gpu_that_is_there_but_of_no_use_is_named(expected: node.Expected, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(provenance, "has_gpu", lambda: True)
    assert findings(expected, gpus=1).problems == {"GPUs": "torch can use none; its driver and torch do not fit"}
    assert findings(expected, gpus=0).problems == {}, "trials that need no GPU"
    monkeypatch.setattr(provenance, "has_gpu", lambda: False)
    assert findings(expected, gpus=1).problems == {}, "GPUs that are numbers"


def test_each_size_of_images_is_prepared_once(
    expected: node.Expected, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[int] = []
    real = training.prepare

    def noted(asked: Job) -> Any:
        prepared.append(asked.trial.resize)
        return real(asked)

    monkeypatch.setattr(training, "prepare", noted)
    larger = dataclasses.replace(job, trial=dataclasses.replace(job.trial, resize=32))
    assert findings(expected, job, larger, job).problems == {}
    assert sorted(prepared) == [16, 32]
