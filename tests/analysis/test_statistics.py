"""Intervals and tests against a worked example, loops, scipy and a bootstrap; the expected best of n trials against
every subset."""

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import nct, t, ttest_1samp, ttest_rel

from harness.analysis.statistics import (
    Estimate,
    Parts,
    Sums,
    difference,
    estimate,
    expected_best,
    half_width,
    holm,
    pairs,
    power,
    seeds_needed,
)

TEN = np.full(4, 10)
# The worked example of docs/statistics.md: correct queries of two losses, 3 seeds x 4 classes of 10 queries.
FIRST = Sums(np.array([[7.0, 5, 3, 9], [8, 5, 4, 9], [6, 5, 2, 9]]), TEN, (0, 1, 2))
SECOND = Sums(np.array([[5.0, 4, 3, 8], [5, 4, 3, 8], [5, 4, 3, 8]]), TEN, (0, 1, 2))


def test_the_worked_example_of_the_documentation() -> None:
    found = difference(FIRST, SECOND)
    assert found.value == pytest.approx(0.1)
    assert found.parts.seed == pytest.approx(0.01)
    assert found.parts.classes == pytest.approx(0.02)
    assert found.parts.rest == pytest.approx(0.02 / 6)
    assert found.parts.variance == pytest.approx((0.01 + 0.02 - 0.02 / 6) / 12)
    freedom = (0.01 + 0.02 - 0.02 / 6) ** 2 / (0.01**2 / 2 + 0.02**2 / 3 + (0.02 / 6) ** 2 / 6)
    assert found.parts.freedom == pytest.approx(freedom)
    assert found.p == pytest.approx(2 * t.sf(0.1 / math.sqrt(found.parts.variance), freedom))
    assert found.half == pytest.approx(t.ppf(0.975, freedom) * math.sqrt(found.parts.variance))


def unequal(seed: int, seeds: int = 4, classes: int = 12, level: float = 0.5) -> Sums:
    random = np.random.default_rng(seed)
    sizes = np.random.default_rng(0).integers(1, 30, classes)
    hits = random.binomial(sizes, np.clip(random.normal(level, 0.2, classes), 0, 1), (seeds, classes))
    return Sums(hits.astype(float), sizes, tuple(range(seeds)))


def test_the_mean_squares_are_those_of_loops() -> None:
    """Of a difference, with classes of unequal size."""
    one, other = unequal(1), unequal(2)
    S, C = one.totals.shape
    queries = sum(one.sizes)
    gap = one.totals - other.totals
    value = gap.sum() / (S * queries)
    z = [[C / queries * (gap[s, c] - one.sizes[c] * value) for c in range(C)] for s in range(S)]
    by_seed = [sum(z[s]) / C for s in range(S)]
    by_class = [sum(z[s][c] for s in range(S)) / S for c in range(C)]
    rest = sum((z[s][c] - by_seed[s] - by_class[c]) ** 2 for s in range(S) for c in range(C))
    parts = difference(one, other).parts
    assert parts.seed == pytest.approx(C * sum(m**2 for m in by_seed) / (S - 1))
    assert parts.classes == pytest.approx(S * sum(m**2 for m in by_class) / (C - 1))
    assert parts.rest == pytest.approx(rest / ((S - 1) * (C - 1)))
    for s in range(S):  # the residuals of a seed say how far its mean is from the mean of all
        assert by_seed[s] == pytest.approx(gap[s].sum() / queries - value)


def test_one_seed_is_a_t_interval_over_classes() -> None:
    sums = Sums(np.array([[1.0, 4, 3, 7, 2]]), np.full(5, 8), (0,))
    low, high = ttest_1samp(sums.totals[0] / 8, 0).confidence_interval()
    assert estimate(sums).value - estimate(sums).half == pytest.approx(low)
    assert estimate(sums).value + estimate(sums).half == pytest.approx(high)


def test_where_all_classes_agree_it_is_the_paired_t_test_over_seeds() -> None:
    gaps = np.array([0.1, 0.3, 0.2, 0.25])
    one = Sums(np.outer(gaps + 0.5, TEN), TEN, (0, 1, 2, 3))
    other = Sums(np.outer(np.full(4, 0.5), TEN), TEN, (0, 1, 2, 3))
    assert difference(one, other).p == pytest.approx(ttest_rel(gaps, np.zeros(4)).pvalue)


def test_the_part_of_the_classes_is_that_of_a_bootstrap_with_seeds_held_fixed() -> None:
    one, other = unequal(3, classes=200), unequal(4, classes=200)
    gap = (one.totals - other.totals).mean(axis=0)
    random = np.random.default_rng(0)
    drawn = random.integers(0, 200, (10_000, 200))
    means = gap[drawn].sum(axis=1) / one.sizes[drawn].sum(axis=1)
    parts = difference(one, other).parts
    assert math.sqrt(parts.classes / (parts.S * parts.C)) == pytest.approx(means.std(), rel=0.03)


def test_the_variance_is_not_below_the_larger_of_its_first_two_parts() -> None:
    parts = Parts(seed=0.02, classes=0.01, rest=0.05, S=3, C=4, seed_freedom=2)
    assert parts.variance == pytest.approx(0.02 / 12)


