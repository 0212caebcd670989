"""A run with an executor that makes up its results: what is planned, stored, announced and said, and in which order."""

import dataclasses
import errno
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness import config, plan
from harness.execution import announcement, estimate
from harness.execution.account import Account
from harness.execution.display import Display
from harness.execution.run import Executor, Run
from harness.execution.text import BestScores, outcome
from harness.spec import Event, Experiment, Failure, Job, Listener, Result, Stopped, Trial, UserError, disk_error
from harness.storage import Storage
from harness.store import Store
from tests.factories import a_result, a_trial


def experiment(*losses: str, **changes: Any) -> Experiment:
    specs = tuple(map(config.loss, losses))
    return Experiment(config.dataset("emoji"), config.protocol("quick"), specs, keep_weights="none", **changes)


Jobs = Iterable[Job | None]


def made_up(jobs: Jobs, listener: Listener) -> None:
    """Every trial ends at once."""
    for job in jobs:
        assert job is not None
        listener(job.trial, a_result(job.trial))


def a_run(tmp_path: Path, planned: Experiment, executor: Executor = made_up, *listeners: Listener) -> Run:
    account = Account(planned, Store(tmp_path / "results"))
    display = Display(Console(file=io.StringIO()))
    return Run(account, Storage(str(tmp_path / "storage")), executor, display, listeners)


def test_a_result_is_stored_before_anybody_hears_of_it(tmp_path: Path) -> None:
    heard: list[bool] = []

    def listen(trial: Trial, event: Event) -> None:
        heard.append(Store(tmp_path / "results").get(trial) is not None)

    results = a_run(tmp_path, experiment("triplet"), made_up, listen)()
    assert heard == [True, True, True]  # raw pixels, the untrained network, the loss
    assert len(results) == 3


def test_the_census_knows_how_many_wait_while_the_run_gets_ready(tmp_path: Path) -> None:
    """The gauges are exported while nodes are prepared, too."""
    planned = experiment("triplet", trials=2, seeds=2, settings={"pretrain_epochs": 1})
    run = a_run(tmp_path, planned)
    Store(tmp_path / "results").put(a_result(run.account.baselines[0]))
    run = a_run(tmp_path, planned)
    with run.getting_ready():
        ready = run.census.done, run.census.waiting
    assert ready == (1, 8)  # a baseline; the other one, 3 pre-trainings, 2 search trials, 2 final runs


def test_what_a_run_waits_for_is_shown_and_announced_until_it_is_there(tmp_path: Path) -> None:
    announced: list[str] = []

    def wait(jobs: Jobs, listener: Listener) -> None:
        for text in ("waiting for a node", ""):
            run.wait(text)
            announced.extend(plan.waits_for for plan in announcement.read(run.storage))
        made_up(jobs, listener)

    run = a_run(tmp_path, experiment("triplet"), wait)
    run()
    assert announced == ["waiting for a node", ""]
    assert isinstance(run.display.console.file, io.StringIO)
    assert run.display.console.file.getvalue().count("waiting for a node") == 1


def test_trials_are_planned_once_however_often_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("search", "baselines", "final", "grid"):
        real = getattr(plan, name)
        monkeypatch.setattr(plan, name, lambda *given, name=name, real=real: (calls.append(name), real(*given))[1])
    run = a_run(tmp_path, experiment("triplet"))
    run()
    assert sorted(calls) == ["baselines", "final", "grid", "search"]


def test_the_account_of_a_search_names_final_runs_when_it_has_ended(tmp_path: Path) -> None:
    run = a_run(tmp_path, experiment("triplet", "group", trials=3, seeds=2))
    account = run.account
    assert not account.final
    assert len(account.unnamed()) == 4
    assert len(account.pending(account.known)) == 6 + 2  # the untrained network has no random part
    run()
    again = Account(account.experiment, Store(tmp_path / "results"))
    assert again.is_complete
    assert not again.unnamed()
    assert [trial.loss for trial in again.final] == ["triplet", "triplet", "group", "group"]
    assert not again.left_out()


def test_a_loss_whose_search_failed_is_left_out(tmp_path: Path) -> None:
    def failing(jobs: Jobs, listener: Listener) -> None:
        for job in jobs:
            assert job is not None
            wrong = job.trial.loss == "group"
            listener(job.trial, Failure(job.trial, "no", "") if wrong else a_result(job.trial))

    run = a_run(tmp_path, experiment("triplet", "group", trials=2), failing)
    results = run()
    assert {result.trial.loss for result in results} == {"none", "triplet"}
    assert [loss.name for loss in run.account.left_out()] == ["group"]
    assert len(run.failures) == 2


