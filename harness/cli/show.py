"""`harness show`: one stored record."""

import json
from collections.abc import Iterable, Iterator

from harness import commands, config
from harness.analysis import reproduction
from harness.cli.app import LOOKING, RESULTS, IdArgument, ResultsOption, app, exit_on_problems, read_result
from harness.cli.output import say
from harness.spec import ExperimentRecord, Result
from harness.store import Store


@app.command(epilog="Example: harness show 1f2e3d", rich_help_panel=LOOKING)
def show(id: IdArgument, results: ResultsOption = RESULTS) -> None:
    """Print a stored record and the command that makes it again. Also says what may keep the numbers from being the
    same, and which experiments it belongs to."""
    store = Store(results)
    result = read_result(store, id)
    say(json.dumps(result.to_json(), indent=2, ensure_ascii=False))
    for paragraph in how_to_reproduce(result, store):
        say(f"\n{paragraph}")
    experiments, problems = store.experiments()
    for paragraph in belongs_to(result, experiments):
        say(f"\n{paragraph}")
    exit_on_problems(problems)


def how_to_reproduce(result: Result, store: Store) -> Iterator[str]:
    protocol = config.find_protocol(result.trial.protocol)
    if protocol is None:
        yield f"Its protocol {result.trial.protocol} is no longer in configs/protocols, so no command reproduces it."
        return
    yield f"Reproduce with:\n  {commands.command(result, protocol)}"
    members = [store.get(result.trial, member) for member in result.members]
    caveats = reproduction.caveats(result, [member for member in members if member])
    if caveats:
        yield "The numbers may differ:\n" + "\n".join(f"  {caveat}" for caveat in caveats)


def belongs_to(result: Result, experiments: Iterable[ExperimentRecord]) -> Iterator[str]:
    """What the result, or the members of an ensemble, are for in each experiment."""
    ids = result.members or (result.id,)
    for experiment in experiments:
        roles = sorted({role for id in ids for role in experiment.roles(id)})
        if roles:
            purpose = f"For {', '.join(roles)} in experiment {experiment.id} ({experiment.made})"
            yield f"{purpose}:\n  {experiment.command}"
