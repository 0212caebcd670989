"""Where the values of a row come from: its own search, the protocol's, or a user's hand; and how far settings are the
protocol's."""

from dataclasses import replace
from typing import Any

import pytest

from harness import config
from harness.analysis.tuning import unlike_protocol
from harness.spec import Result, Tuned
from harness.tables.build import build
from harness.tables.layout import Table
from tests.factories import NETWORK, USUAL, a_trial, an_experiment, baseline, cub, loss_row

GUESS = "Older runs do not record their search: the one with their settings is counted."


def notes(table: Table) -> dict[str, tuple[str, ...]]:
    return {row.label: row.notes for row in table.rows}


def drawn(loss: str, *margins: float) -> list[Result]:
    """Search trials."""
    return [loss_row(loss, loss, margin, fold="val0", knobs={"margin": margin}) for margin in margins]


def ids(*runs: Result) -> tuple[str, ...]:
    return tuple(sorted(run.id for run in runs))


def test_a_row_with_another_search_budget_is_named() -> None:
    """0 beside 3 trials: which row?"""
    searched, other = loss_row("group", "Group Loss", 0.5), loss_row("triplet", "Triplet", 0.5)
    trials = drawn("group", 0.1, 0.2, 0.3)
    experiments = [
        an_experiment(search=ids(*trials), final=ids(searched), trials=3),
        an_experiment(final=ids(other)),
    ]
    (table,) = build([searched, other, *trials], experiments=experiments)
    assert (
        "Budget per loss: 3 random-search trials (except where a footnote says otherwise), 1 final run" in table.caption
    )
    assert notes(table) == {
        "Group Loss": (),
        "Triplet": ("No random search (usual: 3 random-search trials).",),
    }
    assert GUESS not in table.caption
    (equal,) = build([searched, *trials], experiments=experiments)
    assert "Budget per loss: 3 random-search trials, 1 final run" in equal.caption


def test_most_losses_not_most_rows_say_what_is_usual() -> None:
    many = [loss_row("margin", "Margin", 0.5, lr=lr) for lr in (0.1, 0.2, 0.3)]
    pair = [loss_row(name, name, 0.5) for name in ("group", "triplet")]
    trials = {run.id: drawn(run.trial.loss, 0.1, 0.2) for run in pair}
    experiments = [an_experiment(search=ids(*trials[run.id]), final=ids(run), trials=2) for run in pair]
    experiments += [an_experiment(final=ids(run)) for run in many]
    every = [*many, *pair, *(trial for group in trials.values() for trial in group)]
    (table,) = build(every, experiments=experiments)
    assert {label for label, row in notes(table).items() if row} == {f"Margin (lr = {lr})" for lr in (0.1, 0.2, 0.3)}


def test_a_cell_of_a_grid_that_a_later_search_draws_is_a_trial_of_the_search() -> None:
    """What a trial was run for first does not count: its own record says grid."""
    final, (cell, other) = loss_row("triplet", "Triplet", 0.5), drawn("triplet", 0.1, 0.2)
    cell = replace(cell, provenance={"purpose": "grid"})
    grid = an_experiment(grid=ids(cell))
    search = an_experiment(search=ids(cell, other), final=ids(final), trials=2)
    assert "2 random-search trials, " in build([final, cell, other], experiments=[grid, search])[0].caption
    assert "1 random-search trial, " in build([final, cell, other])[0].caption  # what the records alone say
    (row,) = build([final, cell, other], "search", experiments=[grid, search])[0].rows
    assert row.cells[0].text == "2"


