"""How often the tests of tables call losses different that are not, and how often they find a true difference.

    python benchmarks/calibration.py                       # every cell, 1,000 replicates: half an hour on one core
    python benchmarks/calibration.py --shapes cub,emoji    # without Stanford Online Products: six minutes
    python benchmarks/calibration.py --unequal             # losses whose seeds scatter unequally
    python benchmarks/calibration.py --time                # how long the tests of a table take
    python benchmarks/calibration.py --runs results --loss triplet   # real runs: one loss against itself

A replicate is one simulated table. Query hits of class c, loss l and seed s are drawn with probability sigmoid(eta),

    eta = difficulty of c + taste of l for c + seed s of l + (seed s of l) at c,

all four normal. No loss is better than another, so every difference that a test finds is an error. `seed share` is the
share of a difference's variance that comes from the seeds: 0, half of it, or 90 %. For the power, one loss is made one
or three percentage points better. The tests are those of harness/analysis/statistics.py. Beside them stand the same
without the floor under the seed part of a pair, and what papers do: Welch's test of seed means against the best loss,
without correction. `coverage` is that of the 95 % interval of one loss's mean.

With --runs, the stored seeds of one loss are split into two halves in every way, as if they were two losses.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product
from pathlib import Path

import numpy as np
from scipy.special import expit
from scipy.stats import ttest_ind

from harness.analysis import statistics
from harness.analysis.queries import ClassSums, Queries
from harness.analysis.statistics import SIGNIFICANT, Sums
from harness.spec.queries import PerQuery
from harness.store import Store

SEEDS = (3, 5, 10)
LOSSES = (4, 20)
SHARES = (0.0, 0.5, 0.9)
POINTS = (0.01, 0.03)  # true differences
PILOT = 40  # replicates that measure the variance without seed noise
UNEQUAL = 0.5  # sigma of the log-normal factors


@dataclass(frozen=True, eq=False)
class Shape:
    """A test set: its classes, and the spreads of eta."""

    sizes: np.ndarray  # in increasing order
    level: float  # of Recall@1
    difficulty: float = 1.0
    taste: float = 0.35
    local: float = 0.15  # of a seed at a class


def sized(classes: int, images: int, least: int, most: int) -> np.ndarray:
    """Class sizes within limits that add up, the smallest first."""
    random = np.random.default_rng(classes)
    sizes = random.integers(least, most + 1, classes)
    while (missing := images - int(sizes.sum())) != 0:
        some = random.permutation(classes)[: abs(missing)]
        sizes[some] = np.clip(sizes[some] + np.sign(missing), least, most)
    return np.sort(sizes)


SHAPES = {
    "cub": Shape(sized(100, 5924, 41, 60), level=0.6),
    "emoji": Shape(np.full(518, 8), level=0.5),
    "sop": Shape(sized(11316, 60502, 2, 12), level=0.75),
}


@cache
def centre_and_slope(shape: Shape) -> tuple[float, float]:
    """The mean of eta that gives the level of Recall@1, and what Recall@1 gains where eta grows."""
    spread = np.sqrt(shape.difficulty**2 + shape.taste**2 + shape.local**2)
    noise = np.random.default_rng(0).standard_normal(100_000) * spread
    low, high = -10.0, 10.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if expit(noise + middle).mean() < shape.level else (low, middle)
    p = expit(noise + low)
    return low, float((p * (1 - p)).mean())


def difficulties(random: np.random.Generator, shape: Shape) -> np.ndarray:
    """(C,)"""
    return np.float32(centre_and_slope(shape)[0]) + normal(random, len(shape.sizes)) * shape.difficulty


def answers(
    random: np.random.Generator, shape: Shape, difficulty: np.ndarray, seed_spreads: np.ndarray, seeds: int
) -> np.ndarray:
    """(L, S, C) queries that were answered. `seed_spreads` (L,): of the seeds of each loss."""
    losses, classes = len(seed_spreads), len(shape.sizes)
    taste = normal(random, losses, 1, classes) * shape.taste
    of_seed = normal(random, losses, seeds, 1) * seed_spreads.astype(np.float32)[:, None, None]
    local = normal(random, losses, seeds, classes) * shape.local
    p = expit(difficulty + taste + of_seed + local)
    hits = np.zeros(p.shape, dtype=np.int16)
    for query in range(shape.sizes.max()):  # much faster than random.binomial with a p for each class
        first = np.searchsorted(shape.sizes, query, side="right")  # of the classes that have so many queries
        hits[..., first:] += random.random(p[..., first:].shape, dtype=np.float32) < p[..., first:]
    return hits


def normal(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.standard_normal(shape, dtype=np.float32)


def seed_spreads(shape: Shape, losses: int, seeds: int, share: float, *, unequal: bool) -> np.ndarray:
    """(L,) So large that the seeds make this share of the variance of a difference."""
    random = np.random.default_rng([1, losses, seeds])
    quiet, queries = np.zeros(losses), seeds * shape.sizes.sum()
    variances = [
        np.var(answers(random, shape, difficulties(random, shape), quiet, seeds).sum(axis=(1, 2)) / queries, ddof=1)
        for _ in range(PILOT)
    ]
    _, slope = centre_and_slope(shape)
    spread = np.sqrt(share / (1 - share) * np.mean(variances) * seeds) / slope
    return spread * (np.exp(UNEQUAL * random.standard_normal(losses)) if unequal else np.ones(losses))


@dataclass(frozen=True)
class Outcome:
    """Shares of replicates; for the power, of the losses that are worse than the best."""

    error: float
    without_floor: float
    welch: float
    power: tuple[float, ...]  # by POINTS
    welch_power: tuple[float, ...]
    coverage: float


def outcomes(
    shape: Shape, seeds: int, share: float, replicates: int, losses: Sequence[int] = LOSSES, *, unequal: bool = False
) -> dict[int, Outcome]:
    """By the number of losses: a small table is the first rows of the large one."""
    random = np.random.default_rng([2, seeds, round(10 * share), len(shape.sizes)])
    most = max(losses)
    spreads = seed_spreads(shape, most, seeds, share, unequal=unequal)
    _, slope = centre_and_slope(shape)
    errors: dict[int, list] = {number: [] for number in losses}
    powers: dict[int, list] = {number: [] for number in losses}
    estimates = []
    for _ in range(replicates):
        difficulty = difficulties(random, shape)
        equal = answers(random, shape, difficulty, spreads, seeds)
        better = [answers(random, shape, difficulty + point / slope, spreads[:1], seeds) for point in POINTS]
        simulated = Simulated.of(as_rows(np.concatenate([equal, *better]), shape))
        for number in losses:
            errors[number].append(simulated.at(range(number)).false_alarms())
            powers[number].append(
                [simulated.at([most + place, *range(1, number)]).told_apart() for place in range(len(POINTS))]
            )
        estimates.append(simulated.first)
    true = np.mean([estimate.value for estimate in estimates])
    coverage = float(np.mean([abs(estimate.value - true) <= estimate.half for estimate in estimates]))
    return {
        number: Outcome(*np.mean(errors[number], axis=0), *np.mean(powers[number], axis=0).T.tolist(), coverage)
        for number in losses
    }


def as_rows(totals: np.ndarray, shape: Shape) -> list[Sums]:
    seeds = tuple(range(totals.shape[1]))
    return [Sums(one.astype(float), shape.sizes, seeds) for one in totals]


@dataclass(frozen=True, eq=False)
class Simulated:
    """A table: what its tests need. The mean squares are summed over classes once, for all tables of some of its
    losses."""

    means: np.ndarray  # (L, S)
    parts: statistics.Parts  # of all pairs
    first: statistics.Estimate  # of the first loss

    @classmethod
    def of(cls, rows: Sequence[Sums]) -> "Simulated":
        means = np.array([row.totals.sum(axis=1) / row.sizes.sum() for row in rows])
        parts = statistics.pair_parts(np.stack([row.residuals() for row in rows]))
        return cls(means, parts, statistics.estimate(rows[0]))

    def at(self, places: Sequence[int]) -> "Simulated":
        """With these losses only."""
        some = np.ix_(places, places)
        parts = replace(self.parts, seed=self.parts.seed[some], classes=self.parts.classes[some])
        return replace(self, means=self.means[list(places)], parts=replace(parts, rest=self.parts.rest[some]))

    def adjusted(self, *, floor: bool = True) -> np.ndarray:
        """(L, L) p-values of all pairs, as harness.analysis.statistics.pairs has them; or without the floor."""
        values = self.means.mean(axis=1)
        p = statistics.p_values(values[:, None] - values, statistics.floored(self.parts) if floor else self.parts)
        upper = np.triu_indices(len(values), 1)
        corrected = np.ones_like(p)
        corrected[upper] = statistics.holm(p[upper])
        return np.minimum(corrected, corrected.T)

    def false_alarms(self) -> tuple[bool, bool, bool]:
        """Whether anything is called different: by our test, without the floor, and by Welch's against the best."""
        p_values = (
            self.adjusted(),
            self.adjusted(floor=False),
            welch_p(self.means, int(self.means.sum(axis=1).argmax())),
        )
        ours, without_floor, welch = (bool((p <= SIGNIFICANT).any()) for p in p_values)
        return ours, without_floor, welch

    def told_apart(self) -> tuple[float, float]:
        """The share of losses that are told apart from the first: by our test, and by Welch's."""
        ours = self.adjusted()[0, 1:] <= SIGNIFICANT
        return float(ours.mean()), float((welch_p(self.means, 0) <= SIGNIFICANT).mean())


