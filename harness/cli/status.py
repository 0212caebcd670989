"""`harness status`: what runs at work have done and have still to do, and what is stored."""

import shutil
import sys
import textwrap
import time
from typing import Annotated

import typer

from harness.cli.app import RESULTS, RUNNING, ResultsOption, StorageOption, app, exit_on_problems, storage_of
from harness.cli.output import say, say_afresh
from harness.spec import UserError
from harness.store import Store


@app.command(epilog="Example: harness status --watch", rich_help_panel=RUNNING)
def status(
    watch: Annotated[
        bool, typer.Option("--watch", help="Draw it again every 2 seconds, until no run is at work.")
    ] = False,
    storage: StorageOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Show how far runs are, and what is stored, by dataset. Works from another terminal, and without Ray."""
    from harness.execution.status import describe, is_at_work

    if not results.is_dir():
        raise UserError(f"--results {results}: no such folder; `harness run` makes it")
    store = Store(results.absolute())
    files = storage_of(storage, store)
    try:
        while watch and is_at_work(files):
            say_afresh(fitted(describe(store, files)[0]))
            time.sleep(2)
    except KeyboardInterrupt:
        return
    text, problems = describe(store, files)
    say(fitted(text))
    exit_on_problems(problems)


def fitted(text: str) -> str:
    """On a terminal, lines that fit it; a command stays whole, to be copied."""
    if not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size().columns
    lines: list[str] = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        whole = len(line) <= width or "harness run" in line
        lines += [line] if whole else textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join(lines)
