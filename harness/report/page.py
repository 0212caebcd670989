"""Stored results as one HTML page that needs nothing else: sortable tables, figures, runs, provenance. Imports neither
torch nor matplotlib."""

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path

import harness
from harness.analysis.queries import Queries
from harness.analysis.results import title_of
from harness.figures.registry import FIGURES
from harness.report import fairness, records
from harness.report.pictures import Missing, Picture
from harness.spec import PIXELS, ExperimentRecord, Result
from harness.tables.build import KINDS, build
from harness.tables.layout import Options, Table
from harness.tables.render.html import html_notes, html_table

TITLE = "Metric-learning losses compared"

SHARP = 2  # pixels of a figure to one of the page
COLUMN = 520  # of the page's pixels: of two columns of figures each is so wide


def page(
    results: Sequence[Result],
    pictures: Sequence[Picture] = (),
    missing: Sequence[Missing] = (),
    experiments: Sequence[ExperimentRecord] = (),
    queries: Queries | None = None,
    sort: str = "",
) -> str:
    """The whole page. Losses are in the order of their names, or sorted by a metric. Whatever comes from results is
    escaped, and the page's policy lets only its own script run."""
    options = Options(sort=sort)
    tables = {kind: build(results, kind, options, experiments, queries) for kind in KINDS}
    searches = tables.pop("search")
    measured = [table for of_kind in tables.values() for table in of_kind]
    sections = {
        "Tables": HINT + "".join(map(section, measured)) if measured else NO_TABLES,
        "Figures": figures(pictures, missing),
        "Search": "".join(map(section, searches)) or "<p>Nothing was trained yet.</p>\n",
        "Runs": records.runs(results, sort),
        "Provenance": records.provenance(results),
        "Fairness": fairness.notes(results, [*measured, *searches], experiments),
    }
    links = "".join(f'<li><a href="#{name.lower()}">{name}</a></li>' for name in sections)
    body = "".join(
        f'<section id="{name.lower()}">\n<h2>{name}</h2>\n{text}</section>\n' for name, text in sections.items()
    )
    return document(f"<p>{escape(summary(results))}</p>\n<nav><ul>{links}</ul></nav>\n{body}")


HINT = '<p class="quiet">Click the head of a column to sort by it, and again to reverse the order.</p>\n'
NO_TABLES = "<p>No final results yet; make some with: <code>harness run</code></p>\n"


def document(content: str) -> str:
    """One file: style and script inside, and a policy that allows only these and embedded pictures."""
    folder = Path(__file__).parent
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{TITLE}</title>\n'
        f"<style>\n{style}</style>\n</head>\n<body>\n<main>\n<h1>{TITLE}</h1>\n{content}</main>\n"
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def summary(results: Sequence[Result]) -> str:
    """The contents of the page in one paragraph."""
    kinds = Counter(map(kind_of, results))
    losses = sorted({result.title for result in results if not result.trial.is_baseline})
    backbones = {result.trial.backbone for result in results} - {PIXELS}
    named = {
        "Losses": losses,
        "Datasets": sorted({title_of(result.trial.dataset) for result in results}),
        "Protocols": sorted({result.trial.protocol for result in results}),
        "Networks": sorted(backbones),
    }
    parts = [f"{count:,} {noun}{'s' if count > 1 else ''}{where}" for (noun, where), count in kinds.items()]
    sentences = [f"{len(results):,} result{'s' if len(results) > 1 else ''}: {', '.join(parts)}."]
    sentences += [f"{name}: {', '.join(values)}." for name, values in named.items() if values]
    days = sorted({str(result.provenance["finished"])[:10] for result in results if result.provenance.get("finished")})
    if days:
        sentences.append(f"Measured from {days[0]} to {days[-1]}." if len(days) > 1 else f"Measured on {days[0]}.")
    return " ".join([*sentences, f"Written by harness {harness.__version__}."])


def kind_of(result: Result) -> tuple[str, str]:
    """What a result is, and on which classes."""
    if result.is_ensemble:
        return "ensemble", ""
    if result.trial.is_baseline:
        return "baseline", ""
    return ("final run", " on test classes") if result.trial.on_test else ("run", " on validation classes")


def section(table: Table) -> str:
    """A table that scrolls if it is too wide, with its caption and footnotes."""
    return (
        f'<div class="table"><div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">\n'
        f"{html_table(table, records.links)}</div>\n{html_notes(table)}</div>\n"
    )


def figures(pictures: Sequence[Picture], missing: Sequence[Missing]) -> str:
    drawn = f'<div class="figures">\n{"".join(map(figure, pictures))}</div>\n' if pictures else ""
    reasons = "".join(f"<li><b>{escape(lack.figure)}</b>: {escape(lack.reason)}</li>\n" for lack in missing)
    return drawn + (f"<h3>Not drawn, because results are missing</h3>\n<ul>\n{reasons}</ul>\n" if reasons else "")


def figure(picture: Picture) -> str:
    caption = f"{picture.subject}. {FIGURES[picture.figure].shows}"
    width, height = (int.from_bytes(picture.png[start : start + 4]) // SHARP for start in (16, 20))  # as a PNG begins
    wide = ' class="wide"' if width > COLUMN else ""
    return (
        f'<figure{wide}>\n<img width="{width}" height="{height}" alt="{escape(f"{picture.figure}: {caption}")}" '
        f'src="data:image/png;base64,{base64.b64encode(picture.png).decode()}">\n'
        f"<figcaption><b>{escape(picture.figure)}</b> · {escape(caption)}</figcaption>\n</figure>\n"
    )
