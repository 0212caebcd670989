"""The registry of formats: tables as files of text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.analysis import reference
from harness.spec import printable
from harness.tables.layout import Format, Table
from harness.tables.render.data import as_json
from harness.tables.render.html import html
from harness.tables.render.latex import document, latex
from harness.tables.render.markdown import markdown

BIBLIOGRAPHY = "references.bib"


@dataclass(frozen=True)
class TextFormat:
    ending: str
    write: Callable[[Table], str]


# The formats with one file per table.
FORMATS: Mapping[str, TextFormat] = {
    "markdown": TextFormat("md", markdown),
    "latex": TextFormat("tex", latex),
    "html": TextFormat("html", html),
}


def render(tables: Sequence[Table], form: Format, *, standalone: bool = False) -> dict[str, str]:
    """File name -> text: one file per table, for JSON one with all of them; LaTeX has its bibliography beside it. A
    file may be shown on a terminal, so it has no control characters."""
    if form == "json":
        return {"tables.json": printable(as_json(tables))}
    written = FORMATS[form]
    texts = {f"{table.slug}.{written.ending}": printable(written.write(table)) for table in tables}
    if form == "latex":
        if standalone:
            texts = {name: document(text) for name, text in texts.items()}
        texts[BIBLIOGRAPHY] = reference.bibliography()
    return texts
