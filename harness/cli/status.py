"""`harness status`: what is done, running and failed."""

import time
from typing import Annotated

import typer

from harness.cli.app import RESULTS, ResultsOption, StorageOption, app, storage_of
from harness.store import Store


@app.command(epilog="Example: harness status --watch")
def status(
    watch: Annotated[bool, typer.Option("--watch", help="Again every 2 seconds, until Ctrl-C.")] = False,
    storage: StorageOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Tell from another terminal what is done, running and failed; also when Ray is gone."""
    from harness.execution import status

    where = Store(results.absolute())
    files = storage_of(storage, where)
    try:
        while watch:
            print("\x1b[2J\x1b[H" + status.describe(where, files), flush=True)
            time.sleep(2)
    except KeyboardInterrupt:
        return
    print(status.describe(where, files))
