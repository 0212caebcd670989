"""The budget of a loss: search trials, final runs, hours and training images."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from harness import config
from harness.analysis import tuning
from harness.analysis.results import Scored, compared_settings, scored_search
from harness.spec import ROLES, TUNABLE, ExperimentRecord, Result, Trial, Tuned

HOURS = "Hours are wall time of pre-training, training and evaluation, not of waiting or preparing images."

SHARED_HOURS = "A pre-training that losses share counts for each of them."
TEACHERS_HOURS = "A teacher's hours and images count for its students too."


@dataclass(frozen=True)
class Budget:
    """Of one loss, trained in one way on one dataset: its search on validation classes and its final runs."""

    trial: Trial  # one of its runs
    search: tuple[Scored, ...]  # the configurations tried
    final: tuple[Result, ...]
    experiments: tuple[ExperimentRecord, ...] = ()  # that the final runs belong to; none for records from before
    tuned: Tuned | None = None  # without a search of its own: the protocol's values that it has
    without_result: int = 0  # configurations that its search asked for and that have no score here

    @property
    def trials(self) -> int:
        """The configurations that its search asked for."""
        return len(self.search) + self.without_result

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
        """Of CPU cores, and of GPUs. A pre-training or a teacher that its runs share counts once."""
        hours: dict[str, float] = {}
        shared: set[str] = set()
        for run in self.runs:
            seconds = run.seconds["total"]
            for need in (run.pretraining, run.teacher):
                if need and need["id"] not in shared:
                    shared.add(need["id"])
                    seconds += need["seconds"]
            on_gpu = run.provenance.get("device_type") == "cuda"
            unit, count = ("GPU-hours", 1) if on_gpu else ("CPU-hours", run.provenance.get("threads") or 1)
            hours[unit] = hours.get(unit, 0.0) + seconds * count / 3600
        return hours

    def chose_epochs(self, trial: Trial) -> bool:
        """Whether its search gave a final trial its values, the number of epochs among them."""
        values = {**trial.searched, **({"stop_after": trial.stop_after} if trial.stop_after else {})}
        if any(record.select_epochs and record.chosen.get(trial.loss) == values for record in self.experiments):
            return True  # whether or not its trials are still stored
        winner = max(self.search, key=lambda scored: scored.score, default=None)
        return winner is not None and bool(winner.epoch) and winner.values == values

    @property
    def selects_epochs(self) -> bool:
        """Whether its search also chooses the number of epochs."""
        if self.experiments:
            return any(experiment.select_epochs for experiment in self.experiments)
        return selects_epochs(self.trial.protocol)

    @property
    def early_stopped(self) -> bool:
        """Whether a scheduler may have stopped trials early. Those are not counted."""
        if self.experiments:
            return any(experiment.scheduler != "none" for experiment in self.experiments if experiment.search)
        return any(run.provenance.get("scheduler", "none") != "none" for run in self.search_runs)

    @property
    def is_guess(self) -> bool:
        """Whether its search is one that no record calls its own."""
        return bool(self.search) and not self.experiments

    @property
    def origin(self) -> str:
        """In words, where its values come from."""
        if self.trials and self.early_stopped and self.experiments:
            return f"{counted([self.trials], 'random-search trial')}, which ASHA may have stopped early"
        if self.trials:
            ended = " that ran to the end (trials stopped by ASHA are not counted)" if self.early_stopped else ""
            return counted([self.trials], "random-search trial") + ended
        if self.tuned and self.tuned.trials:
            return f"values found by {counted([self.tuned.trials], 'trial')} of random search on validation classes"
        return "no random search"

    @property
    def by_hand(self) -> dict[str, Any]:
        """The rates and knobs that were set, not searched, in every experiment that it belongs to."""
        values = {name: getattr(self.trial, name) for name in TUNABLE} | dict(self.trial.knobs)
        keys = {name: name if name in TUNABLE else f"{self.trial.loss}.{name}" for name in values}
        return {
            name: value
            for name, value in values.items()
            if self.experiments and all(keys[name] in experiment.settings for experiment in self.experiments)
        }

    @property
    def images(self) -> int | None:
        """Training images seen, repetitions and those of teachers included; None if a run did not record it."""
        rows = [row for run in self.runs for row in run.curve]
        taught = sum(teacher["images"] for teacher in self.teachers)
        return int(sum(row["images"] for row in rows) + taught) if all("images" in row for row in rows) else None

    @property
    def teachers(self) -> list[Mapping[str, Any]]:
        """The trials that its runs learned from, each once: see Result.teacher."""
        return list({run.teacher["id"]: run.teacher for run in self.runs if run.teacher}.values())


class Budgets:
    """The budgets of all losses among stored results."""

    def __init__(self, results: Iterable[Result], experiments: Iterable[ExperimentRecord] = ()) -> None:
        self.known: dict[str, Budget] = {}  # by the id of the trial
        self.compared: dict[str, tuple[str, ...]] = {}  # protocol -> settings that its losses share, when needed
        self.runs = {run.id: run for run in results if run.is_single}
        self.final: dict[str, list[Result]] = defaultdict(list)  # configuration -> its seeds
        for run in self.runs.values():
            if run.is_final:
                self.final[run.trial.configuration].append(run)
        self.experiments: dict[str, list[ExperimentRecord]] = defaultdict(list)  # id of a trial -> those it belongs to
        for experiment in experiments:
            for id in {id for role in ROLES for id in experiment.ids(role)}:
                self.experiments[id].append(experiment)

    @cached_property
    def unclaimed(self) -> Mapping[tuple, list[Result]]:
        """The search trials that belong to no experiment, by how they were trained."""
        alike: dict[tuple, list[Result]] = defaultdict(list)
        for run in self.runs.values():
            if run.id not in self.experiments and run.purpose == "search":
                alike[self._trained_as(run.trial)].append(run)
        return alike

    def _trained_as(self, trial: Trial) -> tuple:
        """The same for trials of a loss that differ only in what search may choose, in their fold and in their seed."""
        if trial.protocol not in self.compared:
            self.compared[trial.protocol] = compared_settings(trial.protocol)
        data = (trial.dataset, trial.dataset_version, trial.fingerprint)
        shared = (getattr(trial, name) for name in self.compared[trial.protocol])
        return (*data, trial.protocol, trial.loss, trial.loss_version, *shared)

    def of(self, trial: Trial) -> Budget:
        """The budget of a trial's loss: the final runs that differ from the trial in their seed only, and the searches
        of the experiments that these or the trial belong to."""
        if trial.id not in self.known:
            self.known[trial.id] = self._budget(trial)
        return self.known[trial.id]

    def _budget(self, trial: Trial) -> Budget:
        final = tuple(self.final.get(trial.configuration, ()))
        ids = [trial.id, *(run.id for run in final)]
        experiments = {record.id: record for id in ids for record in self.experiments.get(id, ())}
        search, without_result = self._searched(trial, experiments.values()) if experiments else (self._alike(trial), 0)
        tuned = None if search or without_result else tuning.tuned(trial)
        return Budget(trial, search, final, tuple(experiments.values()), tuned, without_result)

    def _searched(self, trial: Trial, experiments: Iterable[ExperimentRecord]) -> tuple[tuple[Scored, ...], int]:
        """What these experiments tried for the trial's loss, and how many more configurations they asked for. A
        configuration that lacks a fold has no score."""
        configurations: dict[str, Scored] = {}
        without_result = 0
        for experiment in experiments:
            tried = [self.runs[id] for id in experiment.search if id in self.runs]
            of_loss = [run for run in tried if run.trial.loss == trial.loss]
            found = scored_search(of_loss, experiment.select, experiment.folds, select_epochs=experiment.select_epochs)
            for scored in found:
                configurations.setdefault(scored.runs[0].trial.id_without("fold"), scored)
            # the record does not say which loss an id is of that has no result; experiments may share such ids
            lacking = min(experiment.trials - len(found), len(experiment.search) - len(tried))
            without_result = max(lacking, without_result)
        return tuple(configurations.values()), without_result

    def _alike(self, trial: Trial) -> tuple[Scored, ...]:
        """For a trial from before experiments were recorded, a guess: the search trials whose settings, except those
        that search chooses, are the trial's, and that no experiment claims. Of several seeds the first counts."""
        alike = self.unclaimed.get(self._trained_as(trial), ())
        folds, metric = selection(trial.protocol)
        candidates = scored_search(alike, metric, folds, select_epochs=selects_epochs(trial.protocol))
        configurations: dict[str, Scored] = {}
        for scored in sorted(candidates, key=lambda scored: scored.runs[0].trial.seed):
            configurations.setdefault(scored.runs[0].trial.id_without("fold", "seed"), scored)
        return tuple(configurations.values())


