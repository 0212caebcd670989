"""Tables as Markdown, LaTeX, HTML and JSON, and the long frame of all numbers as CSV. What is text stays text."""

import html as escaping
import json
import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from harness.analysis import reference
from harness.spec import Result
from harness.store import frame
from harness.tables.layout import Cell, Row, Table
from harness.tables.rows import PARAMETERS

ENDINGS = {"markdown": "md", "latex": "tex", "html": "html"}
BIBLIOGRAPHY = "references.bib"


def render(tables: Sequence[Table], form: str, *, standalone: bool = False) -> dict[str, str]:
    """File name -> text: a file a table; for JSON one with all of them; LaTeX has its bibliography beside it."""
    if form == "json":
        return {"tables.json": as_json(tables)}
    write = {"markdown": markdown, "latex": latex, "html": html}[form]
    texts = {f"{table.slug}.{ENDINGS[form]}": write(table) for table in tables}
    if form == "latex":
        if standalone:
            texts = {name: document(text) for name, text in texts.items()}
        texts[BIBLIOGRAPHY] = reference.bibliography()
    return texts


def csv(results: Iterable[Result], metrics: Sequence[str] = (), *, published: bool = True) -> str:
    """The long table: a row a number, ours of every run, then the paper's as it prints them, in fractions too."""
    import pandas as pd

    ours = frame(results)
    ours.insert(0, "source", "measured")
    datasets = set(ours["dataset"])
    rows = [
        {
            "source": reference.paper()["cite"],
            "title": one.method,
            "dataset": one.dataset,
            "loss": one.loss,
            "metric": one.metric,
            "value": one.value if one.metric == PARAMETERS else one.value / 100,
        }
        for one in reference.published()
        if published and one.dataset in datasets and one.value is not None and one.table != "text"
    ]
    long = pd.concat([ours, pd.DataFrame(rows)]) if rows else ours
    return long[long["metric"].isin(metrics or long["metric"])].to_csv(index=False)


def as_json(tables: Sequence[Table]) -> str:
    """Means, intervals and the paper's numbers, unrounded."""
    data = [
        {
            "table": table.kind,
            "protocol": table.protocol,
            "backbone": table.backbone,
            "caption": table.caption,
            "rows": [
                {
                    "label": row.label,
                    "section": row.section,
                    "notes": row.notes,
                    "cells": [
                        {
                            "dataset": column.dataset,
                            "column": column.name,
                            "text": cell.text,
                            "mean": cell.mean,
                            "half_width": cell.half,
                            "seeds": len(cell.values),
                            "best": cell.best,
                            "not_significantly_different": cell.level,
                            "published": float(cell.published) / 100 if cell.published else None,
                        }
                        for column, cell in zip(table.columns, row.cells, strict=True)
                    ],
                }
                for row in table.rows
            ],
        }
        for table in tables
    ]
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def extras(cell: Cell, plus_minus: str) -> tuple[str, str]:
    """The interval, and the paper's number with the difference to it."""
    half = "" if cell.half is None else f"{plus_minus}{100 * cell.half:.1f}"
    return half, f" ({cell.published}, {cell.difference:+z.1f})" if cell.difference is not None else ""


def markdown(table: Table) -> str:
    from tabulate import tabulate

    def text(cell: Cell) -> str:
        number = (
            f"**{cell.text}**" if cell.best else f"<ins>{cell.text}</ins>" if cell.level else escape_markdown(cell.text)
        )
        return number + "".join(extras(cell, " ± "))

    marks, notes = table.footnotes()
    groups = list(dict.fromkeys(column.group for column in table.columns))
    several = len(groups) > 1
    heads = [f"{column.group} {column.name}" if several else column.name for column in table.columns]
    lines = []
    for section, rows in sections(table):
        if section:
            lines.append([f"*{escape_markdown(section)}*"] + [""] * len(heads))
        for row in rows:
            label = escape_markdown(row.label) + marks[table.rows.index(row)]
            lines.append([label, *map(text, row.cells)])
    body = tabulate(
        lines,
        headers=[table.stub, *map(escape_markdown, heads)],
        tablefmt="pipe",
        disable_numparse=True,
        colalign=["left", *("left" if column.name == "values" else "right" for column in table.columns)],
    )
    about = "" if several or not groups else f"{groups[0]} · "
    title = f"### {escape_markdown(about + table.title)}"
    return "\n\n".join([title, body, *map(escape_markdown, [table.caption, *notes])]) + "\n"


