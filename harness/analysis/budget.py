"""What a loss was given: trials, hours, images; and what a random search of n trials may be expected to find."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from harness import config
from harness.spec import Result, Trial


@dataclass(frozen=True)
class Budget:
    """Of one loss, trained in one way on one dataset: its search on validation classes and its final runs."""

    scores: tuple[float, ...]  # on validation classes, a configuration each: the mean over the protocol's folds
    search: tuple[Result, ...]  # what they come from
    final: tuple[Result, ...]

    @property
    def hours(self) -> dict[str, float]:
        """Of a CPU's cores, and of GPUs."""
        spent: dict[str, float] = {}
        for one in (*self.search, *self.final):
            on_gpu = one.provenance.get("device_type") == "cuda"
            unit, count = ("GPU-hours", 1) if on_gpu else ("CPU-hours", one.provenance.get("threads") or 1)
            spent[unit] = spent.get(unit, 0.0) + one.seconds["total"] * count / 3600
        return spent

    @property
    def cut(self) -> bool:
        """Whether a scheduler may have stopped trials early: those are not counted."""
        return any(one.provenance.get("scheduler", "none") != "none" for one in self.search)

    @property
    def images(self) -> int | None:
        """Training images seen, each as often as it was; None where a run did not record it."""
        rows = [row for one in (*self.search, *self.final) for row in one.curve]
        return int(sum(row["images"] for row in rows)) if all("images" in row for row in rows) else None


def of(trial: Trial, results: Iterable[Result]) -> Budget:
    """What went into a trial's loss: the validation runs whose settings, but for what is searched, are the trial's, and
    that were not run for a grid; and the final runs that differ from it in their seed only. A configuration that lacks
    a fold has no score, and of several seeds the first counts."""

    def what(one: Trial) -> tuple:
        data = (one.dataset, one.dataset_version, one.fingerprint, one.protocol, one.loss, one.loss_version)
        return (*data, *one.shared)

    mine = [one for one in results if what(one.trial) == what(trial) and not one.ensemble and not one.recipe]
    folds, select = selection(trial.protocol)
    found: dict[str, list[Result]] = {}
    for one in sorted(mine, key=lambda one: (one.trial.seed, one.id)):
        if one.trial.fold in folds and select in one.metrics and one.provenance.get("purpose", "search") == "search":
            found.setdefault(replace(one.trial, fold="val0").id, []).append(one)
    whole: dict[str, list[Result]] = {}
    for runs in found.values():
        if len(runs) == len(folds):
            whole.setdefault(replace(runs[0].trial, fold="val0", seed=0).id, runs)
    return Budget(
        tuple(sum(one.metrics[select] for one in runs) / len(folds) for runs in whole.values()),
        tuple(one for runs in whole.values() for one in runs),
        tuple(one for one in mine if one.trial.configuration == trial.configuration),
    )


def selection(protocol: str) -> tuple[list[str], str]:
    """The folds a protocol searches on, and the metric it chooses by."""
    if protocol not in config.names("protocols"):  # results of a protocol that is gone
        return ["val0"], "R@1"
    rules = config.protocol(protocol)
    return [f"val{number}" for number in range(rules.folds)], rules.select


def describe(budgets: Sequence[Budget]) -> str:
    """In words, of several losses: one number where they had the same, else from the least to the most."""
    counts = [len(one.scores) for one in budgets]
    said = [f"{span(counts)} trials of random search" if max(counts) else "no random search"]
    if any(one.cut for one in budgets):
        said[0] += " that ran to their end (those that ASHA stopped are not counted)"
    said.append(f"final runs: {span([len(one.final) for one in budgets])}")
    for unit in sorted({unit for one in budgets for unit in one.hours}):
        said.append(f"{span([one.hours[unit] for one in budgets if unit in one.hours])} {unit}")
    images = [one.images for one in budgets if one.images is not None]
    if len(images) == len(budgets):
        said.append(f"{span(images)} training images seen")
    return ", ".join(said)


def span(numbers: Sequence[float]) -> str:
    ends = list(dict.fromkeys(written(number) for number in (min(numbers), max(numbers))))
    return " to ".join(ends)


def written(number: float) -> str:
    if isinstance(number, int):
        return f"{number:,}"
    return "under 0.01" if number < 0.01 else f"{number:.2g}" if number < 10 else f"{number:,.0f}"


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
