"""Intervals and tests against printed tables and scipy; the expected best of n trials against every subset."""

import math
from itertools import combinations
from random import Random

import pytest
from scipy.stats import ttest_ind

from harness.analysis.statistics import expected_best, half_width, not_significantly_different


@pytest.mark.parametrize("scores", [[0.3], [0.5, 0.1], [0.4, 0.9, 0.1, 0.7, 0.2, 0.65], [0.5, 0.5, 0.2, 0.5, 0.9]])
def test_the_closed_form_is_the_mean_over_all_subsets(scores: list[float]) -> None:
    found = expected_best(scores)
    assert [n for n, _, _ in found] == list(range(1, len(scores) + 1))
    for n, mean, deviation in found:
        best = [max(subset) for subset in combinations(scores, n)]
        expected = sum(best) / len(best)
        assert mean == pytest.approx(expected, abs=1e-14)
        assert deviation == pytest.approx(math.sqrt(sum((b - expected) ** 2 for b in best) / len(best)), abs=1e-14)


def test_one_trial_is_the_average_and_all_of_them_are_the_best_without_doubt() -> None:
    (one, mean, _), *_, (all_of_them, best, deviation) = expected_best([0.2, 0.8, 0.5])
    assert (one, all_of_them) == (1, 3)
    assert mean == pytest.approx(0.5)
    assert best == 0.8
    assert deviation == 0.0


def test_no_scores_promise_nothing() -> None:
    assert expected_best([]) == []


def test_many_trials_do_not_overflow() -> None:
    """C(600, 300) has 179 digits. Of the numbers 1..N the best of n is expected at n (N + 1) / (n + 1)."""
    found = expected_best([float(number) for number in range(1, 601)])
    for n, mean, _ in found:
        assert mean == pytest.approx(n * 601 / (n + 1), rel=1e-12)


def test_half_width_needs_two_values() -> None:
    assert half_width([0.5]) is None
    # two values: 12.706 (97.5 % of t with one degree of freedom) times half their distance
    assert half_width([0.4, 0.6]) == pytest.approx(12.7062 * 0.1, rel=1e-4)


def test_welchs_test_agrees_with_scipys() -> None:
    random = Random(0)
    outcomes = set()
    for _ in range(200):
        one = [random.gauss(0.5, 0.02) for _ in range(random.randint(2, 5))]
        other = [random.gauss(0.52, 0.01) for _ in range(random.randint(2, 5))]
        expected = bool(ttest_ind(one, other, equal_var=False).pvalue > 0.05)
        assert not_significantly_different(one, other) == expected
        outcomes.add(expected)
    assert outcomes == {True, False}


def test_without_spread_or_with_a_single_value_nothing_is_tested() -> None:
    assert not not_significantly_different([0.5], [0.5, 0.6])
    assert not not_significantly_different([0.5, 0.5], [0.6, 0.6])
    assert not_significantly_different([0.5, 0.5], [0.5, 0.5])