def test_the_degrees_of_freedom_are_at_least_1() -> None:
    """Few classes may leave a rest far above both other parts; the interval would be as wide as one likes."""
    parts = Parts(seed=0.001, classes=0.002, rest=0.05, S=3, C=6, seed_freedom=2)
    assert (18 * parts.variance) ** 2 < 0.05**2 / 10  # below 1 by Satterthwaite's formula
    assert parts.freedom == 1
    assert Estimate(0.1, parts).half == pytest.approx(t.ppf(0.975, 1) * math.sqrt(parts.variance))


def test_where_nothing_varies_only_equal_values_are_not_different() -> None:
    same = Sums(np.full((3, 4), 5.0), TEN, (0, 1, 2))
    more = Sums(np.full((3, 4), 6.0), TEN, (0, 1, 2))
    assert difference(same, same).p == 1.0
    assert difference(more, same).p == 0.0
    assert estimate(same).half == 0.0


def test_what_was_measured_once_is_compared_with_every_seed() -> None:
    baseline = Sums(np.array([[4.0, 4, 3, 7]]), TEN, (0,))
    repeated = Sums(np.tile([4.0, 4, 3, 7], (3, 1)), TEN, (0, 1, 2))
    assert difference(FIRST, baseline) == difference(FIRST, repeated)


def test_holm_multiplies_the_smallest_by_all_and_the_next_by_one_less() -> None:
    assert holm(np.array([0.01, 0.04, 0.03, 0.005])) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm(np.array([0.9, 0.5])) == pytest.approx([1.0, 1.0])


def test_two_losses_are_one_pair_without_correction() -> None:
    found = pairs([FIRST, SECOND])
    assert found.adjusted[0, 1] == found.p[0, 1] == pytest.approx(difference(FIRST, SECOND).p)
    assert found.differences[0, 1] == -found.differences[1, 0] == pytest.approx(0.1)
    assert found.level(0, 1)
    assert found.level(1, 0)


def test_a_pair_whose_seeds_agree_by_chance_gets_the_seed_part_of_all_pairs() -> None:
    rows = [unequal(number, classes=40) for number in range(5)]
    parts = [difference(one, other).parts for one, other in combinations(rows, 2)]
    floor = sum(part.seed for part in parts) / len(parts)
    found = pairs(rows)
    for (i, j), own in zip(combinations(range(5), 2), parts, strict=True):
        raised = Parts(max(own.seed, floor), own.classes, own.rest, own.S, own.C, seed_freedom=4 * 3)
        assert found.p[i, j] == pytest.approx(Estimate(rows[i].value - rows[j].value, raised).p)


def test_losses_are_compared_over_the_seeds_that_both_have_and_not_below_three() -> None:
    one, other = unequal(5, seeds=5), unequal(6, seeds=3)
    two = Sums(other.totals[:2], other.sizes, (0, 1))
    found = pairs([one, other, two])
    assert found.p[0, 1] == pytest.approx(difference(one.at((0, 1, 2)), other).p)
    assert np.isnan(found.p[0, 2])
    assert not found.level(0, 2)


def test_losses_that_answered_other_queries_are_not_paired() -> None:
    other = replace(SECOND, queries="others")
    assert np.isnan(pairs([FIRST, other]).p[0, 1])
    assert FIRST.shared(other) == ()


def test_seeds_are_planned_from_the_parts_of_the_variance() -> None:
    """Only seeds vary, by 2 points: (2.8 sigma / difference)^2 = 7.84, and a few more because the t-test must learn
    sigma."""
    only_seeds = Estimate(0.02, Parts(seed=100 * 0.02**2, classes=0.0, rest=0.0, S=5, C=100, seed_freedom=4))
    assert seeds_needed(only_seeds).seeds == 10
    assert seeds_needed(only_seeds).resolved == 0.0
    assert seeds_needed(replace(only_seeds, value=0.5)).seeds == 3  # fewer are not tested


def test_no_number_of_seeds_suffices_where_classes_vary_too_much() -> None:
    """The classes alone leave a standard error of 1 point, which resolves (1.984 + 0.845) points."""
    parts = Parts(seed=0.0001, classes=5 * 100 * 0.01**2 + 0.0001, rest=0.0001, S=5, C=100, seed_freedom=4)
    assert seeds_needed(Estimate(0.02, parts)).seeds is None
    assert seeds_needed(Estimate(0.02, parts)).resolved == pytest.approx(0.0283, abs=1e-4)
    assert seeds_needed(Estimate(0.03, parts)).seeds is not None


def test_power_is_that_of_the_noncentral_t() -> None:
    parts = Parts(seed=0.04, classes=0.02, rest=0.01, S=5, C=100, seed_freedom=4)
    effect = 0.03 / math.sqrt(parts.variance)
    freedom = float(parts.freedom)
    assert power(0.03, parts) == pytest.approx(nct.sf(t.ppf(0.975, freedom), freedom, effect))


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


def test_half_width_needs_three_values() -> None:
    assert half_width([0.5]) is None
    assert half_width([0.4, 0.6]) is None
    # three values: 4.3027 (97.5 % of t with two degrees of freedom) times 0.1 / sqrt(3)
    assert half_width([0.4, 0.5, 0.6]) == pytest.approx(4.302653 * 0.1 / math.sqrt(3), rel=1e-6)
