"""Stored results as one HTML page that needs nothing else: sortable tables, figures, runs, provenance. Imports neither
torch nor matplotlib."""

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import harness
from harness.report import fairness, records
from harness.spec import BASELINE, PIXELS, Result
from harness.tables import build as tables
from harness.tables import rows as measured
from harness.tables.render import formats as render

__all__ = ["Lacking", "Picture", "build"]

TITLE = "Metric-learning losses compared"

# Every figure of harness.figures, and what is to be seen in it.
SHOWS = {
    "retrieval": "Queries of the test classes and their nearest neighbours; frames tell right from wrong.",
    "grid": "Recall@1 on validation classes over a grid of settings, as points below its best cell.",
    "curves": "Recall@1 on test classes after every epoch.",
    "overfitting": "Recall@1 after every epoch on training and on test classes: the gap is overfitting.",
    "tsne": "Test images by t-SNE of their embeddings.",
    "search": "What the best of n trials of random search scores on validation classes, expected over all draws of n.",
    "cost": "Recall@1 on test classes against the time training took.",
    "ensemble": "Recall@1 on test classes of ensembles by the number of networks joined.",
}

SHARP = 2  # pixels of a figure to one of the page
COLUMN = 520  # of the page's pixels: of two columns of figures each is so wide


@dataclass(frozen=True)
class Picture:
    figure: str  # a name of harness.figures
    of: str  # dataset, protocol and backbone, and of some figures the loss
    png: bytes


@dataclass(frozen=True)
class Lacking:
    """A figure that cannot be drawn, and what it wants: the command is named."""

    figure: str
    why: str


def build(results: Sequence[Result], pictures: Sequence[Picture] = (), lacking: Sequence[Lacking] = ()) -> str:
    """The page. Whatever comes from results is escaped, and the page's policy lets nothing run but its own script."""
    built = {kind: tables.build(results, kind) for kind in tables.KINDS}
    every = [table for kind in built.values() for table in kind]
    found = [table for table in every if table.kind != "search"]
    sections = {
        "Tables": HINT + "".join(map(section, found)) if found else NO_TABLES,
        "Figures": figures(pictures, lacking),
        "Search": "".join(map(section, built["search"])) or "<p>Nothing was trained yet.</p>\n",
        "Runs": records.runs(results),
        "Provenance": records.provenance(results),
        "Fairness": fairness.notes(results, every),
    }
    links = "".join(f'<li><a href="#{name.lower()}">{name}</a></li>' for name in sections)
    body = "".join(
        f'<section id="{name.lower()}">\n<h2>{name}</h2>\n{text}</section>\n' for name, text in sections.items()
    )
    return page(f"<p>{escape(summary(results))}</p>\n<nav><ul>{links}</ul></nav>\n{body}")


HINT = '<p class="quiet">The head of a column sorts by it; a second click turns the order round.</p>\n'
NO_TABLES = "<p>No final results yet; make some with: <code>harness run</code></p>\n"


def page(content: str) -> str:
    """One file: style and script inside, and a policy that allows just them and pictures in the text."""
    here = Path(__file__).parent
    style, script = ((here / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
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
    """What is in it, in a paragraph."""
    kinds = Counter(kind_of(one) for one in results)
    losses = sorted({one.title for one in results if one.trial.loss != BASELINE})
    said = [f"{len(results):,} results: {', '.join(f'{count:,} {kind}' for kind, count in kinds.items())}."]
    if losses:
        said.append(f"{len(losses)} {'loss' if len(losses) == 1 else 'losses'}: {', '.join(losses)}.")
    for name, one in (("Datasets", "dataset"), ("Protocols", "protocol"), ("Networks", "backbone")):
        values = sorted({getattr(result.trial, one) for result in results} - {PIXELS})
        if values:
            said.append(f"{name}: {', '.join(map(measured.title, values) if one == 'dataset' else values)}.")
    days = sorted({str(one.provenance["finished"])[:10] for one in results if one.provenance.get("finished")})
    if days:
        said.append(f"Measured from {days[0]} to {days[-1]}." if len(days) > 1 else f"Measured on {days[0]}.")
    return " ".join([*said, f"Written by harness {harness.__version__}."])


def kind_of(one: Result) -> str:
    if one.ensemble:
        return "ensembles"
    if one.trial.loss == BASELINE:
        return "baselines"
    return "final runs on test classes" if one.trial.fold == "test" else "runs on validation classes"


def section(table: tables.Table) -> str:
    """A table that scrolls by itself where it is too wide, and what is said of it."""
    title = escape(table.title)
    text = render.html_table(table)
    return (
        f'<div class="table"><div class="scroll" tabindex="0" role="region" aria-label="{title}">\n{text}</div>\n'
        f"{render.html_notes(table)}</div>\n"
    )


def figures(pictures: Sequence[Picture], lacking: Sequence[Lacking]) -> str:
    shown = f'<div class="figures">\n{"".join(map(figure, pictures))}</div>\n' if pictures else ""
    rest = "".join(f"<li><b>{escape(one.figure)}</b>: {escape(one.why)}</li>\n" for one in lacking)
    return shown + (f"<h3>Not drawn, for lack of results</h3>\n<ul>\n{rest}</ul>\n" if rest else "")


def figure(one: Picture) -> str:
    said = f"{one.of}. {SHOWS[one.figure]}"
    width, height = (int.from_bytes(one.png[start : start + 4]) // SHARP for start in (16, 20))  # as a PNG begins
    wide = ' class="wide"' if width > COLUMN else ""
    return (
        f'<figure{wide}>\n<img width="{width}" height="{height}" alt="{escape(f"{one.figure}: {said}")}" '
        f'src="data:image/png;base64,{base64.b64encode(one.png).decode()}">\n'
        f"<figcaption><b>{escape(one.figure)}</b> · {escape(said)}</figcaption>\n</figure>\n"
    )
