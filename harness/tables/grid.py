"""The table of a grid: every cell, its score and its distance to the best."""

from collections.abc import Sequence

from harness import commands, plan
from harness.analysis.results import by_dataset, configurations, score
from harness.spec import SETTINGS, Experiment, Result, Trial, percent
from harness.tables import captions
from harness.tables.layout import Cell, Column, Row, Table


def grid(experiment: Experiment, cells: Sequence[Trial], results: Sequence[Result]) -> Table | None:
    """A row per cell: its mean over seeds of what the protocol selects by. None if no cell has a result."""
    trained = [result for result in results if not result.trial.is_baseline]
    if not trained:
        return None
    (dataset,) = by_dataset(trained)
    metric = experiment.protocol.select
    scored = {runs[0].trial.configuration: score(runs, metric) for runs in configurations(trained)}
    best = max(cell.score for cell in scored.values())
    titles = {loss.name: loss.title for loss in experiment.losses}
    rows = []
    for configuration, trial in {trial.configuration: trial for trial in cells}.items():
        cell = scored.get(configuration)
        numbers: tuple[str, ...] = ("0", "-", "-")
        notes: tuple[str, ...] = ()
        if cell is not None:
            numbers = (str(len(cell.runs)), percent(cell.score), percent(cell.score - best))
            notes = (*captions.condition_notes(cell.runs, trained), *captions.training_notes(cell.runs, trained))
        values = (varied_value(trial, key, experiment) for key in experiment.grid)
        rows.append(Row(titles[trial.loss], tuple(map(Cell, (*values, *numbers))), notes=notes))
    first = cells[0]
    classes = (
        "Test classes: nothing is selected by this table" if first.on_test else f"Validation classes ({first.fold})"
    )
    sentences = (
        *captions.unlike_protocol([dataset], own=[key for key in experiment.grid if key in SETTINGS]),
        f"{classes}. Percent, mean over seeds; the difference in percentage points.",
    )
    return Table(
        "grid",
        experiment.protocol.name,
        first.backbone,
        tuple(Column(dataset.title, name) for name in (*experiment.grid, "seeds", metric, "to the best")),
        tuple(rows),
        " ".join(sentences),
        short=sentences,
    )


def varied_value(trial: Trial, key: str, experiment: Experiment) -> str:
    """The value that a cell has for a key of the grid; empty for a knob of another loss."""
    if key in SETTINGS:
        return commands.written(getattr(trial, key))
    if plan.owner(key) != trial.loss:
        return ""
    added = next(loss.added for loss in experiment.losses if loss.name == trial.loss)
    return commands.written({**added, **trial.knobs}[key.rpartition(".")[2]])