def sections(table: Table) -> Iterable[tuple[str, list[Row]]]:
    """Rows by their section; baselines need no title of their own."""
    for section, rows in groupby(table.rows, key=lambda row: row.section):
        yield "" if section == "Baselines" else section, list(rows)


def latex(table: Table) -> str:
    """A booktabs table as wide as the text; it needs booktabs and graphicx."""

    def text(cell: Cell) -> str:
        number = latex_escape(cell.text)
        number = rf"\textbf{{{number}}}" if cell.best else rf"\underline{{{number}}}" if cell.level else number
        return number + extras(cell, "$\\pm$")[0]

    def below(cell: Cell) -> str:
        beside = extras(cell, "")[1].strip().replace("-", "$-$")
        return rf"{{\scriptsize {beside}}}" if beside else ""

    marks, notes = table.footnotes()
    groups = [(group, len(list(same))) for group, same in groupby(table.columns, key=lambda column: column.group)]
    wide = len(table.columns) + 1
    heads, rules, place = [], [], 2
    for group, count in groups:
        heads.append(rf"\multicolumn{{{count}}}{{c}}{{{latex_escape(group)}}}")
        rules.append(rf"\cmidrule(lr){{{place}-{place + count - 1}}}")
        place += count
    rows = []
    for number, (section, members) in enumerate(sections(table)):
        rows += [r"\midrule"] if number else []
        rows += [rf"\multicolumn{{{wide}}}{{@{{}}l}}{{\textit{{{latex_escape(section)}}}}} \\"] if section else []
        for row in members:
            mark = marks[table.rows.index(row)]
            label = latex_escape(row.label) + (rf"~\cite{{{row.key}}}" if row.key else "")
            rows.append(" & ".join([label + (f"$^{{{mark}}}$" if mark else ""), *map(text, row.cells)]) + r" \\")
            if any(cell.published for cell in row.cells):  # beside would be too wide
                rows.append(" & ".join([r"\quad{\scriptsize published, difference}", *map(below, row.cells)]) + r" \\")
    title = f"{table.kind.capitalize()}, protocol {table.protocol}" + (f", {table.backbone}" if table.backbone else "")
    caption = " ".join(latex_escape(part) for part in (f"{title}.", table.caption, *notes))
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        r"\resizebox{\textwidth}{!}{%",
        rf"\begin{{tabular}}{{@{{}}l{'r' * len(table.columns)}@{{}}}}",
        r"\toprule",
        " & ".join(["", *heads]) + r" \\",
        " ".join(rules),
        " & ".join([table.stub, *(latex_escape(column.name) for column in table.columns)]) + r" \\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}}",
        rf"\caption{{{caption}}}",
        rf"\label{{tab:{''.join(c if c.isalnum() else '-' for c in table.slug)}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def document(body: str) -> str:
    """A LaTeX document of its own: pdflatex, bibtex, pdflatex twice."""
    cited = [r"\bibliographystyle{plain}", r"\bibliography{references}"] if r"\cite{" in body else []
    wide = body.count(r"\cmidrule") > 1 and body.count("\n") < 45  # a long table needs the height
    geometry = "[margin=2cm,landscape]{geometry}" if wide else "[margin=2cm]{geometry}"
    packages = ["[utf8]{inputenc}", "[T1]{fontenc}", "{booktabs}", "{graphicx}", geometry]
    lines = [
        r"\documentclass{article}",
        *(rf"\usepackage{package}" for package in packages),
        r"\sloppy",
        r"\begin{document}",
        body.rstrip(),
        *cited,
        r"\end{document}",
    ]
    return "\n".join(lines) + "\n"


