"""The application that commands register with, and the options and helpers that several of them share."""

import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli import completion
from harness.cli.help import Application
from harness.cli.output import say
from harness.spec import Result, UserError
from harness.store import Store

if TYPE_CHECKING:
    from harness.storage import Storage


app = Application(
    help="Compare metric-learning losses: train them alike, choose on validation classes, report on test classes.",
    epilog="Example: harness run --losses group,triplet --dataset emoji",
)

# The headings of `harness --help`.
RUNNING = "Run"
LOOKING = "Look at results"
STORED = "Work with stored runs"
INPUTS = "Losses, data and weights"


def results_option(heading: str | None = None) -> Any:
    return typer.Option(
        "--results",
        envvar="HARNESS_RESULTS",
        metavar="DIR",
        rich_help_panel=heading,
        help="The folder of results.",
    )


def data_root_option(heading: str | None = None) -> Any:
    return typer.Option(
        "--data-root",
        envvar="HARNESS_DATA",
        metavar="DIR",
        rich_help_panel=heading,
        help="Look for datasets in this folder, in one subfolder each.",
    )


ResultsOption = Annotated[Path, results_option()]
RESULTS = Path("results")
FILE_SUFFIXES = (".md", ".tex", ".html", ".json", ".csv", ".txt", ".png", ".pdf", ".svg")
DataRootOption = Annotated[Path, data_root_option()]
DATA_ROOT = Path("data")

StorageOption = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="DIR|URI",
        help="Use this folder or URI for checkpoints, embeddings and weights, e.g. s3://bucket/runs. "
        "Default: artifacts/ in --results.",
    ),
]

DatasetOption = Annotated[
    str | None,
    typer.Option(
        "--dataset", metavar="NAME", autocompletion=completion.datasets, help="Use only results of this dataset."
    ),
]
ProtocolOption = Annotated[
    str | None,
    typer.Option(
        "--protocol", metavar="NAME", autocompletion=completion.protocols, help="Use only results of this protocol."
    ),
]
BackboneOption = Annotated[
    str | None, typer.Option("--backbone", metavar="NAME", help="Use only results of this backbone.")
]

IdArgument = Annotated[
    str,
    typer.Argument(metavar="ID", autocompletion=completion.ids, help="The id of a stored result, or its first digits."),
]
IdsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="ID...", autocompletion=completion.ids, help="Ids of stored results, or their first digits."
    ),
]


def check_folder(out: Path) -> None:
    """A UserError if --out, which wants a folder, names a file: one that exists, or one by its ending."""
    file = not out.is_dir() and (out.exists() or out.suffix in FILE_SUFFIXES)
    if file:
        folder = out.with_suffix("") if out.suffix else out.with_name(f"{out.name}-folder")
        raise UserError(f"--out {out}: is a file; must be a folder, e.g. --out {folder}")


def option_of(results: Path) -> str:
    """What has to be added to a command so that it reads this folder of results."""
    usual = os.environ.get("HARNESS_RESULTS", str(RESULTS))
    return "" if results.absolute() == Path(usual).absolute() else f" --results {shlex.quote(str(results))}"


def given(context: typer.Context) -> str:
    """The options that were typed, each with a blank behind it, to be typed again."""
    words = []
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source is not None and source.name == "COMMANDLINE":
            value = context.params[option.name or ""]
            for single in value if isinstance(value, list | tuple) else [value]:
                words += [option.opts[0], shlex.quote(str(single))]
    return "".join(f"{word} " for word in words)


def storage_of(uri: str | None, store: Store) -> "Storage":
    """The storage that --storage names; by default artifacts/ in the results folder."""
    from harness.storage import open_storage

    return open_storage(uri, store.artifacts)


def read_result(store: Store, id: str) -> Result:
    """The stored result whose id begins with `id`; a UserError if its file cannot be read."""
    file = store.find(id)
    try:
        return store.read(file)
    except ValueError as error:
        raise UserError(f"{file}: {error}") from None


def require(selected: Sequence[object], problems: Iterable[str], lack: str) -> None:
    """If nothing is selected: print the problems and exit with code 1, or, without problems, raise a UserError."""
    if not selected:
        exit_on_problems(problems)
        raise UserError(lack)


def exit_on_problems(problems: Iterable[str]) -> None:
    """Print the problems; exit with code 1 if there are any."""
    problems = list(problems)
    for problem in problems:
        say(f"harness: {problem}", error=True)
    if problems:
        raise typer.Exit(1)
