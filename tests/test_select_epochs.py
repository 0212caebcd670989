"""The number of epochs, chosen on validation classes: `select_epochs` of a protocol and `stop_after` of a trial."""

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from harness import config, plan
from harness.analysis.results import best
from harness.execution import estimate
from harness.execution.account import Account
from harness.execution.text import BestScores
from harness.spec import SHARED, Experiment, Job, Progress, Protocol, Result, Trial, UserError, pretraining_key
from harness.store import Store
from harness.tables.build import build, build_all
from tests.cli.records import stored
from tests.conftest import Harness
from tests.factories import a_result, a_trial, an_experiment, loss_row
from tests.training.trials import run, run_until, trial

# --- the choice ---


def protocol(**changes: Any) -> Protocol:
    return dataclasses.replace(config.protocol("quick"), select_epochs=True, **changes)


def experiment(*losses: str, **changes: Any) -> Experiment:
    rules = changes.pop("protocol", protocol())
    return Experiment(config.dataset("emoji"), rules, tuple(map(config.loss, losses)), **changes)


def measured(trial: Trial, *scores: float) -> Result:
    """A search trial with this R@1 after each epoch; the warm-up comes before the first."""
    rows = [{"epoch": epoch, "loss": 1.0, "R@1": score} for epoch, score in enumerate(scores, start=1)]
    result = a_result(trial, **{"R@1": scores[-1]})
    return dataclasses.replace(
        result, curve=({"epoch": 0, "loss": 2.0}, *rows), provenance={"purpose": "search", "scheduler": "none"}
    )


def test_the_epoch_is_the_one_with_the_best_mean_over_the_folds_of_the_best_configuration() -> None:
    asked = experiment("triplet", protocol=protocol(folds=2), trials=2)
    first, second = (plan.search(asked)[number : number + 2] for number in (0, 2))
    results = [
        measured(first[0], 0.1, 0.9, 0.2, 0.5),  # best by itself after epoch 2, ...
        measured(first[1], 0.2, 0.1, 0.7, 0.4),
        measured(second[0], 0.3, 0.5, 0.6, 0.4),  # ... but on both folds this one after epoch 3
        measured(second[1], 0.3, 0.5, 0.6, 0.4),
    ]
    winner = best(results, "R@1", 2, select_epochs=True)["triplet"]
    assert (winner.score, winner.epoch) == (0.6, 3)
    assert winner.values == {**second[0].searched, "stop_after": 3}
    (final,) = plan.final(asked, {"triplet": winner.values})
    assert (final.fold, final.epochs, final.stop_after, final.last_epoch) == ("test", 4, 3, 3)
    at_the_end = best(results, "R@1", 2)["triplet"]
    assert (at_the_end.score, at_the_end.epoch) == (0.45, 0)
    assert at_the_end.values == first[0].searched


@pytest.mark.parametrize(
    ("scores", "epoch", "stop_after"), [((0.5, 0.7, 0.7, 0.1), 2, 2), ((0.1, 0.2, 0.3, 0.4), 4, 0), ((0.5,) * 4, 1, 1)]
)
def test_of_equal_epochs_the_first_counts_and_the_last_means_not_to_stop(
    scores: tuple[float, ...], epoch: int, stop_after: int
) -> None:
    asked = experiment("triplet", trials=1)
    winner = best([measured(plan.search(asked)[0], *scores)], "R@1", 1, select_epochs=True)["triplet"]
    assert winner.epoch == epoch
    (final,) = plan.final(asked, {"triplet": winner.values})
    assert final.stop_after == stop_after
    if not stop_after:
        assert "stop_after" not in final.to_json()


def test_a_users_stop_is_stronger_than_the_searchs() -> None:
    asked = experiment("triplet", trials=1, settings={"stop_after": 1})
    (final,) = plan.final(asked, {"triplet": {"stop_after": 3}})
    assert final.stop_after == 1
    assert {trial.stop_after for trial in plan.search(asked)} == {1}


@pytest.mark.parametrize("stop", [4, 5])
def test_a_stop_that_is_none_is_refused(stop: int) -> None:
    with pytest.raises(UserError, match=rf"^stop_after={stop}: must be below epochs=4, or 0 for all of them$"):
        plan.final(experiment("triplet", settings={"stop_after": stop}), {})


