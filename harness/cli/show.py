"""`harness show`: a stored record, a failed trial, or what there is to know about a loss, a protocol or a dataset."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

import losses
from harness import commands, config, pages, sources
from harness.analysis import reproduction
from harness.cli import completion
from harness.cli.app import LOOKING, RESULTS, ResultsOption, app, exit_on_problems, option_of, read_result
from harness.cli.output import say, say_words
from harness.cli.page import print_page
from harness.cli.screen import in_lines
from harness.files import write_whole, writing
from harness.spec import ExperimentRecord, Result, Role, UserError, unknown
from harness.store import LARGEST, Store, read_bytes

ROLE_WORDS: Mapping[Role, str] = {
    "search": "a search trial",
    "grid": "a trial of a grid",
    "final": "a final run",
    "baseline": "a baseline",
}


@app.command(epilog="Example: harness show 1f2e3d", rich_help_panel=LOOKING)
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="ID|NAME",
            autocompletion=completion.ids_and_names,
            help="The id of a stored result or a failed trial, or its first digits; or the name of a loss, a protocol "
            "or a dataset, e.g. group, ./mine.py:MyLoss, paper, cub.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print a record as it is stored, and nothing else.")] = False,
    source: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the files of a loss of your own into this folder, as they were."),
    ] = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Print a stored record, or what there is to know about a loss, a protocol or a dataset. Below a record stand the
    command that makes it again, what may keep the numbers from being the same, and its experiments."""
    store, page = Store(results), page_about(name)
    if page is not None and source:
        raise UserError(f"--source {source}: needs the id of a stored result of a loss of your own, not {name}")
    if page is not None and not (as_json and store.has(name)):
        if as_json:
            raise UserError(f"--json: must be with the id of a stored result or a failed trial, not with {name}")
        print_page(page)
        return
    if not store.has(name):
        show_failure(find_failure(name, store), store, as_json=as_json)
        return
    result = read_result(store, name)
    written = write_source(result, store, source) if source else []
    say(json.dumps(result.to_json(), indent=2, ensure_ascii=False))
    if as_json:
        return
    if written:
        say(f"\nWrote {', '.join(map(str, written))}.")
    say_how_to_reproduce(result, store, source or Path("."))
    experiments, problems = store.experiments()
    for paragraph in belongs_to(result, experiments):
        say(f"\n{paragraph}")
    exit_on_problems(problems)


def page_about(name: str) -> Iterator[pages.Part] | None:
    """The page about a loss, a protocol or a dataset; None for any other name."""
    if ".py:" in name or name.startswith("pml:") or name.replace("-", "_") in losses.names():
        return pages.of_loss(config.loss(name))
    if name in config.names("protocols"):
        return pages.of_protocol(config.protocol(name))
    if name in config.names("datasets"):
        return pages.of_dataset(config.dataset(name))
    return None


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


def find_failure(name: str, store: Store) -> Path:
    """The record of the one failed trial whose id begins so; a UserError with what there is instead."""
    failed = store.find_failure(name)
    if failed:
        return failed
    known = [*losses.names(), *config.names("protocols"), *config.names("datasets")]
    known += [file.stem for file in (*store.files(), *store.failures())]
    see = f"harness ls runs{option_of(store.root)}"
    raise unknown(f"loss, protocol, dataset, or result in {store.root}", name, known, see=see)


def show_failure(file: Path, store: Store, *, as_json: bool) -> None:
    """A failed trial: what it was, its traceback as lines, and where its worker's log is."""
    try:
        record = store.read_failure(file)
    except ValueError as error:
        raise UserError(f"{file}: {error}") from None
    if as_json:
        say(json.dumps(record, indent=2, ensure_ascii=False))
        return
    say(f"{record['name']}  failed: {record['error']}")
    if record.get("traceback"):
        say(f"\n{str(record['traceback']).rstrip()}")
    if record["log"]:
        say(f"\nThe log of its worker: {record['log']}")
    say(f"\nIts record: {file}\nThe next run that needs this trial tries it again.")


def say_how_to_reproduce(result: Result, store: Store, folder: Path) -> None:
    say()
    if result.trial.is_pretraining:
        say_words("Other trials start from it. The next run that needs it makes it again if it is removed.")
        return
    protocol = config.find_protocol(result.trial.protocol)
    if protocol is None:
        gone = f"Its protocol {result.trial.protocol} is no longer in configs/protocols"
        say_words(f"{gone}, so no command reproduces it.")
        return
    say(f"Reproduce with:\n  {in_lines(commands.command(result, protocol, str(folder)))}")
    if not result.recipe:
        say_words("In this folder it is stored: add another --results, or --rerun to replace it.")
    caveats = reproduction.caveats(result, store, folder)
    if caveats:
        say("\nThe numbers may differ:")
    for caveat in caveats:
        say_words(f"  {caveat}")


def belongs_to(result: Result, experiments: Iterable[ExperimentRecord]) -> Iterator[str]:
    """What the result, or the members of an ensemble, are for in each experiment."""
    ids = result.members or (result.id,)
    for experiment in experiments:
        roles = sorted({ROLE_WORDS[role] for id in ids for role in experiment.roles(id)})
        if roles:
            made = f"Made as {', '.join(roles)} in experiment {experiment.id} ({experiment.made})"
            yield f"{made}:\n  {in_lines(experiment.command)}"
