"""Tables of results on standard output: drawn on a terminal, Markdown anywhere else."""

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

        from harness.tables.render.terminal import terminal

        console = Console(highlight=False)
        for table in tables:
            console.print(terminal(table, console.width, full))
    else:
        from harness.tables.render.formats import render

        say("\n".join(render(tables, "markdown").values()), end="")
