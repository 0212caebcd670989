"""`harness show`: one stored record."""

import json

from harness import commands, config
from harness.cli.app import RESULTS, IdArgument, ResultsOption, app, read_result
from harness.store import Store


@app.command(epilog="Example: harness show 1f2e3d")
def show(id: IdArgument, results: ResultsOption = RESULTS) -> None:
    """Print one record, and the exact command that reproduces it."""
    result = read_result(Store(results), id)
    print(json.dumps(result.to_json(), indent=2, ensure_ascii=False))
    print(f"\nReproduce with:\n  {commands.command(result, config.protocol(result.trial.protocol))}")
