"""What can start now: nothing waits but for what it needs."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import config, plan
from harness.execution.account import Account
from harness.execution.agenda import Agenda
from harness.spec import Experiment, Failure, Measurement, Trial, Work, short_hash, trial_of
from harness.store import Store
from tests.factories import a_result


def an_agenda(tmp_path: Path, *losses: str, **changes: Any) -> Agenda:
    specs = tuple(map(config.loss, losses))
    planned = Experiment(config.dataset("emoji"), config.protocol("quick"), specs, keep_weights="none", **changes)
    account = Account(planned, Store(tmp_path))
    return Agenda(account, account.work)


def end(agenda: Agenda, trial: Work, failure: Failure | None = None) -> list[Failure]:
    result = a_result(trial_of(trial))
    if failure is None:
        agenda.account.store.put(result)
    return agenda.hear(trial, failure or result)


def started(given: Iterator[Work | None]) -> list[Work]:
    """All that can start now."""
    return list(iter(lambda: next(given, None), None))


def test_a_loss_whose_search_is_complete_goes_on_while_others_search(tmp_path: Path) -> None:
    agenda = an_agenda(tmp_path, "triplet", "group", trials=2, seeds=2)
    given = iter(agenda)
    first = started(given)
    assert [trial.loss for trial in first] == ["triplet", "triplet", "group", "group", "none", "none"]
    end(agenda, first[0])
    assert started(given) == []
    end(agenda, first[1])
    final = started(given)
    assert [(trial.loss, trial.fold) for trial in final] == 2 * [("triplet", "test")]
    assert agenda.account.searching == {"group"}
    assert [trial.loss for trial in agenda.account.unnamed()] == 2 * ["group"]
    for trial in (*first[2:], *final):
        end(agenda, trial)
    last = started(given)
    assert [(trial.loss, trial.fold) for trial in last] == 2 * [("group", "test")]
    for trial in last:
        end(agenda, trial)
    assert not agenda.unfinished
    assert list(given) == []


def test_a_search_whose_trials_fail_is_over_too(tmp_path: Path) -> None:
    agenda = an_agenda(tmp_path, "triplet", trials=2)
    given = iter(agenda)
    first, second, *baselines = started(given)
    end(agenda, first, Failure(first, "no", ""))
    end(agenda, second)
    (final,) = started(given)
    assert final.searched == second.searched
    for trial in (*baselines, final):
        end(agenda, trial)
    assert list(given) == []


def needing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trial needs one like it with another seed, which needs nothing."""

    def needs(_: Experiment, trial: Trial) -> tuple[Trial, ...]:
        return (dataclasses.replace(trial, seed=100),) if trial.loss == "triplet" and trial.seed < 100 else ()

    monkeypatch.setattr(plan, "needs", needs)


def test_what_a_trial_needs_comes_first_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needing(monkeypatch)
    agenda = an_agenda(tmp_path, "triplet", seeds=3)
    given = iter(agenda)
    *baselines, need = started(given)
    assert [trial.loss for trial in baselines] == ["none", "none"]
    assert need.seed == 100
    end(agenda, baselines[0])
    assert started(given) == []
    end(agenda, need)
    assert [trial.seed for trial in started(given)] == [0, 1, 2]


def test_pretrainings_of_several_seeds_start_together_and_each_frees_its_own(tmp_path: Path) -> None:
    agenda = an_agenda(tmp_path, "triplet", "group", seeds=2, settings={"pretrain_epochs": 1})
    given = iter(agenda)
    first, second, *baselines = sorted(
        started(given), key=lambda trial: not isinstance(trial, Trial) or trial.is_baseline
    )
    assert isinstance(first, Trial)
    assert isinstance(second, Trial)
    assert (first.is_pretraining, second.is_pretraining, len(baselines)) == (True, True, 2)
    assert {first.seed, second.seed} == {0, 1}
    end(agenda, second)
    freed = started(given)
    assert [(trial.loss, trial.seed) for trial in freed] == [("triplet", second.seed), ("group", second.seed)]


def test_what_is_stored_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needing(monkeypatch)
    need = next(trial for trial in started(iter(an_agenda(tmp_path, "triplet"))) if trial.seed == 100)
    Store(tmp_path).put(a_result(need))
    assert [trial.seed for trial in started(iter(an_agenda(tmp_path, "triplet"))) if not trial.is_baseline] == [0]


def test_what_needs_a_failed_trial_is_not_run_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needing(monkeypatch)
    agenda = an_agenda(tmp_path, "triplet", "group", seeds=2)
    given = iter(agenda)
    trials = started(given)
    need = next(trial for trial in trials if trial.seed == 100)
    refused = end(agenda, need, Failure(need, "RuntimeError: no", ""))
    assert [failure.work.seed for failure in refused] == [0, 1]
    assert {failure.error for failure in refused} == {f"not run: it needs {need.name}, which failed: RuntimeError: no"}
    for failure in refused:
        end(agenda, failure.work, failure)
    for trial in trials:
        end(agenda, trial)
    assert started(given) == []
    assert not agenda.unfinished
    assert {trial.loss for trial in trials} == {"none", "triplet", "group"}