def test_a_search_is_credited_to_its_own_rows_only() -> None:
    """Set by hand, with the settings of a search."""
    chosen, by_hand = (loss_row("triplet", "Triplet", 0.5, knobs={"margin": margin}) for margin in (0.2, 0.7))
    trials = drawn("triplet", 0.1, 0.2)
    experiments = [
        an_experiment(search=ids(*trials), final=ids(chosen), trials=2),
        an_experiment(final=ids(by_hand), settings={"triplet.margin": 0.7, "group.margin": 0.1, "epochs": 4}),
    ]
    (table,) = build([chosen, by_hand, *trials], experiments=experiments)
    assert notes(table) == {
        "Triplet (margin = 0.2)": (),
        "Triplet (margin = 0.7)": (
            "No random search (usual: 2 random-search trials).",
            "Set by hand: margin = 0.7.",
        ),
    }
    (search,) = build([chosen, by_hand, *trials], "search", experiments=experiments)
    assert [row.cells[0].text for row in search.rows] == ["2", "0"]
    assert search.rows[1].notes == ("Set by hand: margin = 0.7.",)


def test_what_a_search_found_is_not_set_by_hand_where_a_user_has_set_it_again() -> None:
    final, trials = loss_row("triplet", "Triplet", 0.5, knobs={"margin": 0.1}), drawn("triplet", 0.1)
    search = an_experiment(search=ids(*trials), final=ids(final), trials=1)
    again = an_experiment(final=ids(final), settings={"triplet.margin": 0.1})
    (table,) = build([final, *trials], experiments=[again, search])
    assert notes(table) == {"Triplet": ()}
    assert "1 random-search trial, " in table.caption


def test_a_run_without_a_record_is_given_a_search_with_its_settings_and_the_caption_says_so() -> None:
    old, trials = loss_row("triplet", "Triplet", 0.5), drawn("triplet", 0.1, 0.2)
    for kind in ("losses", "search"):
        assert GUESS in build([old, *trials], kind)[0].caption
        assert GUESS not in build([old], kind)[0].caption
    new = loss_row("triplet", "Triplet", 0.6, knobs={"margin": 0.2})
    recorded = an_experiment(search=ids(*trials), final=ids(new), trials=2)
    (table,) = build([old, new, *trials], experiments=[recorded])  # a search that has an owner is not given away
    assert GUESS not in table.caption


@pytest.mark.parametrize("recorded", [True, False])
def test_seeds_of_several_requests_share_their_searches(recorded: bool) -> None:
    finals = [loss_row("triplet", "Triplet", 0.5, seed=seed) for seed in range(2)]
    trials = drawn("triplet", 0.1, 0.2, 0.3)
    experiments = [
        an_experiment(search=ids(*trials[:2]), final=ids(finals[0]), trials=2),
        an_experiment(search=ids(*trials), final=ids(*finals), trials=3, seeds=2),
    ]
    (table,) = build([*finals, *trials], experiments=experiments if recorded else [])
    assert "3 random-search trials, 2 final runs" in table.caption


def test_trials_that_asha_stopped_are_counted_as_asked_for() -> None:
    final, trials = loss_row("triplet", "Triplet", 0.5), drawn("triplet", 0.1, 0.2)
    stopped = ("0" * 12, "1" * 12)
    search = an_experiment(
        search=tuple(sorted([*ids(*trials), *stopped])), final=ids(final), trials=4, scheduler="asha"
    )
    (table,) = build([final, *trials], experiments=[search])
    assert "4 random-search trials, which ASHA may have stopped early, 1 final run" in table.caption


def test_a_search_whose_trials_were_removed_is_a_search_all_the_same() -> None:
    finals = [loss_row(loss, loss, 0.5) for loss in ("group", "triplet")]
    trials = {run.trial.loss: drawn(run.trial.loss, 0.1, 0.2, 0.3) for run in finals}
    search = an_experiment(search=ids(*trials["group"], *trials["triplet"]), final=ids(*finals), trials=3)
    results = [*finals, *trials["group"], trials["triplet"][0]]
    lost = "2 of 3 search trials have no result here: hours and images leave them out."
    for kind in ("losses", "search"):
        (table,) = build(results, kind, experiments=[search])
        assert notes(table) == {"group": (), "triplet": (lost,)}
    assert [row.cells[0].text for row in table.rows] == ["3", "3"]
    (table,) = build(results, experiments=[search])
    assert "Budget per loss: 3 random-search trials, 1 final run" in table.caption
    (table,) = build(finals, experiments=[search])
    assert "Budget per loss: 3 random-search trials, 1 final run" in table.caption
    assert set(notes(table).values()) == {(lost.replace("2 of", "3 of"),)}
    shared = an_experiment(search=ids(*trials["group"][:2]), final=ids(finals[0]), trials=2)
    (table,) = build(finals[:1], experiments=[shared, search])  # their trials are the same ones
    assert "Budget per loss: 3 random-search trials" in table.caption


