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


def print_rows(rows: Sequence[Row], headers: Sequence[str], below: str = "", aside: Sequence[str] = ()) -> None:
    """A line per row. On a terminal that is too narrow the column `below` stands under each row, before it as many of
    `aside` as must, and the widest columns are wrapped; elsewhere nothing is."""
    room = shutil.get_terminal_size().columns
    moved: list[str] = []
    cramped = sys.stdout.isatty() and not fits(rows, headers)
    if cramped:
        headers = [header for header in headers if header != below]
        for name in aside if below else ():
            if name in headers and not fits(rows, headers):
                headers.remove(name)
                moved.append(name)
    cells = [[str(row[header]) for header in headers] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    if cramped:
        widths = narrowed(widths, room, [longest_word(column) for column in zip(headers, *cells, strict=True)])
    notes = [note(row, moved, below) if cramped and below else "" for row in rows]
    lines = [list(headers), ["-" * width for width in widths], *cells]
    for line, text in zip(lines, ("", "", *notes), strict=True):
        parts = [textwrap.wrap(cell, width) for cell, width in zip(line, widths, strict=True)]
        for words in zip_longest(*parts, fillvalue=""):
            say(GAP.join(f"{word:{width}}" for word, width in zip(words, widths, strict=True)).rstrip())
        for part in textwrap.wrap(text, room - len(INDENT), break_on_hyphens=False):
            say(INDENT + part)


def note(row: Row, moved: Sequence[str], below: str) -> str:
    """What stands under a row: photos, cpu, resnet50: lr=0.001."""
    names = ", ".join(str(row[name]) for name in moved if row[name])
    return ": ".join(part for part in (names, str(row[below])) if part)


def fits(rows: Sequence[Row], headers: Sequence[str]) -> bool:
    """Whether a table needs no wrapping."""
    widths = [max(len(str(row[header])) for row in ({header: header}, *rows)) for header in headers]
    return sum(widths) + len(GAP) * (len(widths) - 1) <= shutil.get_terminal_size().columns


def longest_word(cells: Sequence[str]) -> int:
    return max(len(word) for cell in cells for word in (cell.split() or [""]))


def narrowed(widths: list[int], room: int, words: Sequence[int]) -> list[int]:
    """The widths with the widest columns as narrow as they must be. Words are cut only where nothing else helps."""
    widths = list(widths)
    for least in (words, [NARROWEST] * len(widths)):
        while sum(widths) + len(GAP) * (len(widths) - 1) > room:
            place = max(range(len(widths)), key=lambda column: (widths[column] > least[column], widths[column]))
            if widths[place] <= least[place]:
                break
            widths[place] -= 1
    return widths