def html(table: Table) -> str:
    """A table element, and what is said of it."""
    return html_table(table) + html_notes(table)


def html_table(table: Table) -> str:
    """`data-value` is what a column is sorted by; cells of class `words` hold text that may be broken into lines."""

    def cell(one: Cell) -> str:
        text = escaping.escape(one.text)
        text = f"<b>{text}</b>" if one.best else f"<u>{text}</u>" if one.level else text
        half, beside = extras(one, " ± ")
        number = sort_value(one)
        kind = f' data-value="{number:.9g}"' if number is not None else ' class="words"' if words(one) else ""
        return f"<td{kind}>{text}{half}{f'<small>{escaping.escape(beside)}</small>' if beside else ''}</td>"

    marks, _ = table.footnotes()
    groups = [(group, len(list(same))) for group, same in groupby(table.columns, key=lambda column: column.group)]
    heads = "".join(f'<th scope="colgroup" colspan="{count}">{escaping.escape(group)}</th>' for group, count in groups)
    wordy = [any(words(row.cells[place]) for row in table.rows) for place in range(len(table.columns))]
    names = f'<th scope="col">{table.stub}</th>' + "".join(
        f'<th scope="col" class="{"words" if text else "number"}">{escaping.escape(column.name)}</th>'
        for column, text in zip(table.columns, wordy, strict=True)
    )
    rows = "\n".join(
        f'<tr><th scope="row">{escaping.escape(row.label + mark)}'
        + (f"<small> {escaping.escape(row.section)}</small>" if row.section else "")
        + f"</th>{''.join(map(cell, row.cells))}</tr>"
        for row, mark in zip(table.rows, marks, strict=True)
    )
    return (
        f"<table>\n<caption>{escaping.escape(table.title)}</caption>\n<thead>\n<tr><td></td>{heads}</tr>\n"
        f'<tr class="names">{names}</tr>\n</thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n'
    )


def html_notes(table: Table) -> str:
    """The caption and the footnotes, a paragraph each."""
    _, notes = table.footnotes()
    return "".join(f"<p>{escaping.escape(text)}</p>\n" for text in (table.caption, *notes))


def sort_value(cell: Cell) -> float | None:
    """The number a cell's text begins with, unrounded where it is a mean: 65.5, 7,056,356, 2.5 CPU-hours."""
    if cell.mean is not None:
        return 100 * cell.mean
    found = re.match(r"(?:under )?(\d[\d,]*(?:\.\d+)?)", cell.text)
    return float(found[1].replace(",", "")) if found else None


def words(cell: Cell) -> bool:
    return sort_value(cell) is None and cell.text != "-"


def escape_markdown(text: str) -> str:
    """An underscore inside a word needs no escape, and a name is easier to read without."""
    return re.sub(r"[\\`*{}\[\]<>|#]|(?<!\w)_|_(?!\w)", r"\\\g<0>", text.replace("\n", " "))


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    **{c: f"{{{c}}}" for c in "[]"},  # behind \\\\ they would be an option
    **{"±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$", "≤": r"$\leq$", "≥": r"$\geq$"},
}
KNOWN = {chr(n) for n in (*range(0x20, 0x7F), *range(0xC0, 0x180)) if n not in (0xD7, 0xF7)}


def latex_escape(text: str) -> str:
    """What pdflatex's fonts have not is told by its number: a name in another script still compiles."""
    return "".join(
        _LATEX.get(c) or (c if c in KNOWN else rf"\texttt{{U+{ord(c):04X}}}") for c in text.replace("\n", " ")
    )
