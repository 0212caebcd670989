"""`harness show`: one stored record."""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from harness import commands, config, sources
from harness.analysis import reproduction
from harness.cli.app import LOOKING, RESULTS, IdArgument, ResultsOption, app, exit_on_problems, read_result
from harness.cli.output import say
from harness.files import write_whole, writing
from harness.spec import ExperimentRecord, Result, UserError
from harness.store import LARGEST, Store, read_bytes


@app.command(epilog="Example: harness show 1f2e3d", rich_help_panel=LOOKING)
def show(
    id: IdArgument,
    source: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the files of a loss of your own into this folder, as they were."),
    ] = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Print a stored record and the command that makes it again. Also says what may keep the numbers from being the
    same, and which experiments it belongs to."""
    store = Store(results)
    result = read_result(store, id)
    written = write_source(result, store, source) if source else []
    say(json.dumps(result.to_json(), indent=2, ensure_ascii=False))
    if written:
        say(f"\nWrote {', '.join(map(str, written))}.")
    for paragraph in how_to_reproduce(result, store, source or Path(".")):
        say(f"\n{paragraph}")
    experiments, problems = store.experiments()
    for paragraph in belongs_to(result, experiments):
        say(f"\n{paragraph}")
    exit_on_problems(problems)


def write_source(result: Result, store: Store, folder: Path) -> list[Path]:
    """Write the files of a user's own loss, as they were when the result was made. What is there already stays."""
    texts = sources.get(store, result)
    if not result.sources:
        raise UserError(f"--source {folder}: no source is stored with {result.id}, whose loss is {result.trial.loss}")
    for path in result.sources:
        if path not in texts:
            raise UserError(f"--source {folder}: {path} of {result.id} is not stored in {store.root}, or is damaged")
    for path, text in texts.items():
        if (folder / path).exists() and content_of(folder / path) != text.encode():
            raise UserError(f"--source {folder}: {folder / path} is another version; name another folder")
    for path, text in texts.items():
        with writing(folder / path):
            write_whole(folder / path, text.encode())
    return [folder / path for path in texts]


def content_of(file: Path) -> bytes | None:
    with suppress(ValueError):
        return read_bytes(file, LARGEST)
    return None


def how_to_reproduce(result: Result, store: Store, folder: Path) -> Iterator[str]:
    protocol = config.find_protocol(result.trial.protocol)
    if protocol is None:
        yield f"Its protocol {result.trial.protocol} is no longer in configs/protocols, so no command reproduces it."
        return
    yield f"Reproduce with:\n  {commands.command(result, protocol, str(folder))}"
    caveats = reproduction.caveats(result, store, folder)
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