def test_what_is_named_after_its_need_has_failed_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agenda = an_agenda(tmp_path, "triplet", trials=1)
    monkeypatch.setattr(
        plan, "needs", lambda _, trial: (dataclasses.replace(trial, fold="val3"),) if trial.is_final else ()
    )
    given = iter(agenda)
    (search, *_) = started(given)
    need = dataclasses.replace(search, fold="val3")
    agenda.add([need])
    assert started(given) == [need]
    end(agenda, need, Failure(need, "no", ""))
    refused = end(agenda, search)
    assert [failure.work.fold for failure in refused] == ["test"]


def test_what_is_needed_may_need_something_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def needs(_: Experiment, trial: Trial) -> tuple[Trial, ...]:
        return (dataclasses.replace(trial, seed=trial.seed + 100),) if trial.is_final and trial.seed < 200 else ()

    monkeypatch.setattr(plan, "needs", needs)
    agenda = an_agenda(tmp_path, "triplet")
    account = agenda.account
    assert [need.seed for need in account.needs(account.known)] == [200, 100]
    assert account.needs([*account.known, *account.needs(account.known)]) == []
    given = iter(agenda)
    *baselines, first = started(given)
    for trial in baselines:
        end(agenda, trial)
    for seed in (200, 100, 0):
        assert first.seed == seed
        end(agenda, first)
        (first, *_) = started(given) or [first]
    assert list(given) == []


def test_ensembles_start_when_their_runs_are_stored_while_other_losses_search(tmp_path: Path) -> None:
    agenda = an_agenda(tmp_path, "triplet", "group", trials=1, seeds=2, ensembles=(2,))
    given = iter(agenda)
    triplet, group, *baselines = started(given)
    assert len(agenda.account.unnamed_work()) == 2 * (2 + 1)
    end(agenda, triplet)
    first, second = started(given)
    end(agenda, first)
    assert started(given) == []
    end(agenda, second)
    (ensemble,) = started(given)
    assert isinstance(ensemble, Measurement)
    assert ensemble.runs == (first, second)
    assert ensemble.id == short_hash(f"2 of {' '.join(sorted([first.id, second.id]))}")  # as in stored records
    assert agenda.account.searching == {"group"}
    for work in (group, *baselines):
        end(agenda, work)
    for work in started(given):
        end(agenda, work)
    assert [work.loss for work in started(given)] == ["group"]


def test_an_ensemble_whose_run_failed_is_not_run_and_says_why(tmp_path: Path) -> None:
    agenda = an_agenda(tmp_path, "triplet", seeds=3, ensembles=(2, 3))
    *baselines, first, second, third = started(iter(agenda))
    end(agenda, first)
    refused = end(agenda, second, Failure(second, "RuntimeError: no", ""))
    assert [failure.work.name for failure in refused] == [ensemble.name for ensemble in agenda.account.ensembles]
    assert {failure.error for failure in refused} == {
        f"not run: it needs {second.name}, which failed: RuntimeError: no"
    }
    for failure in refused:
        end(agenda, failure.work, failure)
    for trial in (*baselines, third):
        end(agenda, trial)
    assert list(agenda) == []


def test_an_ensemble_is_done_only_while_its_runs_are(tmp_path: Path) -> None:
    agenda = an_agenda(tmp_path, "triplet", seeds=2, ensembles=(2,))
    account, store = agenda.account, agenda.account.store
    (ensemble,) = account.ensembles
    for trial in account.known:
        store.put(a_result(trial))
    assert (account.is_trained, account.is_complete) == (True, False)
    members = tuple(sorted(run.id for run in ensemble.runs))
    store.put(dataclasses.replace(a_result(ensemble.trial), ensemble=2, members=members))
    assert account.is_complete
    with_curves = Account(dataclasses.replace(account.experiment, curves=True), store)
    assert with_curves.pending(with_curves.work) == [*ensemble.runs, ensemble]
    assert Account(account.experiment, store, rerun=True).pending(account.ensembles) == [ensemble]


def test_without_final_runs_there_is_no_ensemble(tmp_path: Path) -> None:
    agenda = an_agenda(tmp_path, "triplet", trials=1, seeds=2, ensembles=(2,))
    search, *baselines = started(iter(agenda))
    end(agenda, search, Failure(search, "no", ""))
    for trial in baselines:
        end(agenda, trial)
    assert agenda.account.ensembles == []
    assert not agenda.unfinished
