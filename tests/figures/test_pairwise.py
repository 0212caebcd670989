"""The heat map of all pairs of losses: order, differences, and which of them are significant."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

from harness.analysis.queries import Queries
from harness.analysis.statistics import pairs
from harness.figures.pairwise import pairwise
from harness.figures.registry import Sources
from harness.spec import Result, UserError
from harness.storage import Storage
from harness.store import Store
from tests.factories import a_result, a_trial, answered
from tests.figures.factories import one_group

LEVELS = {"triplet": 0.5, "group": 0.7, "margin": 0.5}


def drawn(folder: Path, *others: Result, seeds: int = 3) -> tuple[Axes, str, Queries]:
    """The axes and the note of the figure of three losses and other results."""
    store = Store(folder)
    results = [answered(name, seed, level) for name, level in LEVELS.items() for seed in range(seeds)]
    for result in (*results, *others):
        store.put(result)
    queries = Queries(store)
    sources = Sources(Storage(str(folder)), queries, folder)
    (drawing,) = pairwise(one_group(store.results()[0]), sources)
    (axes,) = drawing.canvas.axes
    return axes, drawing.canvas.texts[0].get_text().replace("\n", " "), queries


def test_rows_minus_columns_the_best_first_and_only_significant_ones_coloured(tmp_path: Path) -> None:
    axes, note, queries = drawn(tmp_path)
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[0] == "Group"
    names = [label.lower() for label in labels]
    sums = [queries.sums([answered(name, seed) for seed in range(3)], "R@1") for name in names]
    tested = pairs(sums)
    told_apart = tested.adjusted <= 0.05
    assert told_apart[0].tolist() == [False, True, True]  # the simulated losses show both
    assert not told_apart[1, 2]
    shown = np.ma.getmaskarray(np.ma.masked_invalid(axes.images[0].get_array()))
    assert (shown == ~told_apart).all()
    texts = {text.get_position(): text.get_text() for text in axes.texts}
    assert texts[1, 0] == f"+{100 * (sums[0].value - sums[1].value):.1f}"
    assert texts[0, 1] == f"−{100 * (sums[0].value - sums[1].value):.1f}"
    assert (0, 0) not in texts
    assert "9 runs" in note
    assert "Holm over all pairs" in note


def test_losses_that_cannot_be_tested_are_left_out_and_counted(tmp_path: Path) -> None:
    older = [replace(a_result(a_trial(loss="angular", seed=seed)), title="Angular") for seed in range(3)]
    axes, note, _ = drawn(tmp_path, *older, answered("arcface"))
    assert {label.get_text() for label in axes.get_yticklabels()} == {"Group", "Triplet", "Margin"}
    assert "2 losses without values per query or with fewer than 3 seeds left out" in note


def test_two_seeds_are_not_drawn(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no final runs of two losses with 3 seeds for emoji, .* --seeds 3$"):
        drawn(tmp_path, seeds=2)
