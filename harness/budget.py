"""What a loss was given: trials, hours, images; and what a random search of n trials may be expected to find."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness import config, plan
from harness.spec import Result, Trial


@dataclass(frozen=True)
class Budget:
    """Of one loss, trained in one way on one dataset: its search on validation classes and its final runs."""

    scores: tuple[float, ...]  # on validation classes, a configuration each: the mean over the protocol's folds
    search: tuple[Result, ...]  # what they come from
    final: tuple[Result, ...]

    @property
    def hours(self) -> tuple[float, str]:
        """And of what: of a CPU's cores, or of GPUs."""
        spent = [*self.search, *self.final]
        on_gpu = any(one.provenance.get("device_type") == "cuda" for one in spent)
        cores = [1 if on_gpu else one.provenance.get("threads") or 1 for one in spent]
        seconds = sum(one.seconds["total"] * count for one, count in zip(spent, cores, strict=True))
        return seconds / 3600, "GPU-hours" if on_gpu else "CPU-hours"

    @property
    def images(self) -> int | None:
        """Training images seen, each as often as it was; None where a run did not record it."""
        rows = [row for one in (*self.search, *self.final) for row in one.curve]
        return int(sum(row["images"] for row in rows)) if all("images" in row for row in rows) else None


def of(trial: Trial, results: Iterable[Result]) -> Budget:
    """What went into a trial's loss. A search is not marked as one: its trials are the validation runs whose settings,
    but for what is searched, are the trial's. A configuration that lacks a fold has no score, and of several seeds the
    first counts; the final runs are those that differ from the trial in their seed only."""

    def what(one: Trial) -> tuple:
        data = (one.dataset, one.dataset_version, one.fingerprint, one.protocol, one.loss, one.loss_version)
        return (*data, *plan.shared(one))

    mine = [one for one in results if what(one.trial) == what(trial) and not one.ensemble and not one.recipe]
    folds, select = selection(trial.protocol)
    found: dict[str, list[Result]] = {}
    for one in sorted(mine, key=lambda one: (one.trial.seed, one.id)):
        if one.trial.fold in folds and select in one.metrics:
            found.setdefault(replace(one.trial, fold="val0").id, []).append(one)
    whole: dict[str, list[Result]] = {}
    for runs in found.values():
        if len(runs) == len(folds):
            whole.setdefault(replace(runs[0].trial, fold="val0", seed=0).id, runs)
    return Budget(
        tuple(sum(one.metrics[select] for one in runs) / len(folds) for runs in whole.values()),
        tuple(one for runs in whole.values() for one in runs),
        tuple(one for one in mine if plan.configuration(one.trial) == plan.configuration(trial)),
    )


def selection(protocol: str) -> tuple[list[str], str]:
    """The folds a protocol searches on, and the metric it chooses by."""
    if protocol not in config.names("protocols"):  # results of a protocol that is gone
        return ["val0"], "R@1"
    rules = config.protocol(protocol)
    return [f"val{number}" for number in range(rules.folds)], rules.select


def describe(spent: Mapping[str, Budget]) -> str:
    """In words, of several losses: one number where they had the same, else from the least to the most."""
    budgets = list(spent.values())
    most = max(len(one.scores) for one in budgets)
    trials = (
        f"{span([len(one.scores) for one in budgets])} trials of random search"
        if most
        else "no random search (the protocol's values)"
    )
    runs = span([len(one.final) for one in budgets])
    (_, unit), *_ = [one.hours for one in budgets]
    said = [
        trials,
        f"final runs: {runs}",
        f"{span([one.hours[0] for one in budgets])} {unit}",
    ]
    images = [one.images for one in budgets if one.images is not None]
    return ", ".join(said + ([f"{span(images)} training images seen"] if len(images) == len(budgets) else []))


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
