"""`harness ls runs`: the stored runs, what each was for, and what differs from its protocol."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness import commands, config
from harness.analysis.experiments import Purposes
from harness.analysis.selection import Selection, finished
from harness.analysis.tuning import images_per_class_of
from harness.cli.app import exit_on_problems
from harness.cli.listing import Row, print_rows
from harness.cli.output import say
from harness.spec import ExperimentRecord, Protocol, Result, Trial, UserError, percent, unknown
from harness.store import Store
from losses import defaults, shipped

# What runs are sorted by: numbers from high to low, everything else from low to high. Scores on test classes come
# before those on validation classes, which are not comparable.
ORDERS: Mapping[str, Callable[[Result], Any]] = {
    "date": lambda result: finished(result),
    "loss": lambda result: (result.trial.loss, result.trial.fold, result.trial.seed),
    "R@1": lambda result: (not result.trial.on_test, result.trial.fold, -result.metrics.get("R@1", 0.0)),
    "seconds": lambda result: -result.seconds["total"],
}
COLUMNS = (
    "id",
    "date",
    "kind",
    "loss",
    "dataset",
    "fold",
    "protocol",
    "backbone",
    "seed",
    "R@1",
    "seconds",
    "name",
    "differs",
)
# On a terminal these are said once, above the list, where all runs have the same.
FOLDED = ("dataset", "protocol", "backbone", "fold", "seed")
# On a narrow one these may stand below each row.
ASIDE = ("dataset", "protocol", "backbone", "name")


def list_runs(store: Store, selection: Selection, sort: str) -> None:
    if sort not in ORDERS:
        raise unknown("order", sort, ORDERS)
    stored, experiments, problems = store.everything()
    if not stored and not problems:
        raise UserError(f"no results in {store.root}; make some with: harness run")
    runs = sorted(selection.runs(stored, experiments), key=ORDERS[sort]) if stored else []
    purposes, names = Purposes(experiments), experiment_names(experiments)
    rows = [run_row(result, purposes, names) for result in runs]
    same = same_of_all(rows) if sys.stdout.isatty() and len(rows) > 1 else {}
    if same:
        say(", ".join(f"{name} {value}" for name, value in same.items()))
    hidden = {*same, *({"seconds"} - {sort})}
    headers = [name for name in COLUMNS if name not in hidden and any(row[name] for row in rows)]
    if rows:
        print_rows(rows, headers, below="differs", aside=ASIDE)
    exit_on_problems(problems)


def same_of_all(rows: Sequence[Row]) -> dict[str, str]:
    """What a terminal need not repeat in every row."""
    values = {name: {str(row[name]) for row in rows} - {""} for name in FOLDED}  # raw pixels have no backbone
    return {name: next(iter(found)) for name, found in values.items() if len(found) == 1}


def run_row(result: Result, purposes: Purposes, names: Mapping[str, str]) -> Row:
    trial = result.trial
    moment = finished(result)
    return {
        "id": result.id,
        "date": moment.astimezone().strftime("%Y-%m-%d %H:%M") if moment.year > 1 else "",
        "kind": kind_of(result, purposes),
        "loss": label_of(result),
        "dataset": trial.dataset,
        "fold": trial.fold,
        "protocol": trial.protocol,
        "backbone": "" if trial.is_pixels else trial.backbone,
        "seed": str(trial.seed),
        "R@1": percent(result.metrics["R@1"]) if result.metrics else "-",
        "seconds": f"{result.seconds['total']:.0f}",
        "differs": differences(result),
        "name": names.get(result.members[0] if result.is_ensemble else result.id, ""),
    }


def kind_of(result: Result, purposes: Purposes) -> str:
    """run, search, grid, ensemble, baseline; eval, if it was measured again. Experiments may share a trial."""
    if result.is_ensemble:
        return "ensemble"
    if result.recipe:
        return "eval"
    if result.trial.is_baseline:
        return "baseline"
    return ", ".join(sorted(purposes.of(result)))


def label_of(result: Result) -> str:
    trial = result.trial
    words = [("pixels" if trial.is_pixels else "untrained") if trial.is_baseline else trial.loss]
    if result.is_ensemble:
        words.append(f"x {result.ensemble}")
    if result.recipe:
        words.append(f"({result.recipe})")
    return " ".join(words)


def experiment_names(experiments: Sequence[ExperimentRecord]) -> dict[str, str]:
    """The names of the experiments of each trial."""
    names: dict[str, list[str]] = {}
    for record in experiments:
        for id in {*record.search, *record.grid, *record.final, *record.baseline} if record.name else ():
            names.setdefault(id, []).append(record.name)
    return {id: ", ".join(dict.fromkeys(given)) for id, given in names.items()}


def differences(result: Result) -> str:
    """The settings and knobs of a trial that are not its protocol's, or its loss's defaults."""
    trial = result.trial
    protocol = config.find_protocol(trial.protocol)
    if protocol is None:
        return "the protocol is gone"
    sizes = images_per_class_of(trial.dataset)
    usuals = [config.usual(protocol, trial.dataset, trial.loss, size) for size in sizes]
    fewest = min([unlike(trial, protocol, usual) for usual in usuals], key=len)
    return " ".join(fewest)


def unlike(trial: Trial, protocol: Protocol, usual: dict[str, Any]) -> list[str]:
    knobs = defaults(trial.loss) if trial.loss in shipped() else {}
    expected = {**usual, **{f"{trial.loss}.{name}": value for name, value in {**knobs, **usual}.items()}}
    elsewhere = trial.weights_kind != usual["weights"] and not trial.is_pixels
    words = [f"weights={trial.weights_kind}"] if elsewhere else []
    for key, value in commands.assignments(trial, usual, protocol):
        if key not in ("fold", "seed") and (key not in expected or expected[key] != value):
            words.append(f"{key.removeprefix(f'{trial.loss}.')}={commands.written(value)}")
    return words
