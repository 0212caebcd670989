"""Test classes x seeds: intervals of means and tests of differences; and the best to expect of n trials.

A final run answers the queries of C test classes; a loss is trained with S seeds. Queries of one class are not
independent, so classes and seeds are the units, and they are crossed: every seed answers every class. Two losses share
both, so they are compared in pairs. docs/statistics.md explains the method, benchmarks/calibration.py tests it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import stdev
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

SIGNIFICANT = 0.05  # differences with a larger p are not significant
ENOUGH_SEEDS = 3  # for an interval over seeds, and for a test
POWER = 0.8  # of the test that `seeds_needed` plans
MANY_SEEDS = 1000  # nobody trains more


@dataclass(frozen=True, eq=False)
class Sums:
    """A metric of one loss, summed over the queries of each class."""

    totals: "np.ndarray"  # (S, C) one row per seed
    sizes: "np.ndarray"  # (C,) queries per class
    seeds: tuple[int, ...]  # (S,)
    queries: str = ""  # which ones: losses that answered different queries cannot be paired

    @property
    def value(self) -> float:
        """The mean over all queries and seeds."""
        return float(self.totals.sum() / (len(self.seeds) * self.sizes.sum()))

    def residuals(self) -> "np.ndarray":
        """(S, C) What each class adds to the mean of a seed, less the mean of all: z_sc = (C / N) (y_sc - n_c value).

        A mean over classes of unequal size is a ratio of two sums, and these are its linear terms: the mean of z_sc
        over classes is the mean of the seed less `value`. The residuals of a difference are the difference of
        residuals.
        """
        return (self.totals - self.sizes * self.value) * (len(self.sizes) / self.sizes.sum())

    def at(self, seeds: Sequence[int]) -> "Sums":
        """With these seeds only. What was measured once, because it has no random part, is the same for every seed."""
        if len(self.seeds) == 1:
            return replace(self, totals=self.totals.repeat(len(seeds), axis=0), seeds=tuple(seeds))
        return replace(self, totals=self.totals[[self.seeds.index(seed) for seed in seeds]], seeds=tuple(seeds))

    def shared(self, other: "Sums") -> tuple[int, ...]:
        """The seeds that both have, if both answered the same queries."""
        return tuple(sorted(set(self.seeds) & set(other.seeds))) if self.queries == other.queries else ()


@dataclass(frozen=True)
class Parts:
    """The mean squares of residuals (S, C): numbers, or matrices of all pairs."""

    seed: Any  # C sum_s (mean of seed s)^2 / (S - 1)
    classes: Any  # S sum_c (mean of class c)^2 / (C - 1)
    rest: Any  # of z_sc less both means, / ((S - 1) (C - 1))
    S: int
    C: int
    seed_freedom: int

    @property
    def variance(self) -> Any:
        """Of the mean: (seed + class - rest) / (S C), but not below the larger of the first two: with few seeds the
        difference of mean squares may be far too small, even negative, by chance."""
        import numpy as np

        both = self.seed + self.classes - self.rest
        return np.maximum(both, np.maximum(self.seed, self.classes)) / (self.S * self.C)

    @property
    def freedom(self) -> Any:
        """Satterthwaite's degrees of freedom; infinite where nothing varies. At least 1: where few classes leave a rest
        that is much larger than both other parts, they would approach 0, and the interval would have no end."""
        import numpy as np

        spread = self.seed**2 / self.seed_freedom + self.classes**2 / (self.C - 1)
        spread = spread + self.rest**2 / (max(self.S - 1, 1) * (self.C - 1))
        with np.errstate(divide="ignore", invalid="ignore"):
            freedom = np.where(spread > 0, (self.S * self.C * self.variance) ** 2 / spread, np.inf)
        return np.where(self.variance > 0, np.maximum(freedom, 1.0), freedom)


@dataclass(frozen=True)
class Estimate:
    """A mean or a difference, with its uncertainty."""

    value: float
    parts: Parts

    @property
    def half(self) -> float:
        """Half the width of its 95 % interval."""
        return quantile(1 - SIGNIFICANT / 2, self.parts.freedom) * math.sqrt(self.parts.variance)

    @property
    def p(self) -> float:
        """Of the hypothesis that the true value is 0."""
        return float(p_values(self.value, self.parts))


def estimate(sums: Sums) -> Estimate:
    """The mean of a loss. With one seed its interval is over classes alone and leaves out the randomness of
    training."""
    return Estimate(sums.value, _parts(sums.residuals()))


def difference(first: Sums, second: Sums) -> Estimate:
    """First minus second, over the seeds of the first; both have the same queries."""
    second = second.at(first.seeds)
    return Estimate(first.value - second.value, _parts(first.residuals() - second.residuals()))


@dataclass(frozen=True, eq=False)
class Pairs:
    """All pairs of the losses of one column, as matrices: [i, j] is loss i against loss j. NaN: not tested."""

    differences: "np.ndarray"
    p: "np.ndarray"  # of each pair alone
    adjusted: "np.ndarray"  # corrected for the number of pairs, by Holm

    def level(self, i: int, j: int) -> bool:
        """Whether the test does not tell the two apart. Losses that were not tested are not level."""
        return bool(self.adjusted[i, j] > SIGNIFICANT)


def pairs(rows: Sequence[Sums]) -> Pairs:
    """Every pair of losses over the seeds that both have; pairs with fewer than three are not tested."""
    import numpy as np

    shape = len(rows), len(rows)
    differences, p, adjusted = (np.full(shape, np.nan) for _ in range(3))
    shared = {(i, j): rows[i].shared(rows[j]) for i, j in combinations(range(len(rows)), 2)}
    for seeds in set(shared.values()):
        if len(seeds) < ENOUGH_SEEDS:
            continue
        tested = [pair for pair, common in shared.items() if common == seeds]
        members = sorted({place for pair in tested for place in pair})
        where = {place: number for number, place in enumerate(members)}
        i, j = np.array(tested).T
        a, b = (np.array([where[place] for place in side]) for side in (i, j))
        chosen = [rows[place].at(seeds) for place in members]
        values = np.array([row.value for row in chosen])
        gaps = values[:, None] - values
        parts = floored(pair_parts(np.stack([row.residuals() for row in chosen])))
        differences[i, j] = gaps[a, b]
        p[i, j] = p_values(gaps, parts)[a, b]
    known = ~np.isnan(p)
    adjusted[known] = holm(p[known])
    lower = np.tril_indices(len(rows), -1)
    for matrix, sign in ((differences, -1), (p, 1), (adjusted, 1)):
        matrix[lower] = sign * matrix.T[lower]
    return Pairs(differences, p, adjusted)


def holm(p: "np.ndarray") -> "np.ndarray":
    """P-values corrected for their number: the k-th smallest of m times m - k + 1, in increasing order, at most 1."""
    import numpy as np

    order = np.argsort(p)
    corrected = np.empty(len(p))
    corrected[order] = np.maximum.accumulate(np.arange(len(p), 0, -1) * p[order])
    return np.minimum(corrected, 1.0)


def p_values(values: Any, parts: Parts) -> Any:
    """Two-sided, by Student's t. Where nothing varies, only equal values are not different."""
    import numpy as np
    from scipy.special import stdtr  # scipy.stats takes a second to import

    size = np.abs(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(size == 0, 0.0, size / np.sqrt(parts.variance))
    return 2 * stdtr(parts.freedom, -t)


def quantile(share: float, freedom: Any) -> float:
    """Of Student's t."""
    from scipy.special import ndtri, stdtrit

    return float(ndtri(share) if math.isinf(freedom) else stdtrit(freedom, share))


@dataclass(frozen=True)
class Plan:
    """What it takes to tell an observed difference apart with 80 % power, should it be the true one."""

    seeds: int | None  # None: no number of seeds suffices, or more than MANY_SEEDS
    resolved: float  # the smallest difference that any number of seeds tells apart on these test classes


def seeds_needed(difference: Estimate) -> Plan:
    """From the variances of seeds, of classes and of the rest, which the mean squares estimate. Never fewer than are
    tested."""
    parts = difference.parts
    rest = float(parts.rest)
    of_seeds = max(0.0, (float(parts.seed) - rest) / parts.C)
    of_classes = max(0.0, (float(parts.classes) - rest) / parts.S)
    limit = math.sqrt(of_classes / parts.C)  # the standard error with endless seeds
    resolved = (quantile(1 - SIGNIFICANT / 2, parts.C - 1) + quantile(POWER, parts.C - 1)) * limit
    if difference.value == 0 or abs(difference.value) < resolved:
        return Plan(None, resolved)
    for S in range(ENOUGH_SEEDS, MANY_SEEDS + 1):
        expected = Parts(rest + parts.C * of_seeds, rest + S * of_classes, rest, S, parts.C, S - 1)
        if power(difference.value, expected) >= POWER:
            return Plan(S, resolved)
    return Plan(None, resolved)


def power(difference: float, parts: Parts) -> float:
    """The chance that the test calls a true difference of this size significant."""
    from scipy.special import nctdtr

    error, freedom = math.sqrt(parts.variance), float(parts.freedom)
    if error == 0:
        return 1.0
    return 1 - float(nctdtr(freedom, abs(difference) / error, quantile(1 - SIGNIFICANT / 2, freedom)))


def _parts(z: "np.ndarray") -> Parts:
    """The mean squares of residuals (S, C). A single seed leaves the classes alone."""
    S, C = z.shape
    seed, classes, rest = (float(products[0, 0]) for products in mean_products(z[None]))
    return Parts(seed, classes, rest, S, C, max(S - 1, 1))


def pair_parts(z: "np.ndarray") -> Parts:
    """The mean squares of all differences of losses, as matrices (L, L); residuals (L, S, C)."""
    import numpy as np

    _, S, C = z.shape

    def squares(products: "np.ndarray") -> "np.ndarray":
        """|u - v|^2 = |u|^2 + |v|^2 - 2 uv for all pairs; rounding must not make it negative."""
        lengths = products.diagonal()
        return np.maximum(lengths[:, None] + lengths - 2 * products, 0.0)

    seed, classes, rest = map(squares, mean_products(z))
    return Parts(seed, classes, rest, S, C, S - 1)


def floored(parts: Parts) -> Parts:
    """With the seed part of no pair below its mean over all pairs, which has (L - 1) (S - 1) degrees of freedom.

    A pair's own seed part has S - 1. Among many pairs of losses with three or five seeds some have nearly the same seed
    effects by chance, and would be called different far too often.
    """
    import numpy as np

    losses = len(parts.seed)
    floor = parts.seed[np.triu_indices(losses, 1)].mean()
    return replace(parts, seed=np.maximum(parts.seed, floor), seed_freedom=(losses - 1) * (parts.S - 1))


def mean_products(z: "np.ndarray") -> tuple["np.ndarray", "np.ndarray", "np.ndarray"]:
    """(L, L) each: mean products of the losses' residuals (L, S, C) between seeds, between classes, and of the rest.
    All means square at once: a matrix product instead of a pass over the classes for every pair."""
    L, S, C = z.shape
    by_seed, by_class = z.mean(axis=2), z.mean(axis=1)  # their means are 0: z is centred
    rest = (z - by_seed[:, :, None] - by_class[:, None, :]).reshape(L, S * C)
    several = max(S - 1, 1)  # with one seed the parts of seed and rest are 0
    return (
        C * by_seed @ by_seed.T / several,
        S * by_class @ by_class.T / (C - 1),
        rest @ rest.T / (several * (C - 1)),
    )


def half_width(values: Sequence[float]) -> float | None:
    """Half the width of the 95 % interval of a mean over seeds, by Student's t; None with fewer than three."""
    if len(values) < ENOUGH_SEEDS:
        return None
    return quantile(1 - SIGNIFICANT / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))


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
