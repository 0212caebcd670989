"""Two losses, or two stored results, against each other: what `harness compare` prints."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import Any

from harness.analysis.queries import Queries
from harness.analysis.results import group_by, short_side, telling_settings
from harness.analysis.statistics import ENOUGH_SEEDS, Estimate, Plan, Sums, difference, seeds_needed
from harness.spec import SETTINGS, Result, Trial, UserError, metric_order, unknown

Place = tuple[str, str, str]  # dataset, protocol, backbone

TOLD = 3  # values in the description of a configuration


@dataclass(frozen=True)
class Side:
    """The final runs of one configuration, by seed; a baseline; or one ensemble."""

    runs: tuple[Result, ...]

    @property
    def trial(self) -> Trial:
        return self.runs[0].trial

    @property
    def label(self) -> str:
        return self.runs[0].label

    @property
    def copy(self) -> tuple[str, int, str]:
        """Of the dataset."""
        return self.trial.dataset, self.trial.dataset_version, self.trial.fingerprint

    @property
    def place(self) -> Place:
        return self.trial.dataset, self.trial.protocol, self.trial.backbone

    @property
    def is_ensemble(self) -> bool:
        return self.runs[0].is_ensemble

    @property
    def measured_once(self) -> bool:
        """It has no random part: it is the same for every seed."""
        return self.trial.is_baseline and len(self.runs) == 1

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.trial.seed for run in self.runs)

    def mean(self, metric: str, seeds: Sequence[int]) -> float:
        return fmean(self.values(metric, seeds))

    def values(self, metric: str, seeds: Sequence[int]) -> list[float]:
        """By seed, of these seeds; of all, if it has none of them."""
        some = [run for run in self.runs if run.trial.seed in seeds] or self.runs
        return [run.metrics[metric] for run in some]


@dataclass(frozen=True)
class Difference:
    """Of one metric: the first minus the second."""

    metric: str
    first: float
    second: float
    ahead: float  # pairs of a run of the first and a run of the second in which the first is better; ties count half
    pairs: int
    estimate: Estimate | None = None  # with its interval; None where there is none
    plan: Plan | None = None  # only where the interval includes the randomness of training

    @property
    def value(self) -> float:
        return self.first - self.second


@dataclass(frozen=True)
class ClassDifference:
    name: str
    queries: int
    first: float
    second: float


@dataclass(frozen=True)
class Report:
    """Two sides and everything that is said about them."""

    first: Side
    second: Side
    seeds: tuple[int, ...]  # that both have, if these are several
    differences: tuple[Difference, ...]
    classes: tuple[ClassDifference, ...]  # where they differ most in R@1
    problem: str  # why nothing is tested; empty if it is


# --- which results are meant ---


def find(first: str, second: str, results: Iterable[Result]) -> tuple[Side, Side]:
    """The two sides that these words name, each a loss or an id. A UserError if they are not exactly two."""
    tested = [result for result in results if result.trial.on_test and not result.recipe]
    a, b = (candidates(word, tested) for word in (first, second))
    both_ids = not any(word in known_losses(tested) for word in (first, second))
    pairs = [(x, y) for x, y in product(a, b) if may_be_compared(x, y, both_ids=both_ids)]
    if not pairs:
        raise UserError(f"{first} and {second}: no final runs of both on one dataset under one protocol and backbone")
    places = sorted({(y if x.trial.is_pixels else x).place for x, y in pairs})
    if len(places) > 1:
        listed = "; ".join(", ".join(place) for place in places)
        raise UserError(f"{first} and {second}: choose with --dataset, --protocol or --backbone one of {listed}")
    for word, place in ((first, 0), (second, 1)):
        sides = {pair[place].runs[0].id: pair[place] for pair in pairs}
        if len(sides) > 1:
            listed = ", ".join(f"{id} ({described(side, sides.values())})" for id, side in sides.items())
            raise UserError(f"{word}: several configurations; name one by its id: {listed}")
    one, other = pairs[0]
    if one == other:
        raise UserError(f"{first} and {second}: runs of one configuration; nothing to compare")
    return one, other


def described(side: Side, others: Collection[Side]) -> str:
    """What tells a configuration from others: its label, its seeds, the first settings and knobs in which they differ
    and, where the others are of other images, its copy of the dataset."""
    words = [side.label, f"{len(side.runs)} seed{'s' if len(side.runs) > 1 else ''}"]
    every = [values_of(other.trial) for other in others]
    mine = values_of(side.trial)
    apart = [name for name in mine if len({repr(values.get(name)) for values in every}) > 1]
    words += [f"{name}={mine[name]}" for name in apart[:TOLD]]
    if len({other.copy for other in others}) > 1:
        name, version, fingerprint = side.copy
        short = short_side(name, fingerprint)
        words.append(f"short side {short} px" if short else f"images {fingerprint}, version {version}")
    return ", ".join(words)


def values_of(trial: Trial) -> dict[str, Any]:
    """The settings and the knobs of a configuration."""
    settings = {name: getattr(trial, name) for name in SETTINGS if name not in ("fold", "seed")}
    return {**settings, **{f"{trial.loss}.{name}": value for name, value in trial.knobs.items()}}


def known_losses(results: Iterable[Result]) -> set[str]:
    return {result.trial.loss for result in results}


def candidates(word: str, results: Sequence[Result]) -> list[Side]:
    """What a word may mean: the configurations of a loss, the configuration of a run, or an ensemble."""
    single = [result for result in results if not result.is_ensemble]
    if word in known_losses(single):
        return configurations(result for result in single if result.trial.loss == word)
    named = [result for result in results if word and result.id.startswith(word)]
    if not named:
        raise unknown("loss with final runs, or id,", word, sorted(known_losses(single)))
    if len(named) > 1:
        raise UserError(f"{word!r} begins several ids: {', '.join(sorted(result.id for result in named))}")
    (result,) = named
    if result.is_ensemble:
        return [Side((result,))]
    return configurations(other for other in single if other.trial.configuration == result.trial.configuration)


def configurations(runs: Iterable[Result]) -> list[Side]:
    groups = group_by(runs, lambda run: run.trial.configuration)
    return [Side(tuple(sorted(same, key=lambda run: run.trial.seed))) for _, same in groups]


def may_be_compared(first: Side, second: Side, *, both_ids: bool) -> bool:
    """Results on one copy of a dataset. Losses are compared under one protocol and backbone; ids may name any."""
    if first.copy != second.copy:
        return False
    pixels = first.trial.is_pixels or second.trial.is_pixels
    same_network = pixels or first.trial.backbone == second.trial.backbone
    return both_ids or (first.trial.protocol == second.trial.protocol and same_network)


# --- what is said about them ---


def compare(first: Side, second: Side, queries: Queries, classes: int = 4) -> Report:
    seeds = shared_seeds(first, second)
    names = [name for name in first.runs[0].metrics if name in second.runs[0].metrics]
    differences, problem = [], ""
    for metric in sorted(names, key=metric_order):
        plain = undecided(metric, first, second, seeds)
        try:
            differences.append(plain if metric == "NMI" else decided(plain, first, second, seeds, queries))
        except ValueError as error:
            differences.append(plain)
            problem = problem or str(error)
    apart = () if problem else tuple(most_different(first, second, seeds, queries, classes))
    return Report(first, second, seeds, tuple(differences), apart, problem)


def shared_seeds(first: Side, second: Side) -> tuple[int, ...]:
    """What was measured once has every seed; an ensemble has none, because it is made of several. A single seed pairs
    nothing: without two, the means over all runs are compared."""
    if first.is_ensemble or second.is_ensemble:
        return ()
    if first.measured_once:
        common = second.seeds
    elif second.measured_once:
        common = first.seeds
    else:
        common = tuple(sorted(set(first.seeds) & set(second.seeds)))
    return common if len(common) > 1 else ()


def undecided(metric: str, first: Side, second: Side, seeds: Sequence[int]) -> Difference:
    """The values alone. Every run of one side against every run of the other."""
    ones, others = (side.values(metric, side.seeds) for side in (first, second))
    ahead = sum(1.0 if one > other else 0.5 if one == other else 0.0 for one, other in product(ones, others))
    return Difference(metric, first.mean(metric, seeds), second.mean(metric, seeds), ahead, len(ones) * len(others))


def decided(plain: Difference, first: Side, second: Side, seeds: Sequence[int], queries: Queries) -> Difference:
    """With the interval that the number of seeds allows: over classes and seeds from three on, over classes alone where
    at most one is shared, none with two. A ValueError says why there is none."""
    one, other = (queries.sums(side.runs, plain.metric) for side in (first, second))
    if one.queries != other.queries:
        raise ValueError("they answered different queries")
    if len(seeds) >= ENOUGH_SEEDS:
        estimate = difference(one.at(seeds), other)
        return replace(plain, estimate=estimate, plan=seeds_needed(estimate))
    if len(seeds) == 2:
        return plain
    return replace(plain, estimate=difference(averaged(one), averaged(other)))


def averaged(sums: Sums) -> Sums:
    """The mean over seeds, as if it were one run."""
    return replace(sums, totals=sums.totals.mean(axis=0, keepdims=True), seeds=(0,))


def most_different(
    first: Side, second: Side, seeds: Sequence[int], queries: Queries, count: int
) -> list[ClassDifference]:
    """The classes with the most queries that only one side answers at rank 1, the first side's first."""
    one, other = (
        averaged(sums.at(seeds) if len(sums.seeds) > 1 and seeds else sums)
        for sums in (queries.sums(side.runs, "R@1") for side in (first, second))
    )
    names = queries.of(first.runs[0]).names
    gap = one.totals[0] - other.totals[0]
    order = sorted(range(len(gap)), key=lambda place: (-abs(gap[place]), names[place]))[:count]
    return [
        ClassDifference(
            names[place],
            int(one.sizes[place]),
            float(one.totals[0, place] / one.sizes[place]),
            float(other.totals[0, place] / one.sizes[place]),
        )
        for place in sorted(order, key=lambda place: -gap[place])
        if gap[place] != 0
    ]


def trained_differently(first: Side, second: Side) -> list[tuple[str, object, object]]:
    """The shared settings that differ: name, the first's value, the second's."""
    settings = [name for name in telling_settings(first.trial) if name in telling_settings(second.trial)]
    values = [(name, getattr(first.trial, name), getattr(second.trial, name)) for name in settings]
    return [(name, one, other) for name, one, other in values if one != other]
