"""The command line: parses, calls, prints. Whatever needs torch is imported inside the command that needs it."""

import errno
import sys
from importlib import import_module
from typing import Annotated, NoReturn

import typer
from typer.exceptions import TyperException

import harness
from harness.cli import signals
from harness.cli.app import app
from harness.cli.mistakes import explain
from harness.cli.output import say
from harness.spec import UserError, shortened

# What keeps a path that was given from being looked at; any other error of a file is a bug of ours.
OF_THE_SYSTEM = (
    errno.EACCES,
    errno.EPERM,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EIO,
    errno.ESTALE,
    errno.EMFILE,
    errno.ENFILE,
)
# The files of the commands, in the order of --help. Importing one registers its command.
COMMANDS = (
    "run",
    "status",
    "tables",
    "compare",
    "figures",
    "report",
    "ls",
    "show",
    "rm",
    "gc",
    "import_",
    "eval",
    "embed",
    "init_loss",
    "check_loss",
    "data",
    "weights",
)
for name in COMMANDS:
    import_module(f"harness.cli.{name}")


def main() -> NoReturn:
    """Run the command. What a signal ends has the signal's exit code, whatever the command made of it."""
    signals.message = ""
    try:
        code = typer.main.get_command(app)(prog_name="harness", standalone_mode=False)
        sys.stdout.flush()
    except BaseException as error:
        code = 0 if signals.received else complain(error)
    if signals.received:
        signals.leave()
    sys.exit(code or 0)


def complain(error: BaseException) -> int:
    """The exit code of an error: a mistake of the user's is one line and 2. What is unexpected is raised again."""
    if isinstance(error, BrokenPipeError):  # `harness tables | head`
        return 1
    if isinstance(error, OSError) and error.errno in OF_THE_SYSTEM and error.filename:
        error = UserError(f"{shortened(error.filename)}: {error.strerror}")
    if not isinstance(error, UserError | TyperException):
        raise error
    say(f"harness: {explain(error) if isinstance(error, TyperException) else error}", error=True)
    return 2


@app.callback(invoke_without_command=True)
def top(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        say(f"harness {harness.__version__}")
        raise typer.Exit
