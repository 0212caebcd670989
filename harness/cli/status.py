"""`harness status`: what runs at work have done and have still to do, and what is stored."""

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
            say_afresh(describe(store, files)[0])
            time.sleep(2)
    except KeyboardInterrupt:
        return
    text, problems = describe(store, files)
    say(text)
    exit_on_problems(problems)
