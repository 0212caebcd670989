"""The tests of tables keep their promise: few errors where no loss is better. benchmarks/calibration.py is the large
version."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.analysis.statistics import pairs
from harness.store import Store
from tests.factories import answered

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
REPLICATES = 300


@pytest.fixture
def calibration(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return pytest.importorskip("calibration")


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_few_tables_call_equal_losses_different(calibration: Any, share: float) -> None:
    """With 3 seeds and 20 losses, where it is hardest. Without the floor under the seed part most tables err where the
    seeds dominate, and so does Welch's test against the best everywhere: the simulation can tell."""
    shape = calibration.Shape(np.full(60, 10), level=0.6)
    found = calibration.outcomes(shape, seeds=3, share=share, replicates=REPLICATES, losses=(20,))[20]
    assert found.error <= 0.07
    assert found.welch > 0.3
    assert found.coverage > 0.9
    if share == 0.9:
        assert found.without_floor > 0.3


def test_the_simulation_tests_what_tables_test(calibration: Any) -> None:
    """Mean squares are summed once for several tables; each must get the p-values of `pairs`."""
    shape = calibration.Shape(np.arange(2, 42), level=0.6)
    random = np.random.default_rng(1)
    hits = calibration.answers(random, shape, calibration.difficulties(random, shape), np.full(6, 0.1), 3)
    rows = calibration.as_rows(hits, shape)
    simulated = calibration.Simulated.of(rows)
    for places in ([0, 1, 2, 3, 4, 5], [5, 1, 2]):
        adjusted = pairs([rows[place] for place in places]).adjusted
        np.fill_diagonal(adjusted, 1.0)  # a loss is not tested against itself
        assert simulated.at(places).adjusted() == pytest.approx(adjusted)


def test_simulated_hits_have_the_probability_of_their_class(calibration: Any) -> None:
    """Classes of 1, 3 and 50 queries; without noise each query is answered with the same probability."""
    shape = calibration.Shape(np.array([1, 3, 50]), level=0.6, difficulty=0.0, taste=0.0, local=0.0)
    random = np.random.default_rng(2)
    hits = calibration.answers(random, shape, np.zeros(3, dtype=np.float32), np.zeros(4000), 2)
    assert hits.max(axis=(0, 1)).tolist()[:2] == [1, 3]
    assert hits.mean(axis=(0, 1)) / shape.sizes == pytest.approx([0.5, 0.5, 0.5], abs=0.02)
    assert hits.var(axis=(0, 1)) / shape.sizes == pytest.approx([0.25, 0.25, 0.25], rel=0.05)


def test_the_seeds_of_one_loss_are_split_in_every_way(calibration: Any, tmp_path: Path) -> None:
    """Six seeds make ten pairs of halves. One loss against itself is seldom called different; a loss of which half the
    seeds are much better is, in the one split that parts them."""
    store = Store(tmp_path)
    for seed in range(6):
        store.put(answered("triplet", seed))
        store.put(answered("group", seed, level=0.2 if seed < 3 else 0.8))
    (same,) = calibration.one_loss_against_itself(tmp_path, "triplet", ("R@1",))
    assert same.startswith("R@1: 6 seeds of triplet, 10 splits: called different in 0 (0.0 %)")
    (unlike,) = calibration.one_loss_against_itself(tmp_path, "group", ("R@1",))
    assert unlike.startswith("R@1: 6 seeds of group, 10 splits: called different in 1 (10.0 %)")


def test_durations_are_printed(calibration: Any) -> None:
    tests, reading = calibration.durations(calibration.Shape(np.full(6, 3), level=0.5), losses=3, seeds=3, repeats=1)
    assert tests.startswith("All pairs of 3 losses with 3 seeds, 6 classes: ")
    assert reading.startswith("The values of one run, 18 queries, as sums per class: ")


def test_a_true_difference_is_found(calibration: Any) -> None:
    """Ten points of Recall@1, which such a small test set resolves."""
    shape = calibration.Shape(np.full(60, 10), level=0.6)
    random = np.random.default_rng(0)
    _, slope = calibration.centre_and_slope(shape)
    found = []
    for _ in range(100):
        difficulty = calibration.difficulties(random, shape)
        spreads = np.full(4, 0.02)
        better = calibration.answers(random, shape, difficulty + 0.1 / slope, spreads[:1], 3)
        others = calibration.answers(random, shape, difficulty, spreads[1:], 3)
        rows = calibration.as_rows(np.concatenate([better, others]), shape)
        ours, _ = calibration.Simulated.of(rows).told_apart()
        found.append(ours)
    assert np.mean(found) > 0.8
