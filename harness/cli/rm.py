"""`harness rm`: remove stored results."""

from contextlib import suppress

from harness import sources
from harness.cli.app import RESULTS, STORED, IdsArgument, ResultsOption, app
from harness.cli.output import say
from harness.store import Store


@app.command(epilog="Example: harness rm 1f2e3d", rich_help_panel=STORED)
def rm(
    ids: IdsArgument,
    results: ResultsOption = RESULTS,
) -> None:
    """Remove stored results. The next run that needs them makes them again."""
    store = Store(results)
    removed = []
    for file in [store.find(id) for id in ids]:
        with suppress(ValueError):  # also what cannot be read is removed
            removed.append(store.read(file))
        store.remove(file)
        say(f"removed {file}")
    sources.drop(store, removed)