def test_values_of_a_search_that_was_removed_are_not_the_protocols() -> None:
    final = as_tuned("triplet")
    search = an_experiment(search=ids(*drawn("triplet", 0.1, 0.2)), final=ids(final), trials=2)
    (table,) = build([final], experiments=[search])
    assert "2 random-search trials" in table.caption
    assert not any("found with" in note for note in notes(table)["triplet"])


def test_a_configuration_that_was_drawn_twice_is_not_missing() -> None:
    final, trials = loss_row("triplet", "Triplet", 0.5), drawn("triplet", 0.1, 0.2)
    search = an_experiment(search=ids(*trials), final=ids(final), trials=3)
    (table,) = build([final, *trials], experiments=[search])
    assert "Budget per loss: 2 random-search trials" in table.caption
    assert notes(table) == {"Triplet": ()}


def test_a_search_is_scored_by_what_its_record_says_whatever_the_protocol_says_today() -> None:
    def scored(loss: str, value: float) -> Result:
        return replace(loss_row(loss, loss, 0.0, fold="val0", lr=value), metrics={"R@1": 0.0, "MAP@R": value})

    finals = [loss_row(loss, loss, 0.5) for loss in ("group", "triplet", "margin")]
    trials = [[scored(run.trial.loss, value) for value in (0.1, 0.3)] for run in finals]
    experiments = [
        an_experiment(search=ids(*tried), final=ids(run), trials=2, select="R@1" if run is finals[2] else "MAP@R")
        for run, tried in zip(finals, trials, strict=True)
    ]
    (table,) = build([*finals, *trials[0], *trials[1], *trials[2]], "search", experiments=experiments)
    assert [column.name for column in table.columns][4] == "best MAP@R"
    assert "selected by MAP@R." in table.caption
    assert {row.label: row.cells[4].text for row in table.rows} == {"group": "30.0", "margin": "0.0", "triplet": "30.0"}
    assert notes(table)["margin"] == ("Its search was selected by R@1.",)


# --- the protocol's values ---


def as_tuned(loss: str, **changes: Any) -> Result:
    """A run with the values that quick has for a loss on emoji."""
    values = config.protocol("quick").values("emoji", loss)
    rates = {name: values.pop(name) for name in ("weight_decay",)}
    return loss_row(loss, loss, 0.8, **{"knobs": values, **rates, **changes})


TODAY = (
    "Its values were found with freeze_bn = false (here: true); lr = 0.0021 to 0.004 (here: 0.0003); "
    "head_lr_factor = 1.0 (here: 10.0); warmup_epochs = 0.0 (here: 2.0)."
)


def test_values_that_a_search_found_are_said_to_be_and_with_which_settings() -> None:
    (table,) = build([as_tuned(loss) for loss in ("group", "triplet", "proxy_nca")])
    assert "Budget per loss: values found by 10 trials of random search on validation classes, 1 final" in table.caption
    assert "no random search" not in table.caption
    assert set(notes(table).values()) == {(TODAY,)}