def test_an_epoch_is_not_chosen_in_two_ways() -> None:
    asked = experiment("triplet", trials=1, settings={"checkpoint": "best-test"})
    with pytest.raises(UserError, match=r"^checkpoint=best-test: .*must be last where a search chooses it"):
        plan.search(asked)
    plan.final(dataclasses.replace(asked, trials=0), {})


# --- which trials are measured, and which run again ---


def test_search_trials_are_measured_after_each_epoch_and_final_runs_are_not(tmp_path: Path) -> None:
    account = Account(experiment("triplet", trials=1), Store(tmp_path))
    (searched,) = account.search
    (final,) = account.unnamed()
    assert account.selects_epochs(searched)
    assert not account.selects_epochs(final)
    assert not any(map(account.selects_epochs, account.baselines))
    without = Account(experiment("triplet", trials=1, protocol=config.protocol("quick")), Store(tmp_path))
    assert not without.selects_epochs(searched)
    grid = Account(experiment("triplet", grid={"lr": (1e-3,)}), Store(tmp_path))
    assert not any(map(grid.selects_epochs, grid.grid))


def test_a_search_trial_that_was_measured_at_its_end_only_runs_again_and_is_replaced(tmp_path: Path) -> None:
    store = Store(tmp_path)
    asked = experiment("triplet", trials=1)
    (searched,) = Account(asked, store).search
    store.put(measured(searched, 0.5))
    store.put(dataclasses.replace(a_result(searched), provenance={"purpose": "search"}), replace=True)
    account = Account(asked, store)
    assert account.pending(account.search) == [searched]
    assert account.replaces(searched)
    assert Account(dataclasses.replace(asked, protocol=config.protocol("quick")), store).final
    store.put(measured(searched, 0.1, 0.4, 0.3, 0.2), replace=True)
    again = Account(asked, store)
    assert not again.pending(again.search)
    assert not again.replaces(searched)
    assert [trial.stop_after for trial in again.final or ()] == [2]


def test_the_score_that_a_run_shows_is_that_of_the_best_epoch() -> None:
    (searched,) = plan.search(experiment("triplet", trials=1))
    scores = BestScores("R@1", 1, select_epochs=True)
    scores.add(measured(searched, 0.2, 0.8, 0.4, 0.3), {"search"})
    assert scores.scores == {"triplet": 0.8}


def test_an_estimate_counts_what_is_measured_and_what_is_not_trained(tmp_path: Path) -> None:
    account = Account(experiment("triplet", trials=1), Store(tmp_path))
    cost = estimate.Cost(train=1.0, evaluate=0.0, parameters=1, dim=1)
    (final,) = account.unnamed()
    whole, half = (
        estimate.seconds_of(dataclasses.replace(final, stop_after=stop, warmup_epochs=0.0), account, cost)
        for stop in (0, 2)
    )
    assert whole == 2 * half
    (searched,) = account.search
    evaluating = estimate.Cost(train=0.0, evaluate=1.0, parameters=1, dim=1)
    plain = Account(experiment("triplet", trials=1, protocol=config.protocol("quick")), Store(tmp_path))
    _, held_out = estimate.images_of(searched, account.experiment.dataset)
    measuring = [estimate.seconds_of(searched, one, evaluating) for one in (account, plain)]
    assert measuring[0] - measuring[1] == pytest.approx(searched.epochs * held_out)


def test_asha_takes_a_trial_that_stops_as_trained_in_full() -> None:
    from harness.execution.ray_scheduler import PerLoss

    class Named:
        def __init__(self, name: str) -> None:
            self.config = {"trial": name}

    stopping = a_trial(fold="val0", epochs=8, stop_after=2)
    jobs = {"a": Job(stopping, config.dataset("emoji"), "", validate=True)}
    scheduler = PerLoss(jobs, "R@1")
    scheduler.on_trial_add(None, Named("a"))  # type: ignore[arg-type]
    (rungs,) = scheduler.rungs.values()
    assert rungs._max_t == 2
    assert scheduler.on_trial_result(None, Named("a"), {"epoch": 2, "R@1": 0.0}) == "CONTINUE"  # type: ignore[arg-type]


# --- training ---


def facts(result: Result) -> list[tuple[float, float, float]]:
    return [(row["epoch"], row["loss"], row["images"]) for row in result.curve]