def test_what_is_planned_is_announced_while_it_runs(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def watch(trial: Trial, event: Event) -> None:
        (plan,) = announcement.read(Storage(str(tmp_path / "storage")))
        seen.append((len(plan.trials), plan.unnamed))

    a_run(tmp_path, experiment("triplet", trials=3, seeds=2), made_up, watch)()
    # three search trials and two baselines, and two final runs, which are named when the search has ended
    assert seen == 3 * [(5, 2)] + 4 * [(7, 0)]
    assert not announcement.read(Storage(str(tmp_path / "storage")))


def test_a_disk_error_stops_the_run_and_another_failure_does_not(tmp_path: Path) -> None:
    ran: list[str] = []

    def full(jobs: Jobs, listener: Listener) -> None:
        for job in jobs:
            assert job is not None
            ran.append(job.trial.name)
            listener(job.trial, Failure(job.trial, "OSError: full", "", disk_error="full" if len(ran) == 2 else ""))

    run = a_run(tmp_path, experiment("triplet", "group"), full)
    with pytest.raises(UserError, match=": OSError: full; finished trials are stored"):
        run()
    assert len(ran) == len(run.failures) == 2
    assert len(list((tmp_path / "results" / "failures").rglob("*.json"))) == 2


def test_a_full_or_read_only_disk_is_known_by_its_number_also_where_it_was_put_in_other_words() -> None:
    def write() -> None:
        try:
            raise OSError(errno.ENOSPC, "voll")
        except OSError:
            raise UserError("cannot write the cache") from None

    with pytest.raises(UserError) as caught:
        write()
    assert disk_error(caught.value) == "No space left on device"
    assert disk_error(OSError(errno.EROFS, "")) == "Read-only file system"
    assert disk_error(OSError(errno.EACCES, "no space left on device")) == ""


def test_how_a_trial_ended_in_words() -> None:
    stopped = Stopped(a_trial(), 2, {"R@1": 0.412, "MAP@R": 0.2})
    assert outcome(stopped) == "stopped by the scheduler after epoch 2 (R@1 41.2)"
    assert outcome(Stopped(a_trial(), 1, {})) == "stopped by the scheduler after epoch 1"
    assert outcome(Failure(a_trial(), "RuntimeError: x", "")) == "failed: RuntimeError: x"


def searched(fold: str, score: float, **changes: Any) -> Result:
    return a_result(a_trial(fold=fold, **changes), **{"R@1": score})


def test_the_best_score_of_a_search_is_a_mean_over_folds_that_have_all_ended() -> None:
    best = BestScores("R@1", folds=2)
    best.add(searched("val0", 0.9, lr=0.1), {"search"})
    best.add(searched("val0", 0.5, lr=0.2), {"search"})
    assert best.scores == {}
    best.add(searched("val1", 0.7, lr=0.2), {"search"})
    assert best.scores == {"triplet": pytest.approx(0.6)}
    best.add(searched("val1", 0.1, lr=0.1), {"search"})
    assert best.scores == {"triplet": pytest.approx(0.6)}
    best.add(searched("test", 1.0), {"run"})
    assert best.scores == {"triplet": pytest.approx(0.6)}


@pytest.mark.parametrize(
    ("changes", "asked", "seconds"),
    [
        # 400 training and 100 test images; an image costs 1 s of training and 0.1 s of evaluation
        ({"fold": "test"}, {}, 3 * 400 + 10),
        ({"fold": "val0"}, {}, 3 * 300 + 10),  # a quarter of the training classes is held out
        ({"fold": "test"}, {"curves": True}, 3 * (400 + 50) + 10),
        ({"fold": "test", "checkpoint": "best-test"}, {}, 3 * (400 + 10) + 10),
        ({"fold": "val0"}, {"scheduler": "asha"}, 3 * (300 + 10) + 10),
        ({"fold": "test"}, {"scheduler": "asha"}, 3 * 400 + 10),
        ({"fold": "test", "warmup_epochs": 2.0}, {}, 2 * 40 + 3 * 400 + 10),  # without a gradient of the trunk
    ],
)
def test_the_estimate_counts_every_evaluation(
    tmp_path: Path, changes: dict[str, Any], asked: dict[str, Any], seconds: float
) -> None:
    planned = experiment("triplet", **asked)
    dataset = dataclasses.replace(planned.dataset, train_images=400, test_images=100)
    account = Account(dataclasses.replace(planned, dataset=dataset), Store(tmp_path))
    cost = estimate.Cost(train=1.0, evaluate=0.1, parameters=0, dim=0)
    trial = a_trial(**{"epochs": 3, "warmup_epochs": 0.0, **changes})
    account.named.add(trial.id)  # asked for, not only a teacher of another
    assert estimate.seconds_of(trial, account, cost) == pytest.approx(seconds)