def test_values_used_with_another_network_crop_or_number_of_epochs_are_footnoted() -> None:
    changes = {"backbone": "resnet18", "resize": 32, "crop": 32, "epochs": 1, "dim": 16, "weights": "none"}
    (table,) = build([as_tuned("triplet", **changes)])
    ((note,),) = notes(table).values()
    for words in (
        f"found with backbone = {NETWORK} (here: resnet18)",
        "weights = package (here: none)",
        "dim = none (here: 16)",
        "resize = 64 (here: 32)",
        "crop = 64 (here: 32)",
        "epochs = 4 (here: 1)",
    ):
        assert words in note


def test_epochs_of_drops_are_no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Tuned({"margin": 0.2}, trials=3, found_with={"drops": (3, 5), "lr": (0.1, 0.2)})
    protocol = replace(config.protocol("quick"), tuned={"emoji": {"triplet": found}})
    monkeypatch.setattr(config, "find_protocol", lambda name: protocol)
    (table,) = build([loss_row("triplet", "Triplet", 0.5, drops=(4,), lr=0.3)])
    assert notes(table)["Triplet"] == (
        "Its values were found with drops = 3,5 (here: 4); lr = 0.1 to 0.2 (here: 0.3).",
    )
    (table,) = build([loss_row("triplet", "Triplet", 0.5, drops=(3, 5), lr=0.15)])
    assert notes(table)["Triplet"] == ()


def test_a_loss_without_found_values_beside_losses_with_them_is_named() -> None:
    (table,) = build([as_tuned("triplet"), as_tuned("group"), loss_row("margin", "margin", 0.8), as_tuned("arcface")])
    ten = "values found by 10 trials of random search on validation classes"
    assert notes(table)["margin"] == (f"No random search (usual: {ten}).",)
    assert notes(table)["arcface"][0] == (
        f"Values found by 3 trials of random search on validation classes (usual: {ten})."
    )
    assert "dim = 32 (here: none)" in notes(table)["arcface"][1]


def test_values_that_a_user_or_a_search_has_replaced_are_not_the_protocols() -> None:
    by_hand = as_tuned("triplet", weight_decay=0.5, knobs={"margin": 0.5})
    (table,) = build([by_hand])
    assert "no random search" in table.caption
    assert notes(table) == {"triplet": ()}
    final, trials = as_tuned("triplet"), drawn("triplet", 0.109135, 0.2)
    (table,) = build([final, *trials], experiments=[an_experiment(search=ids(*trials), final=ids(final), trials=2)])
    assert "2 random-search trials" in table.caption
    assert notes(table) == {"triplet": ()}


def test_published_values_are_meant_for_the_protocols_network_images_and_epochs() -> None:
    published = {"knobs": {"anchors": 2, "temperature": 24.0}}
    (table,) = build([cub("group", 0.5, **published, weights="file:52deb4733")])
    assert not any("meant for" in note for note in notes(table)["group"])
    (table,) = build([cub("group", 0.5, **published, backbone="resnet50", epochs=3)])
    meant = "Its values are meant for backbone = bn_inception (here: resnet50); epochs = 60 (here: 3)."
    assert meant in notes(table)["group"]
    (table,) = build([cub("group", 0.5, knobs={"anchors": 1, "temperature": 9.0}, backbone="resnet50")])
    assert not any("meant for" in note for note in notes(table)["group"])


# --- settings that are not the protocol's ---


def test_a_single_row_whose_settings_are_not_its_protocols_says_so() -> None:
    assert "Protocol" not in build(USUAL)[0].caption
    (table,) = build([loss_row("triplet", "Triplet", 0.6, epochs=1)])
    assert table.caption.startswith("Protocol quick, but epochs = 1 (protocol: 4). Percent on test classes, ")
    (search,) = build([loss_row("triplet", "Triplet", 0.6, epochs=1)], "search")
    assert search.caption.startswith("Protocol quick, but epochs = 1 (protocol: 4). ")


