"""Rows of a table from stored results: seeds joined, settings compared, the best marked."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count, groupby
from statistics import fmean
from typing import Any

from harness import config, plan
from harness.analysis import reference
from harness.spec import BASELINE, PIXELS, SHARED, TUNABLE, Result
from harness.tables.layout import Cell, Column, Row

LOOKS = ("resize", "aspect", "crop")  # what raw pixels are made of
PAPERS = ("cub", "cars", "sop")  # the order of the paper; other datasets follow by name
PARAMETERS = "Params"  # a column that is no metric
SIGNIFICANT = 0.05  # means whose difference has a larger p are not told apart

Groups = Sequence[tuple[str, list[Result]]]  # column groups: a dataset's title and its results


def by(results: Iterable[Result], key: Callable[[Result], Any]) -> list[tuple[Any, list[Result]]]:
    return [(value, list(group)) for value, group in groupby(sorted(results, key=key), key=key)]


def datasets(results: Iterable[Result]) -> Groups:
    """The column groups, in the paper's order; a resized copy of a dataset is another dataset."""

    def where(one: Result) -> tuple[int, str, int, str]:
        name = one.trial.dataset
        order = PAPERS.index(name) if name in PAPERS else len(PAPERS)
        return order, name, one.trial.dataset_version, one.trial.fingerprint

    groups = by(results, where)
    copies = Counter(name for (_, name, _, _), _ in groups)
    return [
        (title(name) + (f" (version {version}, {fingerprint})" if copies[name] > 1 else ""), members)
        for (_, name, version, fingerprint), members in groups
    ]


def title(dataset: str) -> str:
    return config.dataset(dataset).title if dataset in config.names("datasets") else dataset


def rows(groups: Groups, columns: Sequence[Column], *, beside: bool) -> list[Row]:
    """A row a loss, its seeds joined, over all datasets; a loss that has several configurations on a dataset has a row
    for each. The baselines come first, then the losses by name. `beside`: with the paper's numbers."""
    found: dict[tuple, dict[str, list[Result]]] = {}
    notes: dict[tuple, dict[str, tuple[str, ...]]] = {}
    for group, members in groups:
        configurations = [same for _, same in by(members, order)]
        usual = usual_of(configurations)
        for same in configurations:
            first = same[0]
            label = label_of(first) + distinction(first, [other[0] for other in configurations])
            # equal labels on one dataset are still different rows, told apart by their notes
            key = next(key for n in count() if group not in found.get(key := (*order(first)[:4], n, label), {}))
            found.setdefault(key, {})[group] = same
            names = [column.name for column in columns if column.group == group]
            notes.setdefault(key, {})[group] = notes_of(first, usual, names, beside)
    made = []
    for key in sorted(found):
        first = next(iter(found[key].values()))[0]
        cells = [cell(found[key].get(column.group, []), column, beside=beside) for column in columns]
        section = "Baselines" if first.trial.loss == BASELINE else ""
        made.append(Row(key[-1], tuple(cells), section, reference.key_of(first.trial.loss), joined(notes[key])))
    return marked(made)


def cell(same: Sequence[Result], column: Column, *, beside: bool) -> Cell:
    """The seeds of one configuration on one dataset."""
    if column.name == PARAMETERS and same:
        return Cell(f"{same[0].parameters:,}")
    values = tuple(one.metrics[column.name] for one in same if column.name in one.metrics)
    if not values:
        return Cell()
    mean = fmean(values)
    printed = reference.number(same[0], column.name) if beside else None
    return Cell(f"{100 * mean:.1f}", mean, half_width(values), values, published=printed.text if printed else "")


