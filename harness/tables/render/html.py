"""A table as an HTML element."""

import re
from collections.abc import Callable
from html import escape

from harness.tables.layout import BASELINES, Cell, Row, Table


def html(table: Table) -> str:
    """The table element, its caption and its footnotes."""
    return html_table(table) + html_notes(table)


def html_table(table: Table, links: Callable[[Row], str] = lambda row: "") -> str:
    """`data-value` is what a column is sorted by; cells of class `words` hold text that may be broken into lines.
    `links`: what follows the label of a row."""
    heads = "".join(
        f'<th scope="colgroup" colspan="{count}">{escape(group)}</th>' for group, count in table.column_groups
    )
    wordy = [any(is_words(row.cells[place]) for row in table.rows) for place in range(len(table.columns))]
    names = f'<th scope="col">{table.stub}</th>' + "".join(
        f'<th scope="col" class="{"words" if words else "number"}">{escape(column.name)}</th>'
        for column, words in zip(table.columns, wordy, strict=True)
    )
    marks, _ = table.footnotes()
    rows = "\n".join(
        f'<tr><th scope="row">{escape(row.label + mark)}'
        + (f"<small> {escape(row.section)}</small>" if row.section not in ("", BASELINES) else "")
        + links(row)
        + f"</th>{''.join(map(cell_element, row.cells))}</tr>"
        for row, mark in zip(table.rows, marks, strict=True)
    )
    return (
        f"<table>\n<caption>{escape(heading(table))}</caption>\n<thead>\n<tr><td></td>{heads}</tr>\n"
        f'<tr class="names">{names}</tr>\n</thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n'
    )


def heading(table: Table) -> str:
    words = [f"{table.kind.capitalize()}", f"protocol {table.protocol}", table.backbone]
    return ", ".join(filter(None, words))


def html_notes(table: Table) -> str:
    """The caption and the footnotes, a paragraph each."""
    _, notes = table.footnotes()
    return "".join(f"<p>{escape(text)}</p>\n" for text in (table.caption, *notes))


def cell_element(cell: Cell) -> str:
    text = escape(cell.text)
    if cell.best:
        text = f"<b>{text}</b>"
    elif cell.tied:
        text = f"<u>{text}</u>"
    if cell.interval:
        text += f" ± {cell.interval}"
    if cell.comparison:
        text += f"<small> {escape(cell.comparison)}</small>"
    number = sort_value(cell)
    if number is not None:
        return f'<td data-value="{number:.9g}">{text}</td>'
    return f'<td class="words">{text}</td>' if is_words(cell) else f"<td>{text}</td>"


def sort_value(cell: Cell) -> float | None:
    """The number a cell's text begins with, unrounded where it is a mean: 65.5, 7,056,356, 2.5 CPU-hours."""
    if cell.mean is not None:
        return 100 * cell.mean
    number = re.match(r"(?:under )?(\d[\d,]*(?:\.\d+)?)", cell.text)
    return float(number[1].replace(",", "")) if number else None


def is_words(cell: Cell) -> bool:
    return sort_value(cell) is None and cell.text != "-"