@pytest.mark.parametrize("schedule", ["one-cycle", "drops"])
def test_a_stopped_trial_is_the_beginning_of_the_whole_one(small: Path, tmp_path: Path, schedule: str) -> None:
    """To the bit: the schedule is that of all epochs."""
    whole_trial = trial("proxy_nca", epochs=4, schedule=schedule, drops=(1,), warmup_epochs=1.0)
    whole, _ = run(whole_trial, tmp_path / "whole", select_epochs=True)
    stopping = dataclasses.replace(whole_trial, stop_after=2)
    stopped, reports = run(stopping, tmp_path / "stopped")
    assert facts(stopped) == facts(whole)[:3]
    assert {name: whole.curve[2][name] for name in ("R@1", "MAP@R")} == {
        name: stopped.metrics[name] for name in ("R@1", "MAP@R")
    }
    assert stopped.metrics["R@1"] != whole.metrics["R@1"] or stopped.metrics["MAP@R"] != whole.metrics["MAP@R"]
    trained = [report for report in reports if report.stage == "train"]
    assert {report.epochs for report in trained} == {2}
    assert trained[-1].seconds_left == 0
    assert all("R@1" not in row for row in stopped.curve)


def test_a_stopped_trial_continues_from_its_checkpoint(small: Path, tmp_path: Path) -> None:
    stopping = trial("proxy_nca", epochs=4, stop_after=3)
    whole, _ = run(stopping, tmp_path / "whole")
    run_until(stopping, tmp_path / "broken", "train", 2)
    resumed, reports = run(stopping, tmp_path / "broken")
    assert resumed.metrics == whole.metrics
    assert facts(resumed) == facts(whole)
    assert (reports[0].stage, reports[0].epoch) == ("train", 3)


def first_epoch(reports: list[Progress]) -> int:
    return next(report.epoch for report in reports if report.stage == "train")


def test_epochs_that_were_not_measured_are_trained_again(small: Path, tmp_path: Path) -> None:
    searched = trial("triplet", epochs=3, fold="val0")
    run_until(searched, tmp_path, "train", 2)
    resumed, reports = run(searched, tmp_path, select_epochs=True)
    assert [row["epoch"] for row in resumed.curve if "R@1" in row] == [1, 2, 3]
    assert first_epoch(reports) == 1
    run_until(dataclasses.replace(searched, seed=1), tmp_path, "train", 2, select_epochs=True)
    _, reports = run(dataclasses.replace(searched, seed=1), tmp_path, select_epochs=True)
    assert first_epoch(reports) == 3


def test_trials_that_stop_at_different_epochs_share_their_pretraining(small: Path) -> None:
    keys = {pretraining_key(trial(epochs=4, pretrain_epochs=1, stop_after=stop)) for stop in (0, 1, 2)}
    assert len(keys) == 1


# --- what is said ---


def test_a_row_says_that_it_stopped_and_is_told_apart() -> None:
    assert "stop_after" not in SHARED
    rows = [loss_row("triplet", "Triplet", 0.5), loss_row("triplet", "Triplet", 0.4, stop_after=1)]
    (table,) = build([*rows, loss_row("group", "Group Loss", 0.5, stop_after=3)])
    notes = {row.label: row.notes for row in table.rows}
    assert notes == {
        "Group Loss": ("Trained for 3 of 4 epochs, with the schedule of all.",),
        "Triplet (stop_after = 0)": (),
        "Triplet (stop_after = 1)": ("Trained for 1 of 4 epochs, with the schedule of all.",),
    }
    assert "number of epochs" not in table.caption


