"""`harness gc`: remove embeddings, weights and checkpoints that no record refers to."""

import sys
from typing import Annotated

import typer

from harness.cli.app import RESULTS, STORED, ResultsOption, StorageOption, app, exit_on_problems, storage_of
from harness.cli.output import say
from harness.spec import UserError
from harness.store import open_existing


@app.command(epilog="Example: harness gc --yes", rich_help_panel=STORED)
def gc(
    yes: Annotated[bool, typer.Option("--yes", help="Remove them without asking.")] = False,
    storage: StorageOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """List embeddings, weights and checkpoints that no record refers to, and remove them. Asks before it does."""
    from harness.execution import announcement, leftovers

    store = open_existing(results.absolute())
    files = storage_of(storage, store)
    stored, problems = store.results()
    exit_on_problems(problems)  # a record that cannot be read may refer to any file
    if any(plan.is_alive for plan in announcement.read(files)):
        raise UserError("a run is at work here, and the files may be its own; try again when it has ended")
    unused = leftovers.unused(files, store, stored)
    if not unused:
        say("nothing to remove: every file belongs to a record, or to a run that can go on")
        return
    for name, size in unused.items():
        say(f"{size / 1e6:10.1f} MB  {name}")
    count, total = len(unused), sum(unused.values()) / 1e6
    say(f"{total:10.1f} MB  in {count} file{'s' if count > 1 else ''} in {files.title}")
    if not yes and not agreed():
        say("nothing was removed; --yes removes them")
        return
    for name in unused:
        files.remove(name)
    say("removed")


def agreed() -> bool:
    """Whether somebody at a terminal says yes. The end of input and Ctrl-C mean no."""
    try:
        return sys.stdin.isatty() and typer.confirm("Remove them?")
    except typer.Abort:
        say()  # the question has no newline
        return False