def welch_p(means: np.ndarray, place: int) -> np.ndarray:
    """Of this loss against every other, by their seed means (L, S) alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # seeds may agree to the last query: p is 0 or not a number
        return ttest_ind(np.delete(means, place, axis=0), means[place : place + 1], axis=1, equal_var=False).pvalue


def table(
    cells: Iterable[tuple[str, int, float]], losses: Sequence[int], replicates: int, *, unequal: bool
) -> Iterator[str]:
    """In percent, as docs/statistics.md has it. A column names its number of losses; the power is by our test and,
    behind the stroke, by Welch's."""
    powers = [f"power, {100 * point:g} point{'s' if point > 0.01 else ''}" for point in POINTS]
    measures = ("error", "without the floor", "Welch's", *powers)
    columns = [f"{measure}, {count}" for measure in measures for count in losses]
    yield f"| test set | seeds | seed share | {' | '.join(columns)} | coverage |"
    yield f"|:--|{'--:|' * (3 + len(columns))}"
    for name, seeds, share in cells:
        found = list(outcomes(SHAPES[name], seeds, share, replicates, losses, unequal=unequal).values())
        values = [f"**{100 * one.error:.1f}**" for one in found]
        values += [f"{100 * one.without_floor:.1f}" for one in found]
        values += [f"{100 * one.welch:.1f}" for one in found]
        for place in range(len(POINTS)):
            values += [f"{100 * one.power[place]:.0f} / {100 * one.welch_power[place]:.0f}" for one in found]
        yield f"| {name} | {seeds} | {100 * share:.0f} % | {' | '.join(values)} | {100 * found[0].coverage:.1f} |"