def half_width(values: Sequence[float]) -> float | None:
    """Of the 95 % interval of their mean, by Student's t."""
    if len(values) < 2:
        return None
    from scipy.stats import t  # slow to import, and needed only here

    mean = fmean(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return float(t.ppf(0.975, len(values) - 1)) * deviation / math.sqrt(len(values))


def marked(made: Sequence[Row]) -> list[Row]:
    """The best mean of each column, and those that are not significantly different from it."""
    columns = []
    for column in zip(*(row.cells for row in made), strict=True):
        best = max((one for one in column if one.mean is not None), key=lambda one: one.mean or 0.0, default=Cell())
        columns.append([replace(one, best=same(one, best), level=not_told_apart(one, best)) for one in column])
    return [replace(row, cells=cells) for row, cells in zip(made, zip(*columns, strict=True), strict=True)]


def same(one: Cell, other: Cell) -> bool:
    """But for rounding."""
    return one.mean is not None and other.mean is not None and math.isclose(one.mean, other.mean, rel_tol=1e-12)


def not_told_apart(one: Cell, best: Cell) -> bool:
    """By Welch's t-test at 95 %, which needs two seeds of each."""
    if one.mean is None or same(one, best) or min(len(one.values), len(best.values)) < 2:
        return False
    from scipy.stats import ttest_ind

    if len({*one.values}) == len({*best.values}) == 1:  # no spread at all: the means differ, and that is that
        return False
    return bool(ttest_ind(one.values, best.values, equal_var=False).pvalue > SIGNIFICANT)


def order(result: Result) -> tuple[bool, bool, str, int, str]:
    trial = result.trial
    return (
        trial.loss != BASELINE,
        trial.backbone != PIXELS,
        trial.loss,
        result.ensemble,
        repr(sorted({**trial.to_json(), "seed": 0}.items())),
    )


def largest(results: list[Result]) -> list[Result]:
    """Of an ensemble's records the one drawn from the most networks; all single runs."""
    ensembles: dict[tuple[int, str], Result] = {}
    for one in sorted(results, key=lambda one: len(one.members)):
        if one.ensemble:
            ensembles[one.ensemble, one.trial.configuration] = one
    return [one for one in results if not one.ensemble] + list(ensembles.values())


def label_of(result: Result) -> str:
    return f"{result.title}, {result.ensemble}-ensemble" if result.ensemble else result.title


def usual_of(groups: list[list[Result]]) -> dict[str, Any]:
    """The value most losses have for each setting they ought to share, and the recipe most rows have for NMI."""
    trials = [group[0].trial for group in groups if group[0].trial.loss != BASELINE]
    usual = {name: Counter(getattr(t, name) for t in trials).most_common(1)[0][0] for name in SHARED} if trials else {}
    return {**usual, "NMI": Counter(group[0].conventions.get("NMI") for group in groups).most_common(1)[0][0]}


def notes_of(result: Result, usual: Mapping[str, Any], metrics: Sequence[str], beside: bool) -> tuple[str, ...]:
    """What a reader has to know of a row: a choice made on test classes, settings that the others do not have, or that
    the paper does not have where its number stands beside."""
    notes = ["Its epoch was chosen on test classes."] if result.trial.checkpoint == "best-test" else []
    if skipped := result.provenance.get("bad_images_skipped"):
        notes.append(f"{skipped} images could not be read and were left out.")
    if "NMI" in metrics and result.conventions.get("NMI") != usual.get("NMI"):
        notes.append(f"Its NMI: {result.conventions.get('NMI')}.")
    if different := differences(result, usual):
        notes.append(f"Otherwise than the rest: {'; '.join(different)}.")
    if beside:
        if otherwise := reference.differences(result):
            notes.append(f"Not the paper's setting: {'; '.join(otherwise)}.")
        printed = {name: reference.number(result, name) for name in metrics}
        notes += [f"The published {name}: {one.note}." for name, one in printed.items() if one and one.note]
    return tuple(notes)


def differences(result: Result, usual: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings in which a loss's row was not trained as the others were."""
    own: set[str] = set()
    if result.trial.loss == BASELINE:  # not trained, so only what it sees and is counts
        own = set(SHARED) if result.trial.backbone == PIXELS else set(plan.IDLE)
    return tuple(
        f"{name} = {getattr(result.trial, name)}, others {value}"
        for name, value in usual.items()
        if name != "NMI" and getattr(result.trial, name) != value and name not in own
    )


def joined(notes: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The notes of a row; those that are not true on all its datasets name theirs."""
    counts = Counter(note for one in notes.values() for note in one)
    everywhere = [note for note in counts if counts[note] == len(notes)]
    rest = [f"{group}: {note}" for group, one in notes.items() for note in one if counts[note] < len(notes)]
    return (*everywhere, *rest)


def distinction(result: Result, rows: list[Result]) -> str:
    """Where a loss has several rows: the knobs, rates and versions that tell them apart."""

    def values(one: Result) -> dict[str, Any]:
        names = (*TUNABLE, "loss_version", *(LOOKS if one.trial.backbone == PIXELS else ()))
        return {**{name: getattr(one.trial, name) for name in names}, **one.trial.knobs}

    kind = (result.trial.loss, result.trial.backbone)
    relatives = [values(one) for one in rows if (one.trial.loss, one.trial.backbone) == kind]
    mine = values(result)
    different = [name for name in mine if any(other.get(name) != mine[name] for other in relatives)]
    return f" ({', '.join(f'{name} = {mine[name]}' for name in different)})" if different else ""
