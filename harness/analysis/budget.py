"""The budget of a loss: search trials, final runs, hours and training images."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness import config
from harness.analysis.results import Scored, scored_search
from harness.spec import BATCH, SHARED, Result, Trial

HOURS = "Hours count pre-training, training and evaluation, not waiting or preparing images."


@dataclass(frozen=True)
class Budget:
    """Of one loss, trained in one way on one dataset: its search on validation classes and its final runs."""

    search: tuple[Scored, ...]  # the configurations tried
    final: tuple[Result, ...]

    @property
    def scores(self) -> tuple[float, ...]:
        """On validation classes, one per configuration."""
        return tuple(scored.score for scored in self.search)

    @property
    def search_runs(self) -> tuple[Result, ...]:
        return tuple(run for scored in self.search for run in scored.runs)

    @property
    def runs(self) -> tuple[Result, ...]:
        return (*self.search_runs, *self.final)

    @property
    def hours(self) -> dict[str, float]:
        """Of CPU cores, and of GPUs."""
        hours: dict[str, float] = {}
        for run in self.runs:
            on_gpu = run.provenance.get("device_type") == "cuda"
            unit, count = ("GPU-hours", 1) if on_gpu else ("CPU-hours", run.provenance.get("threads") or 1)
            hours[unit] = hours.get(unit, 0.0) + run.seconds["total"] * count / 3600
        return hours

    def chose_epochs(self, trial: Trial) -> bool:
        """Whether its search gave a final trial its values, the number of epochs among them."""
        winner = max(self.search, key=lambda scored: scored.score, default=None)
        if winner is None or not winner.epoch:
            return False
        return winner.values == {**trial.searched, **({"stop_after": trial.stop_after} if trial.stop_after else {})}

    @property
    def early_stopped(self) -> bool:
        """Whether a scheduler may have stopped trials early. Those are not counted."""
        return any(run.provenance.get("scheduler", "none") != "none" for run in self.search_runs)

    @property
    def images(self) -> int | None:
        """Training images seen, repetitions included; None if a run did not record it."""
        rows = [row for run in self.runs for row in run.curve]
        return int(sum(row["images"] for row in rows)) if all("images" in row for row in rows) else None


def of(trial: Trial, results: Iterable[Result]) -> Budget:
    """The budget of a trial's loss: the search trials whose settings, except those that search chooses, are the
    trial's; and the final runs that differ from the trial in their seed only. A configuration that lacks a fold has no
    score, and of several seeds the first counts."""
    alike = [run for run in results if run.is_single and trained_as(run.trial) == trained_as(trial)]
    folds, metric = selection(trial.protocol)
    searched = (run for run in alike if run.purpose == "search")
    scored = scored_search(searched, metric, folds, select_epochs=selects_epochs(trial.protocol))
    configurations: dict[str, Scored] = {}
    for candidate in sorted(scored, key=lambda candidate: candidate.runs[0].trial.seed):
        configurations.setdefault(candidate.runs[0].trial.id_without("fold", "seed"), candidate)
    final = [run for run in alike if run.is_final and run.trial.configuration == trial.configuration]
    return Budget(tuple(configurations.values()), tuple(final))


def trained_as(trial: Trial) -> tuple:
    """The same for trials of a loss that differ only in what search may choose, in their fold and in their seed."""
    data = (trial.dataset, trial.dataset_version, trial.fingerprint)
    rules = config.find_protocol(trial.protocol)
    searched = set(rules.search if rules else ())
    if "samples_per_class" in searched:
        searched.update(BATCH)
    shared = (getattr(trial, name) for name in SHARED if name not in searched)
    return (*data, trial.protocol, trial.loss, trial.loss_version, *shared)


def selection(protocol: str) -> tuple[int, str]:
    """How many folds a protocol searches on, and the metric it selects by."""
    rules = config.find_protocol(protocol)
    return (rules.folds, rules.select) if rules else (1, "R@1")


def selects_epochs(protocol: str) -> bool:
    """Whether the searches of a protocol choose the number of epochs."""
    rules = config.find_protocol(protocol)
    return rules is not None and rules.select_epochs


def describe(budgets: Sequence[Budget]) -> str:
    """The budgets of several losses in words: a number if they are equal, else the smallest and the largest."""
    trials = [len(budget.search) for budget in budgets]
    words = [counted(trials, "random-search trial") if max(trials) else "no random search"]
    if any(budget.early_stopped for budget in budgets):
        words[0] += " that ran to the end (trials stopped by ASHA are not counted)"
    words.append(counted([len(budget.final) for budget in budgets], "final run"))
    for unit in sorted({unit for budget in budgets for unit in budget.hours}):
        words.append(f"{span([budget.hours[unit] for budget in budgets if unit in budget.hours])} {unit}")
    images = [budget.images for budget in budgets if budget.images is not None]
    if len(images) == len(budgets):
        words.append(f"{span(images)} training images seen")
    return ", ".join(words)


def meaning_of_hours(runs: Iterable[Result]) -> list[str]:
    """What the hours of these runs count. Records from before waiting and evaluation after epochs had seconds of their
    own keep theirs."""
    older = [run for run in {run.id: run for run in runs}.values() if "wait" not in run.seconds]
    differences = {
        "leave out evaluation after each epoch": [run for run in older if any("R@1" in row for row in run.curve)],
        "count waiting as pre-training": [run for run in older if "pretrain" in run.seconds],
    }
    notes = [
        f"Those of {counted([len(runs)], 'run')} of an older version {difference}."
        for difference, runs in differences.items()
        if runs
    ]
    return [HOURS, *notes]


def counted(numbers: Sequence[int], noun: str) -> str:
    """1 final run; 2 final runs; 0 to 1 final runs."""
    return f"{span(numbers)} {noun}{'' if set(numbers) == {1} else 's'}"


def span(numbers: Sequence[float]) -> str:
    """2, or 2 to 5."""
    low, high = rounded(min(numbers)), rounded(max(numbers))
    return low if low == high else f"{low} to {high}"


def rounded(number: float) -> str:
    if isinstance(number, int):
        return f"{number:,}"
    if number < 0.01:
        return "under 0.01"
    return f"{number:.2g}" if number < 10 else f"{number:,.0f}"
