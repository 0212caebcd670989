"""`harness show`: one stored record."""

import json

from harness import commands, config
from harness.analysis import reproduction
from harness.cli.app import RESULTS, IdArgument, ResultsOption, app, read_result
from harness.store import Store


@app.command(epilog="Example: harness show 1f2e3d")
def show(id: IdArgument, results: ResultsOption = RESULTS) -> None:
    """Print a stored record, the command that makes it again, and what may keep it from the same numbers here."""
    store = Store(results)
    result = read_result(store, id)
    print(json.dumps(result.to_json(), indent=2, ensure_ascii=False))
    protocol = config.find_protocol(result.trial.protocol)
    if protocol is None:
        print(f"\nIts protocol {result.trial.protocol} is no longer in configs/protocols, so no command reproduces it.")
        return
    print(f"\nReproduce with:\n  {commands.command(result, protocol)}")
    members = [store.get(result.trial, member) for member in result.members]
    caveats = reproduction.caveats(result, [member for member in members if member])
    if caveats:
        print("\nThe numbers may differ:\n" + "\n".join(f"  {caveat}" for caveat in caveats))
