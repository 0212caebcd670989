"""Which runs are a grid, whatever it varies, and how far below its best its cells are."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.figures import grid, style
from harness.figures.registry import draw
from harness.spec import Result
from tests.figures.factories import a_grid, cell, one_group, searched, sources


def margin(value: Any, score: float, **changes: Any) -> Result:
    """A cell of a grid over a knob of the triplet loss."""
    return replace(searched("triplet", score, knobs={"margin": value}, **changes), provenance={"purpose": "grid"})


def test_a_grid_is_what_agrees_in_everything_else_and_counts_from_its_best_cell() -> None:
    cells = [
        *(cell(0, 5, score, seed=seed) for seed, score in enumerate((0.60, 0.62))),  # mean 0.61
        cell(0, 6, 0.64),
        cell(1, 5, 0.605),  # 1, 6 was not run
    ]
    others = [cell(2, 7, 0.99, lr=0.5), cell(1, 6, 0.99, epochs=9)]
    (found,) = grid.find_grids(one_group([*cells, *others], [a_grid(cells), a_grid(others[:1])]))
    assert found.keys == ("anchors", "samples_per_class")
    below = found.below_best()
    assert {where: mean for where, (_, mean, _) in below.items()} == {
        (0, 5): pytest.approx(-3.0),
        (0, 6): 0.0,
        (1, 5): pytest.approx(-3.5),
    }
    assert below[0, 5][0] == pytest.approx(-4.0)
    assert below[0, 5][2] == pytest.approx(-2.0)
    assert [grid.points(value) for value in (0.0, -0.04, -3.46)] == ["0", "0.0", "−3.5"]


def test_a_cell_that_was_stored_before_belongs_to_the_grid_and_a_second_grid_adds_to_the_first() -> None:
    stored_before = replace(cell(1, 6, 0.7), provenance={"purpose": "run"})
    first = [cell(0, 5, 0.5), cell(0, 6, 0.5), cell(1, 5, 0.5)]
    second = [*first, cell(2, 5, 0.5), cell(2, 6, 0.5)]
    (found,) = grid.find_grids(one_group([*second, stored_before], [a_grid(first), a_grid(second)]))
    assert set(found.runs) == {(a, s) for a in range(3) for s in (5, 6)}
    searches = [replace(run, provenance={"purpose": "search"}) for run in second]
    assert grid.find_grids(one_group(searches)) == []


def test_a_grid_of_any_knob_or_setting_is_drawn(tmp_path: Path) -> None:
    margins = [margin(value, 0.5 + value, seed=seed) for value in (0.001, 0.1, 0.3) for seed in range(2)]
    both = [margin(value, 0.5, lr=lr) for value in (0.1, 0.2) for lr in (0.01, 0.02)]
    three = [
        margin(value, 0.5, lr=lr, epochs=epochs) for value in (0.4, 0.5) for lr in (0.01, 0.02) for epochs in (1, 2)
    ]
    words = [margin(0.2, score, optimizer=name) for name, score in (("adam", 0.5), ("radam", 0.6))]
    grids = [margins, both, three, words]
    group = one_group([run for runs in grids for run in runs], [a_grid(runs) for runs in grids])
    drawn = list(draw("grid", group, sources(tmp_path), tmp_path, ["svg"]))
    assert [drawing.part for drawing in drawn] == [
        "triplet-margin",
        "triplet-margin-lr",
        "triplet-epochs-lr-margin=0.4",
        "triplet-epochs-lr-margin=0.5",
        "triplet-optimizer",
    ]
    assert all(file.read_bytes().startswith(b"<?xml") for drawing in drawn for file in drawing.files)
    with style.looks():
        figures = [drawing.canvas for drawing in grid.grid(group, sources(tmp_path))]
    assert figures[0].axes[0].get_xscale() == "log"
    assert figures[0].axes[0].get_title(loc="left") == "Emoji: triplet"
    assert [tick.get_text() for tick in figures[-1].axes[0].get_xticklabels()] == ["adam", "radam"]


def test_settings_that_follow_from_others_are_no_axes_and_one_value_is_no_grid() -> None:
    tied = [margin(0.2, 0.5, samples_per_class=s, classes_per_batch=60 // s) for s in (4, 6)]
    (found,) = grid.find_grids(one_group(tied, [a_grid(tied)]))
    assert found.keys == ("classes_per_batch",)
    assert grid.find_grids(one_group(tied[:1], [a_grid(tied[:1])])) == []
