"""Stored results -> the paper's layout -> Markdown, LaTeX or CSV. Imports neither torch nor ray."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from harness import plan
from harness.config import RUN_SETTINGS, TUNABLE
from harness.plan import BASELINE
from harness.spec import SETTINGS, Result, unknown
from harness.store import frame

PIXELS = plan.PIXELS["backbone"]
LOOKS = ("resize", "aspect", "crop")  # what raw pixels are made of
SHARED = [name for name in SETTINGS if name not in (*RUN_SETTINGS, *TUNABLE)]  # what fairness wants equal


@dataclass(frozen=True)
class Cell:
    """A mean over seeds and the half width of its 95 % interval: fractions, None with a single seed."""

    mean: float
    half: float | None


@dataclass(frozen=True)
class Row:
    label: str
    seeds: int
    baseline: bool
    cells: Mapping[str, Cell]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """One dataset, one protocol, one backbone."""

    dataset: str
    protocol: str
    backbone: str
    metrics: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def slug(self) -> str:
        return f"{self.dataset}-{self.protocol}-{self.backbone}".replace("/", "-")

    @property
    def caption(self) -> str:
        counts = sorted({row.seeds for row in self.rows})
        several = len(counts) > 1 or counts[0] > 1
        spread = "to".join(f" {count} " for count in sorted({counts[0], counts[-1]})).strip()
        how = f"mean ± 95 % interval over {spread} seeds" if several else "1 seed"
        return f"Test classes, percent, {how}; best in bold."


def render(results: list[Result], form: str, metrics: Sequence[str] = ()) -> dict[str, str]:
    """File name -> text: a table each, or for csv the long frame of all of them."""
    tables = build(results, metrics)
    if form == "csv":
        long = frame(results)
        return {"results.csv": long[long["metric"].isin(metrics or long["metric"])].to_csv(index=False)}
    write, ending = {"markdown": (markdown, "md"), "latex": (latex, "tex")}[form]
    return {f"{table.slug}.{ending}": write(table) for table in tables}


def select(results: Iterable[Result], recipe: str = "", **keep: str | None) -> list[Result]:
    """Results on test classes, filtered by dataset, protocol and backbone where a value is given; `recipe`: those that
    were measured again with that one for NMI."""
    return only([one for one in results if one.trial.fold == "test" and one.recipe == recipe], **keep)


def only(results: list[Result], **keep: str | None) -> list[Result]:
    """Those of a dataset, protocol or backbone, where a value is given."""
    for field, value in keep.items():
        if value is not None:
            results = _filter(results, field, value)
    return results


def build(final: Iterable[Result], metrics: Sequence[str] = ()) -> list[Table]:
    """Datasets, copies of one, protocols and backbones come in tables of their own; the raw-pixel baseline, which has
    no backbone, stands in each table of its dataset and protocol."""
    tables = []
    final = sorted(final, key=_where)
    copies = Counter(where[:2] for where in {_where(one) for one in final})
    for (dataset, protocol, version, fingerprint), group in groupby(final, key=_where):
        members = list(group)
        if copies[dataset, protocol] > 1:  # a resized copy of a dataset is another dataset
            dataset = f"{dataset} (version {version}, {fingerprint})"
        pixels = [one for one in members if one.trial.backbone == PIXELS]
        for backbone in sorted({one.trial.backbone for one in members} - {PIXELS}) or [PIXELS]:
            chosen = pixels + [one for one in members if one.trial.backbone == backbone != PIXELS]
            columns = _columns(chosen, metrics)
            tables.append(Table(dataset, protocol, backbone, columns, _rows(chosen, columns)))
    return tables


def _where(result: Result) -> tuple[str, str, int, str]:
    trial = result.trial
    return trial.dataset, trial.protocol, trial.dataset_version, trial.fingerprint


def _filter(results: list[Result], field: str, value: str) -> list[Result]:
    known = sorted({getattr(one.trial, field) for one in results})
    if value not in known:
        raise unknown(f"{field} with results", value, known)
    kept = (value, PIXELS) if field == "backbone" else (value,)
    return [one for one in results if getattr(one.trial, field) in kept]


def _columns(results: list[Result], asked: Sequence[str]) -> tuple[str, ...]:
    """What was asked for, else the paper's: Recall@K and NMI."""
    known = {name for one in results for name in one.metrics}
    for name in asked:
        if name not in known:
            raise unknown("metric", name, sorted(known, key=_metric_order))
    return tuple(asked) or tuple(n for n in sorted(known, key=_metric_order) if n.startswith("R@") or n == "NMI")


