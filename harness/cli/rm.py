"""`harness rm`: remove stored results."""

from typing import Annotated

import typer

from harness.cli.app import RESULTS, ResultsOption, app
from harness.store import Store


@app.command(epilog="Example: harness rm 1f2e3d")
def rm(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of stored results, or their first digits.")],
    results: ResultsOption = RESULTS,
) -> None:
    """Remove stored results; the next run that needs them makes them again."""
    store = Store(results)
    for file in [store.find(id) for id in ids]:
        store.remove(file)
        print(f"removed {file}")
