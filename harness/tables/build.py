"""Stored results and the paper's numbers as tables in the paper's layout; render.py writes them. Imports neither torch
nor ray."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from harness import commands
from harness.analysis import budget, reference
from harness.spec import BASELINE, PIXELS, Result, unknown
from harness.tables import rows as measured
from harness.tables.layout import Cell, Column, Row, Table

__all__ = ["KINDS", "Cell", "Column", "Published", "Row", "Table", "build", "final", "select"]

KINDS = ("losses", "ensembles", "backbones", "search")

Published = Literal["beside", "rows", "none"]


def select(results: Iterable[Result], recipe: str = "", **keep: str | None) -> list[Result]:
    """Results filtered by dataset, protocol and backbone where a value is given; `recipe`: those that were measured
    again with that one for NMI."""
    found = [result for result in results if result.recipe == recipe]
    for field, value in keep.items():
        if value is not None:
            known = sorted({getattr(one.trial, field) for one in found})
            if value not in known:
                raise unknown(f"{field} with results", value, known)
            kept = (value, PIXELS) if field == "backbone" else (value,)
            found = [one for one in found if getattr(one.trial, field) in kept]
    return found


def final(results: Iterable[Result]) -> list[Result]:
    """Those on test classes: only they stand in a table of losses."""
    return [one for one in results if one.trial.fold == "test"]


def build(
    results: Sequence[Result], kind: str = "losses", published: Published = "beside", metrics: Sequence[str] = ()
) -> list[Table]:
    """The tables of one kind, one for each protocol and backbone; the raw-pixel baseline, which has no backbone,
    stands in each of its protocol."""
    if kind == "backbones":
        return [
            table
            for protocol, members in measured.by(final(results), lambda one: one.trial.protocol)
            for table in of_backbones(members, protocol, published)
        ]
    tables: list[Table] = []
    for protocol, members in measured.by(results, lambda one: one.trial.protocol):
        pixels = [one for one in members if one.trial.backbone == PIXELS]
        for backbone in sorted({one.trial.backbone for one in members} - {PIXELS}) or [PIXELS]:
            chosen = pixels + [one for one in members if one.trial.backbone == backbone != PIXELS]
            if kind == "search":
                tables += of_search(chosen, protocol, backbone)
            else:
                tables += of_losses(chosen, kind, protocol, backbone, published, metrics)
    return tables


def of_losses(
    results: Sequence[Result], kind: str, protocol: str, backbone: str, published: Published, asked: Sequence[str]
) -> list[Table]:
    """Single networks; or, of losses that have ensembles, those and the ensembles."""
    shown = measured.largest(final(results))
    if kind == "ensembles":
        joined = {one.trial.configuration for one in shown if one.ensemble}
        shown = [one for one in shown if one.trial.configuration in joined]
    else:
        shown = [one for one in shown if not one.ensemble]
    if not shown:
        return []
    groups = measured.datasets(shown)
    columns = [
        Column(group, name, members[0].trial.dataset)
        for group, members in groups
        for name in asked or papers_metrics(members)
    ]
    known = {name for one in shown for name in one.metrics}
    for name in asked:
        if name not in known:
            raise unknown("metric", name, sorted(known, key=metric_order))
    rows = measured.rows(groups, columns, beside=published == "beside")
    printed = published_rows(kind, columns) if published == "rows" else []
    if printed:
        rows = [replace(row, section=row.section or "Losses, measured here") for row in rows]
    caption = " ".join([*legend(kind, rows, columns, printed), *budgets(groups, results)])
    return [Table(kind, protocol, backbone, tuple(columns), (*printed, *rows), caption)]


def papers_metrics(results: Iterable[Result]) -> list[str]:
    """Recall@K and NMI."""
    known = {name for one in results for name in one.metrics}
    return [name for name in sorted(known, key=metric_order) if name.startswith("R@") or name == "NMI"]


def metric_order(name: str) -> tuple[int, int, str]:
    """R@1, R@2, R@10, then the others alphabetically."""
    return (0, int(name[2:]), "") if name.startswith("R@") else (1, 0, name)


def published_rows(kind: str, columns: Sequence[Column]) -> list[Row]:
    """The paper's own rows, in its order and sections, for these columns."""
    methods: dict[tuple[str, str], dict[tuple[str, str], reference.Published]] = {}
    for one in reference.published(kind):
        methods.setdefault((one.section, one.method), {})[one.dataset, one.metric] = one
    rows = []
    for (section, method), numbers in methods.items():
        found = [numbers.get((column.dataset, column.name)) for column in columns]
        shown = [Cell(number(one)) if one else Cell() for one in found]
        if any(one and one.text for one in found):
            notes = [f"{one.metric} on {measured.title(one.dataset)}: {one.note}." for one in found if one and one.note]
            first = next(iter(numbers.values()))
            where = f"Published ({reference.paper()['cite']}), {section}"
            rows.append(Row(method, tuple(shown), where, first.cite, tuple(notes)))
    return rows


def number(one: reference.Published) -> str:
    """As printed, but for parameters, which are long."""
    if one.value is None:
        return "-"
    return f"{int(one.value):,}" if one.metric == measured.PARAMETERS else one.text