def _metric_order(name: str) -> tuple[int, int, str]:
    """R@1, R@2, R@10, then the others alphabetically."""
    return (0, int(name[2:]), "") if name.startswith("R@") else (1, 0, name)


def _rows(results: list[Result], metrics: tuple[str, ...]) -> tuple[Row, ...]:
    """A row a configuration, seeds joined; the baselines first, then the losses by name."""
    ordered = sorted(largest(results), key=_order)
    groups = [list(group) for _, group in groupby(ordered, key=_order)]
    usual = _usual(groups)
    return tuple(
        Row(
            label=_label(group[0]) + _distinction(group[0], [other[0] for other in groups]),
            seeds=len(group),
            baseline=group[0].trial.loss == BASELINE,
            cells={name: cell([one.metrics[name] for one in group if name in one.metrics]) for name in metrics},
            notes=_notes(group[0], usual, metrics),
        )
        for group in groups
    )


def _order(result: Result) -> tuple[bool, bool, str, int, str]:
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
            ensembles[one.ensemble, plan.configuration(one.trial)] = one
    return [one for one in results if not one.ensemble] + list(ensembles.values())


def _label(result: Result) -> str:
    return f"{result.title}, ensemble of {result.ensemble}" if result.ensemble else result.title


def _usual(groups: list[list[Result]]) -> dict[str, Any]:
    """The value most losses have for each setting they ought to share, and the recipe most rows have for NMI."""
    trials = [group[0].trial for group in groups if group[0].trial.loss != BASELINE]
    usual = {name: Counter(getattr(t, name) for t in trials).most_common(1)[0][0] for name in SHARED} if trials else {}
    return {**usual, "NMI": Counter(group[0].conventions.get("NMI") for group in groups).most_common(1)[0][0]}


def _notes(result: Result, usual: Mapping[str, Any], metrics: Sequence[str]) -> tuple[str, ...]:
    """What a reader has to know of a row: a choice made on test classes, settings that the others do not have."""
    notes = ["Its epoch was chosen on test classes."] if result.trial.checkpoint == "best-test" else []
    if skipped := result.provenance.get("bad_images_skipped"):
        notes.append(f"{skipped} images could not be read and were left out.")
    if "NMI" in metrics and result.conventions.get("NMI") != usual.get("NMI"):
        notes.append(f"Its NMI: {result.conventions.get('NMI')}.")
    different = _differences(result, usual)
    return (*notes, *([f"Otherwise than the rest: {'; '.join(different)}."] if different else []))


