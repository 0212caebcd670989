"""What a random search of n trials may be expected to find, from the scores of the N trials that were run."""

import math
from collections.abc import Sequence


def expected_best(scores: Sequence[float]) -> list[tuple[int, float, float]]:
    """For n = 1..N: n, the mean of the best of n trials, and its standard deviation.

    Exact, over all subsets of n of the N scores: of the sorted s_(1) <= ... <= s_(N), the i-th is the best of
    C(i-1, n-1) of the C(N, n) subsets, so E[max] = sum_i s_(i) C(i-1, n-1) / C(N, n). A U-statistic: unbiased, where
    drawing with replacement would promise too little.
    """
    ranked = sorted(scores)
    total = len(ranked)
    found = []
    for n in range(1, total + 1):
        share = [0.0] * total  # of the subsets in which the i-th is the best
        value = n / total
        for i in range(total, n - 1, -1):
            share[i - 1] = value
            if i > 1:
                value *= (i - n) / (i - 1)  # C(i-2, n-1) / C(i-1, n-1): no binomial is ever formed, none overflows
        mean = math.fsum(weight * score for weight, score in zip(share, ranked, strict=True))
        variance = math.fsum(weight * (score - mean) ** 2 for weight, score in zip(share, ranked, strict=True))
        found.append((n, mean, math.sqrt(variance)))
    return found
