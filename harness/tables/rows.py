"""Rows of a table: stored results with their seeds joined and the best marked, and the paper's own rows."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from harness.analysis import reference
from harness.analysis.baselines import PIXEL_SETTINGS
from harness.analysis.budget import Budget, usual_origin
from harness.analysis.results import OnDataset, group_by, title_of, usual_settings
from harness.spec import TUNABLE, Result, unknown
from harness.tables import captions
from harness.tables.layout import BASELINES, PARAMETERS, PUBLISHED, Cell, Column, Options, Row, Stored
from harness.tables.significance import cell, marked, missing_values


class Place(NamedTuple):
    """Where a row stands: rows sort by these fields."""

    trained: bool  # baselines come first
    network: bool  # raw pixels before the untrained network
    backbone: str  # where rows have several; else empty
    loss: str
    ensemble: int
    number: int  # tells rows of equal labels apart, which differ in what their footnotes say
    label: str


def rows(
    datasets: Sequence[OnDataset],
    columns: Sequence[Column],
    stored: Stored,
    options: Options,
    section_of: Callable[[Place], str] = lambda place: "",
    own: Sequence[str] = (),
) -> list[Row]:
    """One row per loss, its seeds joined, over all datasets; a loss with several configurations on a dataset has a row
    for each. `section_of`: where a trained row stands; `own`: settings in which rows differ by design."""
    runs: dict[Place, dict[str, list[Result]]] = {}
    notes: dict[Place, dict[str, tuple[str, ...]]] = {}
    for dataset in datasets:
        title = dataset.title
        metrics = [column.name for column in columns if column.group == title]
        configurations = [same for _, same in group_by(dataset.results, same_row)]
        usual = usual_settings(dataset.results, own)
        budgets = {
            same[0].id: stored.budgets.of(same[0].trial) for same in configurations if not same[0].trial.is_baseline
        }
        origin = usual_origin(budgets.values())
        apart = distinctions([same[0] for same in configurations], budgets)
        for same in configurations:
            distinction = apart[same[0].id]
            place = place_of(same[0], distinction.label, own)
            while title in runs.get(place, {}):
                place = place._replace(number=place.number + 1)
            runs.setdefault(place, {})[title] = same
            notes.setdefault(place, {})[title] = (
                *filter(None, [distinction.note]),
                *captions.footnotes(same, options.recipe, metrics),
                *captions.image_notes(same, dataset.results),
                *captions.setting_notes(same[0].trial, usual, own),
                *captions.papers_notes(same[0], metrics, options.published),
                *(captions.teacher_notes(budgets[same[0].id]) if same[0].id in budgets else ()),
                *(captions.origin_notes(budgets[same[0].id], origin) if same[0].id in budgets else ()),
                *captions.condition_notes(same, dataset.results),
                *captions.training_notes(same, dataset.results),
                *missing_values(same, stored.queries),
            )
    joined = []
    for place in sorted(runs):
        cells = tuple(
            cell(runs[place].get(column.group, []), column, stored.queries, options.published) for column in columns
        )
        section = section_of(place) if place.trained else BASELINES
        joined.append(Row(place.label, cells, section, reference.key_of(place.loss), captions.joined(notes[place])))
    return ordered(marked(joined), columns, options.sort)


def ordered(rows: list[Row], columns: Sequence[Column], sort: str) -> list[Row]:
    """The rows, those of losses by the mean of a metric on the first dataset that has it, the highest first."""
    if not sort:
        return rows
    place = next((place for place, column in enumerate(columns) if column.name == sort), None)
    if place is None:
        raise unknown("column to sort by", sort, dict.fromkeys(column.name for column in columns))
    means = [row.cells[place].mean for row in rows]
    numbers = {id(row): -math.inf if mean is None else mean for row, mean in zip(rows, means, strict=True)}
    return sorted(rows, key=lambda row: (row.section != BASELINES, row.section != BASELINES and -numbers[id(row)]))


def same_row(result: Result) -> tuple[int, str]:
    """Equal for results that share a row on one dataset: seeds of a configuration, or ensembles of a size."""
    return result.ensemble, result.trial.configuration


def place_of(result: Result, label: str, own: Sequence[str]) -> Place:
    trial = result.trial
    backbone, label = trial.backbone if "backbone" in own else "", result.label + label
    label = f"{label}, {backbone}" if backbone else label
    return Place(not trial.is_baseline, not trial.is_pixels, backbone, trial.loss, result.ensemble, 0, label)


class Distinction(NamedTuple):
    """What tells a row of a loss from its other rows: behind its title, and in a footnote if that would be too long."""

    label: str = ""
    note: str = ""


def distinctions(firsts: Sequence[Result], budgets: Mapping[str, Budget]) -> dict[str, Distinction]:
    """By the id of a row's first run. A single value stands in the label; several stand in a footnote, and the label
    says where they come from."""
    apart: dict[str, Distinction] = {}
    for _, relatives in group_by(firsts, lambda result: (result.trial.loss, result.trial.backbone)):
        mine = {result.id: own_values(result) for result in relatives}
        names: dict[str, str] = {}  # the differing values -> how a label calls them
        for result in relatives:
            different = differing(mine[result.id], mine.values())
            words = ", ".join(f"{name} = {captions.written(mine[result.id][name])}" for name in different)
            if len(different) <= 1 or result.id not in budgets:
                apart[result.id] = Distinction(f" ({words})" if words else "")
                continue
            origin = origin_of(budgets[result.id])
            number = sum(name.startswith(origin) for name in names.values()) + 1
            names.setdefault(words, origin if number == 1 else f"{origin} {number}")
            apart[result.id] = Distinction(f", {names[words]}", f"With {words}.")
    return apart


def own_values(result: Result) -> dict[str, Any]:
    """The knobs, rates and versions of a run."""
    trial = result.trial
    names = (*TUNABLE, "stop_after", "loss_version", *(PIXEL_SETTINGS if trial.is_pixels else ()))
    return {**{name: getattr(trial, name) for name in names}, **trial.knobs}


def differing(mine: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> list[str]:
    others = list(others)
    return [name for name in mine if any(other.get(name) != mine[name] for other in others)]


def origin_of(spent: Budget) -> str:
    return "searched" if spent.search else "set by hand" if spent.by_hand else "protocol values"


def published_rows(kind: str, columns: Sequence[Column]) -> list[Row]:
    """The paper's own rows, in its order and sections, for these columns."""
    methods: dict[tuple[str, str], dict[tuple[str, str], reference.Published]] = {}
    for number in reference.published(kind):
        methods.setdefault((number.section, number.method), {})[number.dataset, number.metric] = number
    rows = []
    for (section, method), numbers in methods.items():
        printed = [numbers.get((column.dataset, column.name)) for column in columns]
        if any(number and number.text for number in printed):
            cells = tuple(Cell(as_printed(number)) if number else Cell() for number in printed)
            notes = tuple(
                f"{number.metric} on {title_of(number.dataset)}: {number.note}."
                for number in printed
                if number and number.note
            )
            source = f"{PUBLISHED} ({reference.paper()['cite']}), {reference.title_of(section)}"
            rows.append(Row(reference.title_of(method), cells, source, next(iter(numbers.values())).cite, notes))
    return rows


def as_printed(number: reference.Published) -> str:
    """Parameters are long, and so get commas."""
    if number.value is None:
        return "-"
    return f"{int(number.value):,}" if number.metric == PARAMETERS else number.text
