"""Lines and points: what they stand for."""

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.collections import LineCollection
from matplotlib.text import Text

from harness.analysis.queries import Queries
from harness.analysis.statistics import estimate
from harness.figures import plots, style
from harness.figures.groups import lines
from harness.store import Store
from tests.factories import answered
from tests.figures.factories import final, one_group, sources


def test_curves_are_joined_by_epoch_to_their_lowest_mean_and_highest() -> None:
    runs = [final("group", curve=[0.2, 0.5]), final("group", curve=[0.4, 0.6, 0.7], seed=1), final("triplet")]
    (line,), remark = plots.with_curve("curves", one_group(runs), "R@1")
    found = plots.spread(line.runs, "R@1")
    assert [tuple(round(value, 6) for value in row) for row in found] == [
        (1, 20, 30, 40),
        (2, 50, 55, 60),
        (3, 70, 70, 70),
    ]
    assert remark == ""


def test_curves_say_that_nothing_was_selected_on_them_unless_it_was() -> None:
    (honest,), _ = lines([final("group", curve=[0.5])])
    (leaked,), _ = lines([final("group", curve=[0.5], checkpoint="best-test")])
    assert plots.selected_on([honest]) == plots.DIAGNOSTIC
    assert plots.selected_on([honest, leaked]) == plots.LEAKED


def test_shared_pretraining_counts_for_every_loss() -> None:
    first = replace(final("group"), seconds={"pretrain": 60.0, "train": 30.0, "total": 99.0})
    second = replace(final("triplet"), seconds={"pretrain": 0.1, "train": 30.0, "total": 99.0})
    other = replace(final("triplet", seed=1), seconds={"train": 30.0, "total": 99.0})
    assert plots.pretraining([first, second, other]) == {0: 60.0, 1: 0.0}
    alone = replace(other, provenance={**other.provenance, "pretraining": {"id": "0" * 12, "seconds": 50.0}})
    assert plots.pretraining([alone]) == {1: 50.0}


def test_the_bars_of_costs_are_the_intervals_of_tables(tmp_path: Path) -> None:
    """Over test classes and seeds. Fewer than three seeds, and runs without the values of queries, have no bar."""
    store = Store(tmp_path)
    runs = [answered("group", seed) for seed in range(3)]
    few = [answered("triplet", seed) for seed in range(2)]
    older = [replace(answered("margin", seed), per_query=b"", queries={}) for seed in range(3)]
    for run in (*runs, *few, *older):
        store.put(run)
    with style.looks():
        (drawing,) = plots.cost(one_group(store.results()[0]), sources(tmp_path))
    (axes,) = drawing.canvas.axes
    bars = [bar.get_segments()[0][:, 1] for bar in axes.findobj(LineCollection)]
    half = 100 * estimate(Queries(store).sums(runs, "R@1")).half
    assert [(high - low) / 2 for low, high in bars] == pytest.approx([half])
    note = drawing.canvas.texts[0].get_text().replace("\n", " ")
    assert "95 % interval over test classes and seeds" in note


def test_no_training_takes_less_than_no_time(tmp_path: Path) -> None:
    """A loss that takes ten times as long as another."""
    runs = [replace(final(loss, 0.5), seconds={"train": s}) for loss, s in (("group", 60.0), ("triplet", 600.0))]
    with style.looks():
        (drawing,) = plots.cost(one_group(runs), sources(tmp_path))
    (axes,) = drawing.canvas.axes
    low, high = axes.get_xlim()
    assert low == 0
    assert high > 10  # minutes


def test_names_beside_points_do_not_overlap(tmp_path: Path) -> None:
    """Twelve losses that cost and score nearly the same."""
    names = [f"Loss number {n}" for n in range(12)]
    runs = [final(f"loss{n}", 0.5 + 0.001 * (n % 3), title=title) for n, title in enumerate(names)]
    runs = [replace(one, seconds={"train": 60.0 + n, "total": 99.0}) for n, one in enumerate(runs)]
    with style.looks():
        (drawing,) = plots.cost(one_group(runs), sources(tmp_path))
        drawing.canvas.draw_without_rendering()
        boxes = [one.get_window_extent() for one in drawing.canvas.findobj(Text) if one.get_text() in names]
    assert len(boxes) == 12
    assert not [(a, b) for place, a in enumerate(boxes) for b in boxes[:place] if a.overlaps(b)]
