"""The application the commands register with, and the options and helpers that several of them share."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness import store
from harness.spec import Result, UserError
from harness.store import Store

if TYPE_CHECKING:
    from harness.storage import Storage

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Compare metric-learning losses: train them alike, choose on validation classes, report on test classes.",
    epilog="Example: harness run --losses group,triplet --dataset emoji",
)

ResultsOption = Annotated[
    Path, typer.Option("--results", envvar="HARNESS_RESULTS", metavar="DIR", help="The folder results are stored in.")
]
RESULTS = Path("results")


StorageOption = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="DIR|URI",
        help="For checkpoints and embeddings; every node must see it. Default: artifacts/ in --results.",
    ),
]


DataRootOption = Annotated[
    Path,
    typer.Option(
        "--data-root", envvar="HARNESS_DATA", metavar="DIR", help="The folder datasets lie in; each has one of its own."
    ),
]
DATA_ROOT = Path("data")

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="An id, or its beginning.")]


def storage_of(uri: str | None, where: Store) -> "Storage":
    from harness.storage import Storage

    if uri is None:
        return Storage(str(where.artifacts.absolute()))
    return Storage(uri if "://" in uri else str(Path(uri).absolute()))


def read_result(where: Store, id: str) -> Result:
    file = where.find(id)
    try:
        return store.read(file)
    except ValueError as error:
        raise UserError(f"{file}: {error}") from None


def report(problems: Iterable[str]) -> None:
    """Name files that are not results; exit code 1 if there are any."""
    problems = list(problems)
    for problem in problems:
        print(f"harness: {problem}", file=sys.stderr)
    if problems:
        raise typer.Exit(1)
