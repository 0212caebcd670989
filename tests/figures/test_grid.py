"""Which runs are a grid, and how far below its best its cells are."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.figures import grid
from harness.figures.registry import draw
from harness.spec import UserError
from tests.figures.factories import cell, one_group, sources


def test_a_grid_is_what_agrees_in_everything_else_and_counts_from_its_best_cell() -> None:
    results = [
        *(cell(0, 5, score, seed=seed) for seed, score in enumerate((0.60, 0.62))),  # mean 0.61
        cell(0, 6, 0.64),
        cell(1, 5, 0.605),  # 1, 6 was not run
        cell(2, 7, 0.99, lr=0.5),  # a search trial
        cell(1, 6, 0.99, epochs=9),
    ]
    found = grid.find_cells(
        one_group(results), lambda t: (t.knobs["anchors"], t.samples_per_class), grid.without_anchors
    )
    assert found is not None
    below = found.below_best()
    assert {where: mean for where, (_, mean, _) in below.items()} == {
        (0, 5): pytest.approx(-3.0),
        (0, 6): 0.0,
        (1, 5): pytest.approx(-3.5),
    }
    assert below[0, 5][0] == pytest.approx(-4.0)
    assert below[0, 5][2] == pytest.approx(-2.0)
    assert [grid.points(value) for value in (0.0, -0.04, -3.46)] == ["0", "0.0", "−3.5"]


def test_a_row_of_anchors_alone_is_no_grid(tmp_path: Path) -> None:
    results = [cell(anchors, 5, 0.5) for anchors in range(3)]
    with pytest.raises(UserError, match="no grid runs over anchors and samples per class"):
        list(draw("grid", one_group(results), sources(tmp_path), tmp_path))


def test_a_grid_has_cells_that_were_run_for_one_and_any_others_that_fit() -> None:
    stored_before = replace(cell(1, 6, 0.7), provenance={"purpose": "run"})
    values = lambda trial: (trial.knobs["anchors"], trial.samples_per_class)  # noqa: E731
    results = [cell(0, 5, 0.5), cell(0, 6, 0.5), cell(1, 5, 0.5), stored_before]
    found = grid.find_cells(one_group(results), values, grid.without_anchors)
    assert found is not None
    assert set(found.runs) == {(0, 5), (0, 6), (1, 5), (1, 6)}
    searches = [replace(run, provenance={"purpose": "search"}) for run in results]
    assert grid.find_cells(one_group(searches), values, grid.without_anchors) is None
