"""A table as Markdown."""

import re

from harness.tables.layout import Cell, Table


def markdown(table: Table) -> str:
    from tabulate import tabulate

    several = len(table.column_groups) > 1
    heads = [f"{column.group} {column.name}" if several else column.name for column in table.columns]
    lines = []
    for title, rows in table.sections():
        if title:
            lines.append([f"*{escape(title)}*"] + [""] * len(heads))
        for row, mark in rows:
            lines.append([escape(row.label) + mark, *map(cell_text, row.cells)])
    body = tabulate(
        lines,
        headers=[table.stub, *map(escape, heads)],
        tablefmt="pipe",
        disable_numparse=True,
        colalign=["left", *("left" if column.name == "values" else "right" for column in table.columns)],
    )
    dataset = f"{table.column_groups[0][0]} · " if len(table.column_groups) == 1 else ""
    _, notes = table.footnotes()
    return "\n\n".join([f"### {escape(dataset + table.title)}", body, *map(escape, [table.caption, *notes])]) + "\n"


def cell_text(cell: Cell) -> str:
    text = escape(cell.text)
    if cell.best:
        text = f"**{text}**"
    elif cell.tied:
        text = f"<ins>{text}</ins>"
    if cell.interval:
        text += f" ± {cell.interval}"
    return f"{text} {cell.comparison}".rstrip()


def escape(text: str) -> str:
    """An underscore inside a word needs no escape, and a name is easier to read without."""
    return re.sub(r"[\\`*{}\[\]<>|#]|(?<!\w)_|_(?!\w)", r"\\\g<0>", text.replace("\n", " "))
