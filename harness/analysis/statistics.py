"""Intervals of means, tests of differences, and the best to expect of n trials."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev, variance

SIGNIFICANT = 0.05  # differences with a larger p are not significant


def half_width(values: Sequence[float]) -> float | None:
    """Half the width of the 95 % interval of the mean, by Student's t; None for a single value."""
    if len(values) < 2:
        return None
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    return float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / math.sqrt(len(values))


def not_significantly_different(first: Sequence[float], second: Sequence[float]) -> bool:
    """By Welch's t-test at 95 %, which needs two values of each: with fewer nothing is claimed.

    t = (m_1 - m_2) / sqrt(e_1 + e_2) with e_i = s_i^2 / n_i, and
    (e_1 + e_2)^2 / (e_1^2 / (n_1 - 1) + e_2^2 / (n_2 - 1)) degrees of freedom.
    """
    if min(len(first), len(second)) < 2:
        return False
    difference = abs(fmean(first) - fmean(second))
    errors = [variance(values) / len(values) for values in (first, second)]
    if sum(errors) == 0:  # no spread at all: different means differ
        return difference == 0
    from scipy.special import stdtr

    freedom = sum(errors) ** 2 / sum(
        e**2 / (len(values) - 1) for e, values in zip(errors, (first, second), strict=True)
    )
    p = 2 * float(stdtr(freedom, -difference / math.sqrt(sum(errors))))
    return p > SIGNIFICANT


def expected_best(scores: Sequence[float]) -> list[tuple[int, float, float]]:
    """For n = 1..N: n, the mean of the best of n trials, and its standard deviation.

    Exact, over all subsets of n of the N scores: of the sorted s_(1) <= ... <= s_(N), the i-th is the best of
    C(i-1, n-1) of the C(N, n) subsets, so E[max] = sum_i s_(i) C(i-1, n-1) / C(N, n). A U-statistic, and so unbiased;
    drawing with replacement would be biased downwards.
    """
    ranked = sorted(scores)
    total = len(ranked)
    best = []
    for n in range(1, total + 1):
        share = [0.0] * total  # of the subsets in which the i-th is the best
        value = n / total
        for i in range(total, n - 1, -1):
            share[i - 1] = value
            if i > 1:
                value *= (i - n) / (i - 1)  # C(i-2, n-1) / C(i-1, n-1): no binomial is ever formed, none overflows
        mean = math.fsum(weight * score for weight, score in zip(share, ranked, strict=True))
        spread = math.fsum(weight * (score - mean) ** 2 for weight, score in zip(share, ranked, strict=True))
        best.append((n, mean, math.sqrt(spread)))
    return best
