"""A page about a loss, a protocol, a dataset or the settings, on the terminal."""

import shutil
import textwrap
from collections.abc import Iterable, Iterator

from harness.cli.listing import fits, print_rows
from harness.cli.output import say
from harness.pages import Block, Cell, Docstring, Facts, Heading, Link, Part, Table, equations

WIDEST = 100  # of sentences, whatever the terminal


def print_page(parts: Iterable[Part]) -> None:
    for number, part in enumerate(parts):
        if number:
            say()
        if isinstance(part, Table) and fits(rows_of(part), part.headers):
            print_rows(rows_of(part), part.headers)
        else:
            for line in lines(part):
                say(line)


def lines(part: Part) -> Iterator[str]:
    match part:
        case str():
            yield from wrapped(part)
        case Heading(text, level):
            yield plain(text)
            yield ("=" if level == 1 else "-") * len(plain(text))
        case Facts(values):
            for name, value in values.items():
                if value:
                    yield from wrapped(f"{name}: {plain(value)}", hanging="  ")
        case Block(language, text):
            for line in text.splitlines():
                yield from bibtex(line) if language == "bibtex" else [f"  {line}"]
        case Docstring():
            yield from paragraphs(part)
        case Table(headers, rows):
            for number, row in enumerate(rows):
                if number:
                    yield ""
                yield from entry(headers, row)


def bibtex(line: str) -> list[str]:
    """A line of an entry, broken between words: to BibTeX, a line break is a blank."""
    indent = "  " + " " * (len(line) - len(line.lstrip()))
    return wrapped(line.strip(), indent=indent, hanging=f"{indent}  ")


def paragraphs(docstring: Docstring) -> Iterator[str]:
    """Sentences are wrapped. Formulas keep their lines if these fit; else each equation is wrapped."""
    before = ""
    for kind, text in docstring.parts():
        if before and not (before == kind == "item"):
            yield ""
        before = kind
        if kind == "formula":
            own_lines = [f"  {plain(line)}" for line in text.splitlines()]
            if max(map(len, own_lines)) <= width():
                yield from own_lines
                continue
            for equation in equations(text):
                yield from wrapped(" ".join(equation.split()), indent="  ", hanging="      ")
        else:
            yield from wrapped(text, indent="- " if kind == "item" else "", hanging="  " if kind == "item" else "")


def entry(headers: Iterable[str], row: Iterable[Cell]) -> Iterator[str]:
    """A row that is too long for a line: its name, and below it the sentence about it and its other cells."""
    named = {header: plain(cell) for header, cell in zip(headers, row, strict=True)}
    yield named.pop(next(iter(named)))
    yield from wrapped(named.pop("meaning", ""), indent="    ", hanging="    ")
    rest = "; ".join(f"{header}: {cell}" for header, cell in named.items() if cell)
    yield from wrapped(rest, indent="    ", hanging="    ")


def rows_of(table: Table) -> list[dict[str, str]]:
    return [dict(zip(table.headers, map(plain, row), strict=True)) for row in table.rows]


def wrapped(text: str, indent: str = "", hanging: str = "") -> list[str]:
    return textwrap.wrap(plain(text), width(), initial_indent=indent, subsequent_indent=hanging, break_on_hyphens=False)


def width() -> int:
    return min(shutil.get_terminal_size().columns, WIDEST)


def plain(cell: Cell) -> str:
    """Without the backticks around what is typed."""
    return cell.name if isinstance(cell, Link) else cell.replace("`", "")
