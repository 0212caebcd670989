"""`harness rm`: remove stored results."""

from typing import Annotated

import typer

from harness.cli.app import RESULTS, ResultsOption, app
from harness.store import Store


@app.command(epilog="Example: harness rm 1f2e3d")
def rm(ids: Annotated[list[str], typer.Argument(metavar="ID...")], results: ResultsOption = RESULTS) -> None:
    """Remove stored results; the next run makes them again."""
    where = Store(results)
    for file in [where.find(id) for id in ids]:
        where.remove(file)
        print(f"removed {file}")
