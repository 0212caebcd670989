"""The application that commands register with, and the options and helpers that several of them share."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from harness import store
from harness.spec import Result, UserError, unknown
from harness.store import Store

if TYPE_CHECKING:
    from harness.storage import Storage


class Commands(TyperGroup):
    """A group of commands. Without a command, or with an unknown one, its error lists them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            raise UserError(f"name a command: {', '.join(self.commands)}. See: {ctx.command_path} --help")
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and not ctx.resilient_parsing:
            raise unknown("command", args[0], self.commands)
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Compare metric-learning losses: train them alike, choose on validation classes, report on test classes.",
    epilog="Example: harness run --losses group,triplet --dataset emoji",
)

ResultsOption = Annotated[
    Path,
    typer.Option(
        "--results", envvar="HARNESS_RESULTS", metavar="DIR", help="Folder that results are stored in and read from."
    ),
]
RESULTS = Path("results")

StorageOption = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="DIR|URI",
        help="Folder or URI for checkpoints, embeddings and weights, e.g. s3://bucket/runs. Every node must see it. "
        "Default: artifacts/ in --results.",
    ),
]

DataRootOption = Annotated[
    Path,
    typer.Option(
        "--data-root",
        envvar="HARNESS_DATA",
        metavar="DIR",
        help="Folder that contains the datasets, one subfolder each.",
    ),
]
DATA_ROOT = Path("data")

DatasetOption = Annotated[str | None, typer.Option("--dataset", metavar="NAME", help="Use only this dataset.")]
ProtocolOption = Annotated[str | None, typer.Option("--protocol", metavar="NAME", help="Use only this protocol.")]
BackboneOption = Annotated[str | None, typer.Option("--backbone", metavar="NAME", help="Use only this backbone.")]

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The id of a stored result, or its first digits.")]


def storage_of(uri: str | None, store: Store) -> "Storage":
    """The storage that --storage names; by default artifacts/ in the results folder."""
    from harness.storage import open_storage

    return open_storage(uri, store.artifacts)


def read_result(results: Store, id: str) -> Result:
    """The stored result whose id begins with `id`; a UserError if its file cannot be read."""
    file = results.find(id)
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
        print(f"harness: {problem}", file=sys.stderr)
    if problems:
        raise typer.Exit(1)