def test_a_caption_names_the_losses_whose_epochs_were_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = experiment("triplet", "group", trials=1)
    searched = plan.search(asked)
    results = [measured(searched[0], 0.1, 0.4, 0.3, 0.2), measured(searched[1], 0.1, 0.2, 0.3, 0.4)]
    winners = best(results, "R@1", 1, select_epochs=True)
    finals = [a_result(trial) for trial in plan.final(asked, {loss: one.values for loss, one in winners.items()})]
    finals = [dataclasses.replace(run, title=run.trial.loss) for run in finals]
    monkeypatch.setattr(config, "find_protocol", lambda name: protocol())

    def caption(*runs: Result) -> str:
        return build([*results, *runs])[0].caption

    assert "The number of epochs of each loss was chosen on validation classes." in caption(*finals)
    by_hand = dataclasses.replace(finals[0], trial=dataclasses.replace(finals[0].trial, stop_after=3))
    assert "The number of epochs of group was chosen on validation classes." in caption(by_hand, finals[1])
    assert "number of epochs" not in caption(by_hand)
    monkeypatch.setattr(config, "find_protocol", lambda name: config.protocol("quick"))
    assert "number of epochs" not in caption(*finals)
    monkeypatch.setattr(config, "find_protocol", lambda name: protocol())
    chosen = {loss: one.values for loss, one in winners.items()}
    ids = {"search": tuple(run.id for run in results), "final": tuple(sorted(run.id for run in finals))}
    record = an_experiment(**ids, trials=1, select_epochs=True, chosen=chosen)
    (table,) = build(finals, experiments=[record])  # the search trials were removed
    assert "The number of epochs of each loss was chosen on validation classes." in table.caption
    (table,) = [table for table in build_all([*results, *finals], ("search",)) if table.kind == "search"]
    assert "selected by R@1, each configuration after its best epoch." in table.caption
    texts = {row.label: [cell.text for cell in row.cells] for row in table.rows}
    assert texts["triplet"][-1].endswith(", stop_after = 2")
    assert texts["triplet"][4] == "40.0"
    assert "stop_after" not in texts["group"][-1]


OWN = 'like = "tiny"\nselect_epochs = true\n[train]\nepochs = 3\n'


def test_a_run_chooses_the_epochs_on_validation_classes_and_says_so(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    (small / "protocols" / "own.toml").write_text(OWN)
    words = ("run", "--losses", "triplet,softmax", "--dataset", "blobs", "--protocol", "own", "--trials", "3")
    plan_of_it = harness(*words, "--dry-run").out
    assert "then 2 final runs with the values and number of epochs of the best R@1" in plan_of_it
    said = harness(*words)
    assert said.code == 0
    records = [json.loads(file.read_text()) for file in stored(tmp_path / "results")]
    chosen = 0
    for loss in ("triplet", "softmax"):
        searched = [r for r in records if r["trial"]["loss"] == loss and r["trial"]["fold"] == "val0"]
        (final,) = [r for r in records if r["trial"]["loss"] == loss and r["trial"]["fold"] == "test"]
        means = {(r["id"], row["epoch"]): row["R@1"] for r in searched for row in r["curve"]}
        assert len(means) == 9
        id, epoch = max(means, key=lambda key: means[key])
        tied = {key for key, score in means.items() if score == means[id, epoch]}
        id = min(id for id, _ in tied)
        epoch = min(epoch for other, epoch in tied if other == id)
        winner = next(r for r in searched if r["id"] == id)
        assert final["trial"]["knobs"] == winner["trial"]["knobs"]
        assert final["trial"].get("stop_after", 3) == epoch
        assert len(final["curve"]) == epoch
        assert not any("R@1" in row for row in final["curve"])  # test classes are measured once
        chosen += epoch < 3
    assert "The number of epochs of each loss was chosen on validation classes." in said.out
    assert said.out.count("with the schedule of all") >= (1 if chosen else 0)
    assert "epoch " not in harness(*words).err
    for record in records:
        command = harness("show", record["id"]).out.partition("Reproduce with:\n  ")[2].splitlines()[0]
        assert record["id"] in harness(*shlex.split(command)[1:], "--dry-run", "--results", "elsewhere").out, command


def test_switched_on_later_a_search_is_measured_again(small: Path, harness: Harness, tmp_path: Path) -> None:
    file = small / "protocols" / "own.toml"
    file.write_text(OWN.replace("true", "false"))
    words = ("run", "--losses", "triplet", "--dataset", "blobs", "--protocol", "own", "--trials", "2")
    harness(*words)
    before = {file.stem for file in stored(tmp_path / "results")}
    file.write_text(OWN)
    said = harness(*words)
    assert said.code == 0
    assert before <= {file.stem for file in stored(tmp_path / "results")}
    assert "epoch " not in harness(*words).err


@pytest.mark.parametrize("value", ['"yes"', "1"])
def test_a_protocol_says_true_or_false(small: Path, value: str) -> None:
    (small / "protocols" / "own.toml").write_text(OWN.replace("true", value))
    with pytest.raises(UserError, match=r"own.toml: select_epochs=.*: must be true or false"):
        config.protocol("own")