def test_with_several_losses_the_settings_of_most_are_compared_and_the_odd_row_has_its_footnote() -> None:
    rows = [loss_row(name, name, 0.6, epochs=1) for name in ("triplet", "group")]
    (table,) = build([*rows, loss_row("margin", "margin", 0.6)])
    assert "Protocol quick, but epochs = 1 (protocol: 4)." in table.caption
    assert notes(table)["margin"] == ("Trained differently: epochs = 4 (usual: 1).",)


def test_untrained_networks_alone_are_compared_with_the_protocol_in_what_they_have() -> None:
    trial = replace(baseline(NETWORK, 0.4).trial, resize=32, crop=32)
    caption = build([baseline("pixels", 0.3), replace(baseline(NETWORK, 0.4), trial=trial)])[0].caption
    assert caption.startswith("Protocol quick, but resize = 32 (protocol: 64); crop = 32 (protocol: 64). ")
    assert "Protocol" not in build([baseline("pixels", 0.3)])[0].caption


def test_the_dataset_is_named_where_the_settings_of_another_are_the_protocols() -> None:
    results = [
        cub("group", 0.5, warmup_epochs=0.0, epochs=9),
        cub("group", 0.5, warmup_epochs=0.0, dataset="cars", **config.protocol("paper").special["cars"]),
    ]
    caption = build(results)[0].caption
    assert caption.startswith("Protocol paper on CUB-200-2011, but epochs = 9 (protocol: 60). ")


def differences(**changes: Any) -> list[str]:
    return [difference.name for difference in unlike_protocol(a_trial(**changes))]


def test_weights_are_compared_by_their_kind_and_a_protocol_that_is_gone_with_nothing() -> None:
    assert not unlike_protocol(cub("group", 0.5, warmup_epochs=0.0).trial)  # its weights: hub:in1k
    assert [one.name for one in unlike_protocol(cub("group", 0.5, warmup_epochs=0.0, weights="none").trial)] == [
        "weights"
    ]
    assert not differences(protocol="gone", epochs=1)


def test_a_users_own_dataset_may_have_small_classes_or_large_ones() -> None:
    cpu = config.protocol("cpu")
    for images_per_class in (5, 50):
        assert not differences(protocol="cpu", dataset="mine", **cpu.shared("mine", images_per_class))
    assert differences(protocol="cpu", dataset="cub", **cpu.shared("cub", 5))  # it has 58 images per class


def test_the_batch_that_a_protocol_gives_to_a_family_of_losses_is_the_protocols() -> None:
    fair = {"protocol": "fair", "dataset": "cub", **config.protocol("fair").shared("cub"), "warmup_epochs": 0.0}
    family = {"classes_per_batch": 32, "samples_per_class": 1}
    assert not differences(**fair, loss="triplet")
    assert not differences(**{**fair, **family}, loss="normalized_softmax")
    assert not differences(**{**fair, **family}, loss="mine.Mine")  # its family is not known
    assert differences(**{**fair, **family}, loss="proxy_nca") == list(family)


def test_what_a_protocol_searches_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    protocol = config.protocol("quick")
    searching = replace(protocol, search={**protocol.search, "warmup_epochs": protocol.search["lr"]})
    assert differences(warmup_epochs=0.7) == ["warmup_epochs"]
    monkeypatch.setattr(config, "find_protocol", lambda name: searching)
    assert not differences(warmup_epochs=0.7)
    rows = [loss_row(name, name, 0.6, warmup_epochs=value) for name, value in (("triplet", 0.7), ("group", 0.9))]
    assert not any(notes(build(rows)[0]).values())


def test_published_values_of_a_method_are_meant_for_its_published_dimension() -> None:
    published = {"knobs": {"weights": "1,1,2"}, "weights": "file:52deb4733"}
    (table,) = build([cub("hdc", 0.5, **published, dim=384)], kind="ensembles")
    assert not any("meant for" in note for row in notes(table).values() for note in row)
    (table,) = build([cub("hdc", 0.5, **published, dim=96)], kind="ensembles")
    assert any("meant for dim = 384 (here: 96)." in note for row in notes(table).values() for note in row)
