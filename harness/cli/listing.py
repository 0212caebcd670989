"""Tables of names on the terminal: as wide as it is, never wider."""

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from harness.cli.output import say

Row = Mapping[str, object]  # header -> value
NARROWEST = 10  # of a column that is wrapped
GAP, INDENT = "  ", "    "


def print_rows(rows: Sequence[Row], headers: Sequence[str], below: str = "") -> None:
    """A line per row. On a terminal that is too narrow the column `below` stands under each row, and the widest columns
    are wrapped; elsewhere nothing is."""
    room = shutil.get_terminal_size().columns
    cramped = sys.stdout.isatty() and not fits([{header: row[header] for header in headers} for row in rows])
    if cramped:
        headers = [header for header in headers if header != below]
    cells = [[str(row[header]) for header in headers] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    if cramped:
        widths = narrowed(widths, room)
    notes = [str(row[below]) if cramped and below else "" for row in rows]
    lines = [list(headers), ["-" * width for width in widths], *cells]
    for line, note in zip(lines, ("", "", *notes), strict=True):
        parts = [textwrap.wrap(cell, width) for cell, width in zip(line, widths, strict=True)]
        for words in zip_longest(*parts, fillvalue=""):
            say(GAP.join(f"{word:{width}}" for word, width in zip(words, widths, strict=True)).rstrip())
        for text in textwrap.wrap(note, room - len(INDENT), break_on_hyphens=False):
            say(INDENT + text)


def fits(rows: Sequence[Row]) -> bool:
    """Whether a table needs no wrapping."""
    widths = [max(len(str(row[header])) for row in ({header: header}, *rows)) for header in (rows[0] if rows else {})]
    return sum(widths) + len(GAP) * (len(widths) - 1) <= shutil.get_terminal_size().columns


def narrowed(widths: list[int], room: int) -> list[int]:
    """The widths with the widest columns as narrow as they must be, and as they may be."""
    widths = list(widths)
    while sum(widths) + len(GAP) * (len(widths) - 1) > room and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return widths
