"""Budgets: which runs count, and in which words."""

from dataclasses import replace

import pytest

from harness import config
from harness.analysis import budget
from harness.analysis.budget import Budgets
from harness.spec import Result
from losses.space import Range
from tests.factories import loss_row


def trial(score: float, **changes: object) -> Result:
    """A search trial of one hour on one core."""
    run = loss_row("triplet", "Triplet", score, **{"fold": "val0", **changes})
    return replace(run, seconds={"total": 3600.0})


def test_search_trials_and_final_runs_of_the_same_settings_count() -> None:
    final = [loss_row("triplet", "Triplet", 0.5, seed=seed) for seed in range(2)]
    counted = [trial(0.1, lr=0.1), trial(0.2, lr=0.2)]
    others = [
        trial(0.3, lr=0.1, seed=1),  # a second seed of a configuration
        trial(0.4, lr=0.1, fold="val1"),  # the protocol has one fold
        trial(0.5, lr=0.1, epochs=9),
        replace(trial(0.6, lr=0.3), provenance={"purpose": "grid"}),
        loss_row("group", "Group Loss", 0.7, fold="val0"),
        loss_row("triplet", "Triplet", 0.8, lr=0.7),  # another final configuration
        replace(final[0], recipe="sklearn", members=(final[0].id,)),
    ]
    spent = Budgets([*others, *counted, *final]).of(final[0].trial)
    assert sorted(spent.scores) == [0.1, 0.2]
    assert {run.id for run in spent.search_runs} == {run.id for run in counted}
    assert spent.final == tuple(final)


def test_a_configuration_counts_with_the_mean_over_the_folds_and_not_without_all_of_them() -> None:
    folds = [
        replace(trial(0, protocol="fair", fold=f"val{fold}"), metrics={"R@1": 0, "MAP@R": score})
        for fold, score in enumerate((0.1, 0.2, 0.3, 0.6))
    ]
    assert Budgets(folds).of(folds[0].trial).scores == (0.3,)
    assert Budgets(folds[1:]).of(folds[0].trial).scores == ()


def test_hours_are_core_hours_on_a_cpu_and_hours_on_a_gpu() -> None:
    on_cpu = replace(trial(0.1, lr=0.1), provenance={"threads": 4})
    on_gpu = replace(trial(0.1, lr=0.2), provenance={"threads": 4, "device_type": "cuda"})
    assert Budgets([on_cpu, on_gpu]).of(on_cpu.trial).hours == {"CPU-hours": 4.0, "GPU-hours": 1.0}


def test_hours_say_what_they_count_and_which_records_are_older() -> None:
    new = replace(trial(0.1, lr=0.1), seconds={"wait": 9.0, "pretrain": 1.0, "train": 1.0, "total": 2.0})
    old = trial(0.1, lr=0.2)
    watched = replace(trial(0.1, lr=0.3), curve=({"epoch": 1, "R@1": 0.5},))
    waited = replace(trial(0.1, lr=0.4), seconds={"pretrain": 9.0, "total": 10.0})
    assert budget.meaning_of_hours([new, old]) == [budget.HOURS]  # an old record without either counts the same
    assert budget.meaning_of_hours([new, watched, watched, waited]) == [
        budget.HOURS,
        "The hours of 1 older run leave out evaluation after each epoch.",
        "The hours of 1 older run count waiting as pre-training.",
    ]


def test_numbers_have_units_and_plurals() -> None:
    assert budget.counted([1, 1], "final run") == "1 final run"
    assert budget.counted([2], "final run") == "2 final runs"
    assert budget.counted([0, 1], "final run") == "0 to 1 final runs"
    assert budget.span([0.001, 12.3]) == "under 0.01 to 12"
    assert budget.span([12345, 12345]) == "12,345"


def test_a_protocol_that_is_gone_selected_by_recall_on_one_fold() -> None:
    assert budget.selection("gone") == (1, "R@1")
    assert budget.selection("fair") == (4, "MAP@R")


def test_a_setting_that_the_protocol_searches_may_differ_between_search_and_final_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    final, searched = loss_row("triplet", "Triplet", 0.5), trial(0.1, warmup_epochs=0.7)
    assert not Budgets([searched]).of(final.trial).search
    protocol = config.protocol("quick")
    searching = replace(protocol, search={**protocol.search, "warmup_epochs": Range(0.5, 2.0)})
    monkeypatch.setattr(config, "find_protocol", lambda name: searching)
    assert len(Budgets([searched]).of(final.trial).search) == 1


def test_a_shared_pretraining_counts_once_for_each_loss_and_the_caption_says_so() -> None:
    shared = {"provenance": {"threads": 2, "pretraining": {"id": "0" * 12, "seconds": 1800.0}}}
    runs = [replace(trial(0.1, lr=lr), **shared) for lr in (0.1, 0.2)]
    assert Budgets(runs).of(runs[0].trial).hours == {"CPU-hours": 2 * 2.5}
    assert budget.SHARED_HOURS in budget.meaning_of_hours(runs)
    assert budget.SHARED_HOURS not in budget.meaning_of_hours([trial(0.1)])