def legend(kind: str, rows: Sequence[Row], columns: Sequence[Column], printed: Sequence[Row]) -> list[str]:
    """What the numbers are, and what may be said of their differences."""
    counts = sorted({len(cell.values) for row in rows for cell in row.cells if cell.values})
    several = bool(counts) and counts[-1] > 1
    seeds = "to".join(f" {count} " for count in sorted({counts[0], counts[-1]})).strip() if counts else "0"
    said = [f"Test classes, percent, {f'mean ± 95 % interval over {seeds} seeds' if several else '1 seed'}."]
    if kind == "ensembles":
        said.append("An ensemble's number is the mean over all choices of so many of its networks.")
    said.append(f"The best mean{' measured here' if printed else ''} is bold.")
    if several:
        said.append("Underlined: not significantly different from it (Welch's t-test, 95 %).")
    if not several or counts[0] < 2:
        which = "Of numbers with one value" if several else "With one seed"
        said.append(f"{which} nothing can be said of the significance of differences.")
    if any(cell.published for row in rows for cell in row.cells):
        said.append(
            f"In brackets: the number published in {reference.paper()['cite']} and our difference to it in percentage "
            "points; but for the Group Loss they are quoted there from other papers."
        )
        if any(column.name == "NMI" for column in columns):
            said.append("The paper does not say how its k-means was started and ended, on which NMI depends.")
    return said


def budgets(groups: measured.Groups, results: Sequence[Result]) -> list[str]:
    """What each loss was given, on each dataset; equal budgets are said once."""
    said: dict[str, list[str]] = {}
    for group, members in groups:
        trained = [one for one in members if one.trial.loss != BASELINE and not one.ensemble and not one.recipe]
        spent = [budget.of(same[0].trial, results) for _, same in measured.by(trained, measured.order)]
        if spent:
            said.setdefault(budget.describe(spent), []).append(group)
    where = {how: f" on {', '.join(on)}" if len(said) > 1 else "" for how, on in said.items()}
    return [f"Budget a loss{where[how]}: {how}." for how in said]


def of_backbones(results: Sequence[Result], protocol: str, published: Published) -> list[Table]:
    """The supplement's: parameters, R@1 and NMI, a row a loss and network."""
    shown = [one for one in results if not one.ensemble and one.trial.loss != BASELINE]
    if not shown:
        return []
    groups = measured.datasets(shown)
    names = (measured.PARAMETERS, "R@1", "NMI")
    columns = tuple(Column(group, name, members[0].trial.dataset) for group, members in groups for name in names)
    rows: list[Row] = []
    for backbone in sorted({one.trial.backbone for one in shown}):
        mine = [(group, [one for one in members if one.trial.backbone == backbone]) for group, members in groups]
        found = measured.rows([part for part in mine if part[1]], columns, beside=published == "beside")
        rows += [replace(row, label=f"{row.label}, {backbone}") for row in found]
    rows = measured.marked(rows)
    printed = published_rows("backbones", columns) if published == "rows" else []
    if printed:
        rows = [replace(row, section="Measured here") for row in rows]
    return [
        Table(
            "backbones", protocol, "", columns, (*printed, *rows), " ".join(legend("backbones", rows, columns, printed))
        )
    ]


def of_search(results: Sequence[Result], protocol: str, backbone: str) -> list[Table]:
    """What each loss was given and what random search found with it, on validation classes; a table a dataset."""
    _, select = budget.selection(protocol)
    names = ("trials", "final runs", "hours", "images seen", f"best {select}", f"expected best {select}", "values")
    caption = (
        f"Search on validation classes, by {select}; hours and images are those of search and final runs together. "
        "Expected best: mean and standard deviation of the best of n of these trials, over all ways to draw n of them."
    )
    tables = []
    trained = [one for one in results if one.trial.loss != BASELINE and not one.ensemble and not one.recipe]
    if any(budget.of(one.trial, results).cut for one in trained[:1]):
        caption += " Trials that ASHA stopped early are not counted: what is left promises too much."
    for group, members in measured.datasets(trained):
        rows = []
        for _, same in measured.by(members, lambda one: one.trial.loss):
            shown = [runs[0] for _, runs in measured.by(final(same), measured.order)] or same[:1]
            for one in shown:
                label = one.title + measured.distinction(one, shown)
                rows.append(Row(label, tuple(Cell(text) for text in searched(one, results))))
        columns = tuple(Column(group, name, members[0].trial.dataset) for name in names)
        tables.append(Table("search", protocol, backbone, columns, tuple(rows), caption, group))
    return tables


def searched(one: Result, results: Sequence[Result]) -> Iterable[str]:
    """A row of what search was given, found and chose."""
    spent = budget.of(one.trial, results)
    yield str(len(spent.scores))
    yield str(len(spent.final) if one.trial.fold == "test" else 0)
    yield ", ".join(f"{budget.written(hours)} {unit}" for unit, hours in spent.hours.items()) or "-"
    yield f"{spent.images:,}" if spent.images is not None else "-"
    curve = budget.expected_best(spent.scores)
    some = sorted({0, len(curve) // 2, len(curve) - 1}) if curve else []
    yield f"{100 * curve[-1][1]:.1f}" if curve else "-"
    yield (
        ", ".join(f"n={n}: {100 * mean:.1f} ± {100 * spread:.1f}" for n, mean, spread in (curve[i] for i in some))
        or "-"
    )
    yield values(one, spent.search) if one.trial.fold == "test" else "-"


def values(result: Result, trials: Sequence[Result]) -> str:
    """What search has chosen: of the rates and knobs those that varied in it, or all where there was none."""
    mine = result.trial.searched
    varied = [name for name in mine if len({repr(one.trial.searched.get(name)) for one in trials}) > 1]
    return ", ".join(f"{name} = {commands.written(mine[name])}" for name in varied or mine)