def split_in_two(sums: Sums) -> Iterator[Sums]:
    """Every way to make two losses of the seeds of one: a half, and the other half."""
    places = range(len(sums.seeds))
    for half in combinations(places, len(places) // 2):
        if 0 in half:  # each split once
            rest = [place for place in places if place not in half]
            for some in (half, rest[: len(half)]):
                yield Sums(sums.totals[list(some)], sums.sizes, tuple(range(len(some))))


def one_loss_against_itself(folder: Path, loss: str, metrics: Sequence[str] = ("R@1", "MAP@R")) -> Iterator[str]:
    store = Store(folder)
    runs = [result for result in store.results()[0] if result.is_final and result.trial.loss == loss]
    for metric in metrics:
        halves = list(split_in_two(Queries(store).sums(runs, metric)))
        ours, welch = [], []
        for one, other in zip(halves[::2], halves[1::2], strict=True):
            ours.append(statistics.difference(one, other).p <= SIGNIFICANT)
            welch.append(bool(Simulated.of([one, other]).told_apart()[1]))
        yield (
            f"{metric}: {len(runs)} seeds of {loss}, {len(ours)} splits: called different in {sum(ours)} "
            f"({100 * np.mean(ours):.1f} %); by Welch's test in {sum(welch)} ({100 * np.mean(welch):.1f} %)"
        )


def durations(shape: Shape, losses: int = max(LOSSES), seeds: int = max(SEEDS), repeats: int = 5) -> Iterator[str]:
    """Of the tests of a column, and of reading the values of one run; CPU time, the best of several."""
    random = np.random.default_rng(3)
    hits = answers(random, shape, difficulties(random, shape), np.full(losses, 0.05), seeds)
    rows = as_rows(hits, shape)
    tests = min(elapsed(lambda: statistics.pairs(rows)) for _ in range(repeats))
    yield (
        f"All pairs of {losses} losses with {seeds} seeds, {len(shape.sizes):,} classes: {1000 * tests:.0f} ms of CPU"
    )
    classes = np.repeat(np.arange(len(shape.sizes)), shape.sizes)
    ranks = random.integers(1, 1000, (1, len(classes)))
    precision = random.random(len(classes))
    names = tuple(f"class_{number:05}" for number in range(len(shape.sizes)))
    content = PerQuery(classes, ranks, precision, precision, 1000, names).to_bytes()
    metrics = ("R@1", "R@10", "R@100", "R@1000", "MAP@R", "RP")
    reading = min(elapsed(lambda: ClassSums.of(PerQuery.from_bytes(content), metrics)) for _ in range(repeats))
    yield f"The values of one run, {len(classes):,} queries, as sums per class: {1000 * reading:.0f} ms of CPU"


def elapsed(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(SHAPES), help="Test sets to simulate.")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), help="Seeds per loss.")
    parser.add_argument("--shares", default=",".join(map(str, SHARES)), help="Shares of the seeds in the variance.")
    parser.add_argument("--losses", default=",".join(map(str, LOSSES)), help="Losses per table.")
    parser.add_argument("--replicates", type=int, default=1000, help="Simulated tables per cell.")
    parser.add_argument("--unequal", action="store_true", help="Let the seeds of some losses scatter more than others.")
    parser.add_argument("--runs", type=Path, help="A results folder: test the seeds of --loss against each other.")
    parser.add_argument("--loss", default="triplet")
    parser.add_argument("--time", action="store_true", help="Print how long the tests of a table take.")
    options = parser.parse_args()
    if options.time:
        print(*durations(SHAPES["sop"]), sep="\n")
        return
    if options.runs:
        print(*one_loss_against_itself(options.runs, options.loss), sep="\n")
        return
    begun = time.perf_counter()
    losses = [int(count) for count in options.losses.split(",")]
    seeds = [int(count) for count in options.seeds.split(",")]
    shares = [float(share) for share in options.shares.split(",")]
    cells = product(options.shapes.split(","), seeds, shares)
    for line in table(cells, losses, options.replicates, unequal=options.unequal):
        print(line, flush=True)
    print(f"\n{options.replicates} replicates per row, {time.perf_counter() - begun:.0f} s.")


if __name__ == "__main__":
    main()
