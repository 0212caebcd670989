"""--dry-run: what a plan costs, by stored results or by a few timed batches."""

import os
import platform
from dataclasses import replace
from pathlib import Path

import pytest

from harness import config
from harness.execution import estimate, experience
from harness.execution.account import Account
from harness.execution.estimate import Estimate
from harness.execution.experience import Cost
from harness.request import Request
from harness.spec import Experiment, Job, Result
from harness.store import Store
from tests.factories import a_result, a_trial

EMOJI = config.dataset("emoji")


def measured(seconds: float, **changes: object) -> Result:
    """A final run on this machine that saw 1,000 images in so many seconds, and took as many to evaluate."""
    return replace(
        a_result(a_trial()),
        curve=({"epoch": 0, "loss": 1.0, "images": 500}, {"epoch": 1, "loss": 0.5, "images": 1000}),
        seconds={"train": seconds, "evaluate": seconds, "total": 2 * seconds},
        provenance={"node": platform.node(), "threads": 1, **changes},
    )


def test_the_cost_of_an_image_is_the_median_of_stored_results_of_this_machine() -> None:
    stored = [measured(10), measured(20), measured(90), measured(1, node="elsewhere"), measured(1, threads=4)]
    other = replace(measured(1), trial=a_trial(crop=32, resize=32))
    cost = experience.learned(a_trial(loss="group", knobs={}), EMOJI, [*stored, other], threads=1)
    assert cost is not None
    assert (cost.train, cost.evaluate, cost.runs) == (20 / 1000, 20 / EMOJI.test_images, 3)
    assert cost.dim == 1280
    assert experience.learned(a_trial(crop=128), EMOJI, stored, threads=1) is None
    assert experience.learned(a_trial(), EMOJI, stored, threads=2) is None
    assert experience.learned(a_trial(fold="val0"), EMOJI, stored, threads=1) is None  # fewer images to cluster


@pytest.mark.parametrize(
    ("cpus", "executor", "most", "trials", "expected"),
    [
        (1, "ray", None, 9, 8),
        (3, "ray", None, 9, 2),
        (1, "ray", None, 5, 5),
        (1, "ray", 3, 9, 3),
        (3, "ray", 3, 9, 2),
        (1, "local", None, 9, 1),
        (1, "local", 3, 9, 1),
    ],
)
def test_as_many_trials_run_at_once_as_fit(
    monkeypatch: pytest.MonkeyPatch, cpus: float, executor: str, most: int | None, trials: int, expected: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    request = Request(executor=executor, cpus_per_trial=cpus, gpus_per_trial=0, max_concurrent=most)  # type: ignore[arg-type]
    assert estimate.trials_at_once(request, trials) == expected


def test_an_estimate_is_never_of_no_time() -> None:
    assert str(Estimate(0.2, 1, 0.0, 0, 1)).startswith("about 0:00:01 with ")


def test_an_estimate_says_how_rough_it_is() -> None:
    by_results, by_timing = Estimate(600, 2, 1e6, 12, 0), Estimate(600, 1, 1e6, 12, 1)
    assert str(by_results) == (
        "about 0:10:00 with 2 trials at once on this machine, 1.0 MB of disk\n"
        "Rough, from 12 stored results like these: other work here makes it slower."
    )
    assert str(by_timing).startswith(
        "about 0:10:00 with one trial at a time on this machine, 1.0 MB of disk\nVery rough, "
    )


def test_when_it_is_late_the_dearest_network_stands_for_those_that_were_not_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A plan of many methods, each of which builds a network of its own, is answered in seconds."""
    monkeypatch.setattr(estimate, "probe", lambda job: Cost(9.0, 9.0, 9, 9))
    job = Job(a_trial(loss="bier", knobs={}), EMOJI, "")
    key = (*experience.kind(job.trial), "bier", True)
    cheap, dear = Cost(1.0, 1.0, 1, 1), Cost(2.0, 1.0, 1, 1)
    timed = {(*key[:-2], "", True): cheap, (*key[:-2], "hdc", True): dear}
    assert estimate.timed_once(job, timed, key, is_late=True) == dear
    assert estimate.timed_once(job, timed, key, is_late=False) == Cost(9.0, 9.0, 9, 9)
    assert estimate.timed_once(job, {}, key, is_late=True) == Cost(9.0, 9.0, 9, 9)  # something must be timed


def test_pretrainings_and_ensembles_count_and_run_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two final runs takes the seconds of its images; each needs a pre-training of its own seed."""
    monkeypatch.setattr(estimate, "learned", lambda *given: Cost(1.0, 1.0, 9, 9, 1))
    settings = {"epochs": 3, "warmup_epochs": 0.0, "pretrain_epochs": 2, "fold": "test"}
    planned = Experiment(EMOJI, config.protocol("quick"), (config.loss("triplet"),), seeds=2, settings=settings)
    account = Account(replace(planned, ensembles=(2,)), Store(tmp_path))
    final, (ensemble,) = account.final, account.ensembles
    train, test = EMOJI.train_images, EMOJI.test_images
    needs, alone = account.needs(final), 3 * train + test
    assert estimate.describe(final, account, 1, 2).seconds == alone
    assert estimate.describe([*needs, *final], account, 1, 1).seconds == 2 * (alone + 2 * train)
    assert estimate.describe([*needs, *final], account, 1, 2).seconds == alone + 2 * train
    assert estimate.describe([ensemble], account, 1, 1).seconds == 2 * test  # two networks, in one subset
    members = tuple(sorted(run.id for run in final))
    here = {"node": platform.node(), "threads": 1}
    stored = replace(a_result(final[0]), ensemble=2, members=members, seconds={"total": 7.0}, provenance=here)
    account.store.put(stored)
    assert estimate.describe([ensemble], account, 1, 1).seconds == 7.0
