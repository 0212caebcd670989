"""How often the tests of tables call losses different that are not, and how often they find a true difference.

    python benchmarks/calibration.py                       # every cell, 1,000 replicates: about two hours on one core
    python benchmarks/calibration.py --shapes cub,emoji    # without Stanford Online Products: ten minutes
    python benchmarks/calibration.py --unequal             # losses whose seeds scatter unequally
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from pathlib import Path

import numpy as np
from scipy.special import expit
from scipy.stats import ttest_ind

from harness.analysis import statistics
from harness.analysis.queries import Queries
from harness.analysis.statistics import SIGNIFICANT, Sums
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

    sizes: np.ndarray
    level: float  # of Recall@1
    difficulty: float = 1.0
    taste: float = 0.35
    local: float = 0.15  # of a seed at a class


def sized(classes: int, images: int, least: int, most: int) -> np.ndarray:
    """Class sizes within limits that add up."""
    random = np.random.default_rng(classes)
    sizes = random.integers(least, most + 1, classes)
    while (missing := images - int(sizes.sum())) != 0:
        some = random.permutation(classes)[: abs(missing)]
        sizes[some] = np.clip(sizes[some] + np.sign(missing), least, most)
    return sizes


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
    return centre_and_slope(shape)[0] + random.standard_normal(len(shape.sizes)) * shape.difficulty


def answers(
    random: np.random.Generator, shape: Shape, difficulty: np.ndarray, seed_spreads: np.ndarray, seeds: int
) -> np.ndarray:
    """(L, S, C) queries that were answered. `seed_spreads` (L,): of the seeds of each loss."""
    losses, classes = len(seed_spreads), len(shape.sizes)
    taste = random.standard_normal((losses, 1, classes)) * shape.taste
    of_seed = random.standard_normal((losses, seeds, 1)) * seed_spreads[:, None, None]
    local = random.standard_normal((losses, seeds, classes), dtype=np.float32) * shape.local
    return random.binomial(shape.sizes, expit(difficulty + taste + of_seed + local))


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
    spreads = seed_spreads(shape, max(losses), seeds, share, unequal=unequal)
    _, slope = centre_and_slope(shape)
    errors: dict[int, list] = {number: [] for number in losses}
    powers: dict[int, list] = {number: [] for number in losses}
    estimates = []
    for _ in range(replicates):
        difficulty = difficulties(random, shape)
        rows = as_rows(answers(random, shape, difficulty, spreads, seeds), shape)
        better = [answers(random, shape, difficulty + point / slope, spreads[:1], seeds) for point in POINTS]
        for number in losses:
            errors[number].append(false_alarms(rows[:number]))
            powers[number].append([told_apart([*as_rows(one, shape), *rows[1:number]]) for one in better])
        estimates.append(statistics.estimate(rows[0]))
    true = np.mean([estimate.value for estimate in estimates])
    coverage = float(np.mean([abs(estimate.value - true) <= estimate.half for estimate in estimates]))
    return {
        number: Outcome(*np.mean(errors[number], axis=0), *np.mean(powers[number], axis=0).T.tolist(), coverage)
        for number in losses
    }


def as_rows(totals: np.ndarray, shape: Shape) -> list[Sums]:
    seeds = tuple(range(totals.shape[1]))
    return [Sums(one.astype(float), shape.sizes, seeds) for one in totals]


def false_alarms(rows: Sequence[Sums]) -> tuple[bool, bool, bool]:
    """Whether anything is called different: by our test, without the floor, and by Welch's against the best."""
    upper = np.triu_indices(len(rows), 1)
    best = int(np.argmax([row.value for row in rows]))
    p_values = (statistics.pairs(rows).adjusted[upper], statistics.holm(own_p(rows)), welch_p(rows, best))
    ours, without_floor, welch = (bool((p <= SIGNIFICANT).any()) for p in p_values)
    return ours, without_floor, welch


def told_apart(rows: Sequence[Sums]) -> tuple[float, float]:
    """The share of losses that are told apart from the first: by our test, and by Welch's."""
    ours = statistics.pairs(rows).adjusted[0, 1:] <= SIGNIFICANT
    return float(ours.mean()), float((welch_p(rows, 0) <= SIGNIFICANT).mean())


def own_p(rows: Sequence[Sums]) -> np.ndarray:
    """Of every pair, by nothing but its own mean squares."""
    z = np.stack([row.residuals() for row in rows])
    losses, seeds, classes = z.shape
    upper = np.triu_indices(losses, 1)
    products = statistics.mean_products(z)
    squares = [(one.diagonal()[:, None] + one.diagonal() - 2 * one)[upper] for one in products]
    values = np.array([row.value for row in rows])
    parts = statistics.Parts(*squares, seeds, classes, seeds - 1)
    return statistics.p_values((values[:, None] - values)[upper], parts)


def welch_p(rows: Sequence[Sums], place: int) -> np.ndarray:
    """Of this loss against every other, by their seed means alone."""
    means = np.array([row.totals.sum(axis=1) / row.sizes.sum() for row in rows])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # seeds may agree to the last query: p is 0 or not a number
        return ttest_ind(np.delete(means, place, axis=0), means[place : place + 1], axis=1, equal_var=False).pvalue


def table(shapes: Sequence[str], losses: Sequence[int], replicates: int, *, unequal: bool) -> Iterator[str]:
    """In percent; the power by our test and, behind the stroke, by Welch's."""
    yield (
        "| test set | seeds | seed share | losses | family-wise error | without the floor | Welch's "
        "| power, 1 point | power, 3 points | coverage |"
    )
    yield "|:--|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    for name, seeds, share in product(shapes, SEEDS, SHARES):
        for count, cell in outcomes(SHAPES[name], seeds, share, replicates, losses, unequal=unequal).items():
            errors = [f"{100 * error:.1f}" for error in (cell.error, cell.without_floor, cell.welch)]
            powers = [
                f"{100 * ours:.0f} / {100 * welch:.0f}"
                for ours, welch in zip(cell.power, cell.welch_power, strict=True)
            ]
            cells = (name, seeds, f"{100 * share:.0f} %", count, *errors, *powers, f"{100 * cell.coverage:.1f}")
            yield f"| {' | '.join(map(str, cells))} |"


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
            welch.append(bool(welch_p([one, other], 0)[0] <= SIGNIFICANT))
        yield (
            f"{metric}: {len(runs)} seeds of {loss}, {len(ours)} splits: called different in {sum(ours)} "
            f"({100 * np.mean(ours):.1f} %); by Welch's test in {sum(welch)} ({100 * np.mean(welch):.1f} %)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(SHAPES), help="Test sets to simulate.")
    parser.add_argument("--losses", default=",".join(map(str, LOSSES)), help="Losses per table.")
    parser.add_argument("--replicates", type=int, default=1000, help="Simulated tables per cell.")
    parser.add_argument("--unequal", action="store_true", help="Let the seeds of some losses scatter more than others.")
    parser.add_argument("--runs", type=Path, help="A results folder: test the seeds of --loss against each other.")
    parser.add_argument("--loss", default="triplet")
    options = parser.parse_args()
    if options.runs:
        print(*one_loss_against_itself(options.runs, options.loss), sep="\n")
        return
    begun = time.perf_counter()
    losses = [int(count) for count in options.losses.split(",")]
    for line in table(options.shapes.split(","), losses, options.replicates, unequal=options.unequal):
        print(line, flush=True)
    print(f"\n{options.replicates} replicates per row, {time.perf_counter() - begun:.0f} s.")


if __name__ == "__main__":
    main()
