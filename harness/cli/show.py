"""`harness show`: one stored record."""

import json

from harness import commands, config
from harness.cli.app import RESULTS, IdArgument, ResultsOption, app, read_result
from harness.store import Store


@app.command(epilog="Example: harness show 1f2e3d")
def show(id: IdArgument, results: ResultsOption = RESULTS) -> None:
    """Print a stored record and the command that makes it again."""
    result = read_result(Store(results), id)
    print(json.dumps(result.to_json(), indent=2, ensure_ascii=False))
    protocol = config.find_protocol(result.trial.protocol)
    if protocol:
        print(f"\nReproduce with:\n  {commands.command(result, protocol)}")
    else:
        print(f"\nIts protocol {result.trial.protocol} is no longer in configs/protocols, so no command reproduces it.")
