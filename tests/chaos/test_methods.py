"""A worker dies in the middle of each method that is more than a loss: the trial goes on, with the same bits."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster as RayCluster

import losses
from harness import config, plan
from harness.spec import Job, LossSpec
from tests.execution.ray_runs import Record, connected, experiment, same, serially

KNOBS: dict[str, dict[str, Any]] = {
    "a_bier": {},
    "abe": {"learners": 2},
    "bias_triplet": {},
    "bier": {},
    "divide_conquer": {"clusters": 2},
    "hdc": {},
    "hierarchical_triplet": {},
    "rkd": {},
}

FILE = """
import os
import losses.{name}

class Mine(losses.{name}.{kind}):
    def value(self, z, labels, batch):
        if os.path.exists({order!r}) and batch.epoch == 2:
            os.remove({order!r})
            os.kill(os.getpid(), 9)
        return super().value(z, labels, batch)
"""


def deadly(name: str, tmp_path: Path) -> tuple[LossSpec, Path]:
    """The method in a file of its own, whose worker dies at the first step of the second epoch if a file says so."""
    folder = tmp_path / name
    folder.mkdir()
    order, file = folder / "die", folder / f"{name}_mine.py"
    file.write_text(FILE.format(name=name, kind=losses.facts(name).class_name, order=str(order)))
    return config.loss(f"{file}:Mine"), order


def job_of(name: str, loss: LossSpec, folder: Path) -> Job:
    """Its job; of a student after its teacher."""
    knobs = {loss.name: KNOBS[name]}
    asked = experiment(loss, knobs=knobs, settings={"epochs": 2, "warmup_epochs": 0.0, "dim": 16})
    (trial,) = plan.final(asked, {})
    needs = plan.needs(asked, trial)
    teachers = [Job(need, asked.dataset, str(folder), teaches=True) for need in needs]
    results = serially(teachers, folder) if teachers else {}
    return Job(trial, asked.dataset, str(folder), sources=loss.sources, needs=tuple(results.values()))


@pytest.mark.chaos_long
@pytest.mark.fault(
    "the worker of each method that is more than a loss dies in the second epoch",
    "each trial goes on from the first one, with the same bits",
)
def test_a_killed_worker_of_each_method_is_survived(cluster: RayCluster, tmp_path: Path) -> None:
    assert list(KNOBS) == [name for name in losses.shipped() if losses.facts(name).extras]
    ready = {name: deadly(name, tmp_path) for name in KNOBS}
    jobs = [job_of(name, loss, tmp_path / "ray") for name, (loss, _) in ready.items()]
    undisturbed = serially([dataclasses.replace(job, storage=str(tmp_path / "serial")) for job in jobs], tmp_path / "s")
    for _, order in ready.values():
        order.touch()
    record = Record()
    with connected(cluster, tmp_path / "ray") as running:
        running.execute(jobs, record)
    assert not record.failures
    assert not any(order.exists() for _, order in ready.values())
    assert same(record.results, undisturbed)
    assert all(len(result.curve) == 2 for result in undisturbed.values())
    for job in jobs:  # the first epoch is not trained again
        epochs = [e.epoch for trial, e in record.events if trial == job.trial and getattr(e, "closes_epoch", False)]
        assert epochs == [1, 2]
