"""`harness show`: one stored record."""

import json

from harness import commands, config
from harness.cli.app import RESULTS, IdArgument, ResultsOption, app, read_result
from harness.store import Store


@app.command(epilog="Example: harness show 1f2e3d")
def show(id: IdArgument, results: ResultsOption = RESULTS) -> None:
    """Print a stored record, and the exact command that reproduces it."""
    result = read_result(Store(results), id)
    print(json.dumps(result.to_json(), indent=2, ensure_ascii=False))
    protocol = result.trial.protocol
    if protocol in config.names("protocols"):
        print(f"\nReproduce with:\n  {commands.command(result, config.protocol(protocol))}")
    else:
        print(f"\nIts protocol {protocol} is not in configs/protocols any more, so no command makes it.")