def _differences(result: Result, usual: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings in which a loss's row was not trained as the others were."""
    own: set[str] = set()
    if result.trial.loss == BASELINE:  # not trained, so only what it sees and is counts
        own = set(SHARED) if result.trial.backbone == PIXELS else set(plan.IDLE)
    return tuple(
        f"{name} = {getattr(result.trial, name)}, others {value}"
        for name, value in usual.items()
        if name != "NMI" and getattr(result.trial, name) != value and name not in own
    )


def _distinction(result: Result, rows: list[Result]) -> str:
    """Where a loss has several rows: the knobs, rates and versions that tell them apart."""

    def values(one: Result) -> dict[str, Any]:
        names = (*TUNABLE, "loss_version", *(LOOKS if one.trial.backbone == PIXELS else ()))
        return {**{name: getattr(one.trial, name) for name in names}, **one.trial.knobs}

    kind = (result.trial.loss, result.trial.backbone)
    relatives = [values(one) for one in rows if (one.trial.loss, one.trial.backbone) == kind]
    mine = values(result)
    different = [name for name in mine if any(other.get(name) != mine[name] for other in relatives)]
    return f" ({', '.join(f'{name} = {mine[name]}' for name in different)})" if different else ""


def cell(values: list[float]) -> Cell:
    """The mean of these seeds, with Student's interval."""
    if not values:
        return Cell(math.nan, None)
    mean = sum(values) / len(values)
    if len(values) == 1:
        return Cell(mean, None)
    from scipy.stats import t  # slow to import, and needed only here

    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return Cell(mean, float(t.ppf(0.975, len(values) - 1)) * deviation / math.sqrt(len(values)))


def markdown(table: Table) -> str:
    from tabulate import tabulate

    marks, notes = _footnotes(table)
    body = _body(table, lambda text: f"**{text}**", " ± ")
    labels = [_markdown_escape(row.label) + mark for row, mark in zip(table.rows, marks, strict=True)]
    lines = tabulate(
        [[label, *cells] for label, cells in zip(labels, body, strict=True)],
        headers=["Loss", *table.metrics],
        tablefmt="pipe",
        disable_numparse=True,
        colalign=["left"] + ["right"] * len(table.metrics),
    )
    title = f"### {table.dataset} · {table.protocol} · {table.backbone}"
    return "\n\n".join([title, lines, table.caption, *map(_markdown_escape, notes)]) + "\n"


def latex(table: Table) -> str:
    """A booktabs table; the document needs \\usepackage{booktabs}."""
    marks, notes = _footnotes(table)
    body = _body(table, lambda text: f"\\textbf{{{text}}}", " $\\pm$ ")
    rows = []
    for row, mark, cells in zip(table.rows, marks, body, strict=True):
        rows.append(" & ".join([latex_escape(row.label) + (f"$^{{{mark}}}$" if mark else ""), *cells]) + r" \\")
        rows += [r"\midrule"] if row is _last_baseline(table) else []
    where = latex_escape(f"{table.dataset}, protocol {table.protocol}, {table.backbone}. {table.caption}")
    caption = " ".join([where, *(latex_escape(note) for note in notes)]).replace("±", r"$\pm$")
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        rf"\begin{{tabular}}{{@{{}}l{'r' * len(table.metrics)}@{{}}}}",
        r"\toprule",
        " & ".join(["Loss", *map(latex_escape, table.metrics)]) + r" \\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{caption}}}",
        rf"\label{{tab:{''.join(c if c.isalnum() else '-' for c in table.slug)}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _last_baseline(table: Table) -> Row | None:
    """The row under which a rule separates what was measured for comparison from the losses."""
    ours = [row for row in table.rows if row.baseline]
    return ours[-1] if ours and len(ours) < len(table.rows) else None


def _body(table: Table, bold: Callable[[str], str], plus_minus: str) -> list[list[str]]:
    """Percent with one decimal: the last line where a metric is a fraction."""
    means = {name: [row.cells[name].mean for row in table.rows] for name in table.metrics}
    best = {name: max((mean for mean in means[name] if not math.isnan(mean)), default=None) for name in table.metrics}

    def render(name: str, cell: Cell) -> str:
        if math.isnan(cell.mean):
            return "-"
        text = f"{100 * cell.mean:.1f}"
        text = bold(text) if cell.mean == best[name] else text
        return text if cell.half is None else f"{text}{plus_minus}{100 * cell.half:.1f}"

    return [[render(name, row.cells[name]) for name in table.metrics] for row in table.rows]


def _footnotes(table: Table) -> tuple[list[str], list[str]]:
    """A mark for each row that has notes, and the notes."""
    marks: list[str] = []
    notes: list[str] = []
    for row in table.rows:
        marks.append(f"[{len(notes) + 1}]" if row.notes else "")
        if row.notes:
            notes.append(f"[{len(notes) + 1}] {' '.join(row.notes)}")
    return marks, notes


def _markdown_escape(text: str) -> str:
    return "".join(f"\\{c}" if c in "\\`*_{}<>|#" else c for c in text.replace("\n", " "))


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
}


def latex_escape(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in text.replace("\n", " "))
