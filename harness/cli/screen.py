"""Tables of results on standard output: drawn on a terminal, Markdown anywhere else."""

import re
import shutil
import sys
from collections.abc import Sequence

from harness.cli.output import say
from harness.tables.layout import Table


def on_terminal() -> bool:
    """Whether somebody looks at standard output."""
    return sys.stdout.isatty()


def show(tables: Sequence[Table], full: str = "") -> None:
    """`full`: the command that prints the full captions, which a terminal is spared."""
    if on_terminal():
        from rich.console import Console

        from harness.tables.render.terminal import terminal, text

        console = Console(highlight=False)
        for table in tables:
            console.print(terminal(table, console.width))
            for line in [*last_line(full).splitlines(), ""] if full else []:
                console.print(text(line), soft_wrap=True)  # a long path stays whole
    else:
        from harness.tables.render.formats import render

        say("\n".join(render(tables, "markdown").values()), end="")


def last_line(command: str) -> str:
    """Names the command that prints the full captions."""
    line = f"Budgets and all details: {command}"
    fits = len(line) <= shutil.get_terminal_size().columns
    return line if fits else f"Budgets and all details:\n  {in_lines(command)}"


def in_lines(command: str) -> str:
    """On a terminal a long command is broken between options, so that it can be copied; elsewhere it is one line."""
    if not on_terminal():
        return command
    widest = shutil.get_terminal_size().columns - len("  ") - len(" \\")
    lines = [""]
    for word in options(command, widest - len("   ")):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > widest:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n  ".join(lines)


def options(command: str, widest: int) -> list[str]:
    """The words of a command, an option with its value if both fit a line."""
    words: list[str] = []
    for word in re.findall(r"""(?:'[^']*'|"[^"]*"|\S)+""", command):
        pair = f"{words[-1]} {word}" if words else word
        if words and re.fullmatch(r"--[\w-]+", words[-1]) and not word.startswith("-") and len(pair) < widest:
            words[-1] = pair
        else:
            words.append(word)
    return words