def selection(protocol: str) -> tuple[int, str]:
    """How many folds a protocol searches on, and the metric it selects by."""
    rules = config.find_protocol(protocol)
    return (rules.folds, rules.select) if rules else (1, "R@1")


def selects_epochs(protocol: str) -> bool:
    """Whether the searches of a protocol choose the number of epochs."""
    rules = config.find_protocol(protocol)
    return rules is not None and rules.select_epochs


def usual_origin(budgets: Iterable[Budget]) -> str:
    """Where the values of most losses come from; ties go to the most search trials. Empty without losses."""
    alike: dict[str, list[Budget]] = defaultdict(list)
    for budget in budgets:
        alike[budget.origin].append(budget)

    def weight(origin: str) -> tuple[int, int, str]:
        same = alike[origin]
        return len({budget.trial.loss for budget in same}), max(budget.trials for budget in same), origin

    return max(alike, key=weight, default="")


def selected_by(protocol: str, budgets: Iterable[Budget]) -> str:
    """What most searches selected by, as the records of experiments say; without any, what the protocol selects by."""
    metrics = Counter(record.select for budget in budgets for record in budget.experiments if record.search)
    return metrics.most_common(1)[0][0] if metrics else selection(protocol)[1]


def describe(budgets: Sequence[Budget]) -> str:
    """The budgets of several losses in words: of a number that differs the smallest and the largest. Losses whose
    values come from elsewhere than those of most are footnoted."""
    usual = usual_origin(budgets)
    same = all(budget.origin == usual for budget in budgets)
    words = [usual if same else f"{usual} (except where a footnote says otherwise)"]
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
    runs = {run.id: run for run in runs}.values()
    older = [run for run in runs if "wait" not in run.seconds]
    differences = {
        "leave out evaluation after each epoch": [run for run in older if any("R@1" in row for row in run.curve)],
        "count waiting as pre-training": [run for run in older if "pretrain" in run.seconds],
    }
    notes = [
        f"The hours of {counted([len(runs)], 'older run')} {difference}."
        for difference, runs in differences.items()
        if runs
    ]
    shared = [SHARED_HOURS] if any(run.pretraining for run in runs) else []
    shared += [TEACHERS_HOURS] if any(run.teacher for run in runs) else []
    return [HOURS, *shared, *notes]


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
