"""Tables of names on the terminal: as wide as it is, never wider."""

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from harness.cli.output import say

Row = Mapping[str, object]  # header -> value
NARROWEST = 16  # of a column that is wrapped
GAP = "  "


def print_rows(rows: Sequence[Row], headers: Sequence[str]) -> None:
    """A line per row. On a terminal that is too narrow the widest column is wrapped; elsewhere nothing is."""
    cells = [[str(row[header]) for header in headers] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    if sys.stdout.isatty():
        widths = narrowed(widths, shutil.get_terminal_size().columns)
    for line in (headers, ["-" * width for width in widths], *cells):
        parts = [textwrap.wrap(cell, width) for cell, width in zip(line, widths, strict=True)]
        for words in zip_longest(*parts, fillvalue=""):
            say(GAP.join(f"{word:{width}}" for word, width in zip(words, widths, strict=True)).rstrip())


def fits(rows: Sequence[Row]) -> bool:
    """Whether a table needs no wrapping."""
    widths = [max(len(str(row[header])) for row in ({header: header}, *rows)) for header in (rows[0] if rows else {})]
    return sum(widths) + len(GAP) * (len(widths) - 1) <= shutil.get_terminal_size().columns


def narrowed(widths: list[int], room: int) -> list[int]:
    """The widths with the widest column as narrow as it must be, and as it may be."""
    over = sum(widths) + len(GAP) * (len(widths) - 1) - room
    if over <= 0:
        return widths
    widest = widths.index(max(widths))
    return [max(width - over, NARROWEST) if column == widest else width for column, width in enumerate(widths)]
