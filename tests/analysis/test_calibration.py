"""The tests of tables keep their promise: few errors where no loss is better. benchmarks/calibration.py is the large
version."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
        ours, _ = calibration.told_apart(calibration.as_rows(np.concatenate([better, others]), shape))
        found.append(ours)
    assert np.mean(found) > 0.8
