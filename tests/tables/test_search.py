"""The tables of searches."""

from dataclasses import replace

import pytest

from harness.spec import Result
from harness.tables.build import build
from tests.factories import USUAL, cub, loss_row


def test_the_search_table_tells_what_each_loss_was_given_and_found() -> None:
    seen = {"curve": ({"epoch": 1, "loss": 0.5, "images": 100},), "seconds": {"total": 1800.0}}
    trials = [
        replace(loss_row("triplet", "Triplet", value, fold="val0", knobs={"margin": value}), **seen)
        for value in (0.1, 0.2, 0.3, 0.4)
    ]
    final = replace(loss_row("triplet", "Triplet", 0.35, knobs={"margin": 0.4}), **seen)
    (table,) = build([*trials, final, *USUAL[2:]], "search")
    (row,) = table.rows
    texts = [one.text for one in row.cells]
    assert texts[:5] == ["4", "1", "2.5 CPU-hours", "500", "40.0"]
    # of 1: the mean, 25; of 3 of 4: the best is 0.4 in three of four subsets and 0.3 in one
    assert texts[5].startswith("n=1: 25.0 ± 11.2, n=3: 37.5 ± 4.3, n=4: 40.0 ± 0.0")
    assert "margin = 0.4" in texts[6]
    (losses,) = build([*trials, final, *USUAL[2:]])
    assert (
        "Budget per loss: 4 random-search trials, 1 final run, 2.5 CPU-hours, 500 training images seen."
        in losses.caption
    )


def test_a_value_that_all_trials_drew_alike_was_chosen_too() -> None:
    drawn = {"knobs": {"margin": 0.3, "mining": "semihard"}}
    trials = [loss_row("triplet", "Triplet", value, fold="val0", weight_decay=value, **drawn) for value in (0.01, 0.02)]
    final = loss_row("triplet", "Triplet", 0.35, weight_decay=0.02, **drawn)
    (table,) = build([*trials, final, *USUAL[2:]], "search")
    assert table.rows[0].cells[6].text == "margin = 0.3, weight_decay = 0.02"


def test_cells_of_a_grid_are_no_trials_of_a_search() -> None:
    final = loss_row("triplet", "Triplet", 0.5)
    cells = [
        replace(loss_row("triplet", "Triplet", 0.4, fold="val0", knobs={"margin": m}), provenance={"purpose": "grid"})
        for m in (0.1, 0.3)
    ]
    assert "no random search" in build([final, *cells])[0].caption
    searched = [replace(one, provenance={"purpose": "search", "scheduler": "asha"}) for one in cells]
    caption = build([final, *searched])[0].caption
    assert "2 random-search trials that ran to the end (trials stopped by ASHA are not counted)" in caption


def test_a_loss_without_a_final_run_counts_its_search_trials_once() -> None:
    trials = [
        replace(
            loss_row("triplet", "Triplet", value, fold="val0", knobs={"margin": value}),
            curve=({"epoch": 1, "loss": 0.5, "images": 100},),
            seconds={"total": 3600.0},
        )
        for value in (0.1, 0.2, 0.3)
    ]
    (table,) = build(trials, "search")
    (row,) = table.rows
    assert [one.text for one in row.cells][:4] == ["3", "0", "3 CPU-hours", "300"]


@pytest.mark.parametrize("asha_first", [True, False])
def test_early_stopping_is_named_whichever_loss_had_it(asha_first: bool) -> None:
    def trial(loss: str, scheduler: str) -> Result:
        return replace(loss_row(loss, loss, 0.4, fold="val0"), provenance={"scheduler": scheduler})

    schedulers = ("asha", "none") if asha_first else ("none", "asha")
    results = [trial(loss, scheduler) for loss, scheduler in zip(("group", "triplet"), schedulers, strict=True)]
    for order in (results, results[::-1]):
        table = build(order, "search")[0]
        assert all("the expected best is optimistic" in text for text in (table.caption, " ".join(table.short)))
    assert "optimistic" not in build([trial("group", "none")], "search")[0].caption


def test_files_are_named_by_the_dataset_not_by_its_title() -> None:
    trial = cub("group", 0.5, fold="val0")
    (table,) = build([trial], "search")
    assert table.slug == "search-cub-paper-bn_inception"
    copies = [trial, replace(trial, trial=replace(trial.trial, fingerprint="0123456789ab"))]
    assert [table.slug for table in build(copies, "search")] == [
        "search-cub-v1-0123456789ab-paper-bn_inception",
        "search-cub-v1-abc-paper-bn_inception",
    ]


def test_rows_that_were_not_trained_alike_are_footnoted() -> None:
    def on(threads: int, loss: str, **changes: int | str) -> Result:
        return replace(loss_row(loss, loss, 0.5, **changes), provenance={"device_type": "cpu", "threads": threads})

    runs = [on(1, "triplet"), on(1, "group"), on(1, "group", seed=1), on(1, "margin", epochs=7)]
    (table,) = build([*runs, on(4, "group", fold="val0", lr=0.1)], "search")
    assert {row.label: row.notes for row in table.rows} == {
        "triplet": (),
        "group": ("Run under other conditions: threads = 1 (2 runs), 4 (1 run).",),
        "margin": ("Trained differently: epochs = 7 (usual: 4).",),
    }
