"""The command line: parses, calls, prints. Whatever needs torch is imported inside the command that needs it."""

import sys
from importlib import import_module
from typing import Annotated, NoReturn

import typer
from typer.exceptions import TyperException

import harness
from harness.cli.app import app
from harness.cli.mistakes import explain
from harness.cli.output import say
from harness.spec import UserError

# The files of the commands, in the order of --help. Importing one registers its command.
COMMANDS = (
    "run",
    "status",
    "tables",
    "figures",
    "report",
    "ls",
    "show",
    "rm",
    "import_",
    "eval",
    "embed",
    "check_loss",
    "data",
)
for name in COMMANDS:
    import_module(f"harness.cli.{name}")


def main() -> NoReturn:
    """Run the command; a mistake of the user's is one line and exit code 2."""
    command = typer.main.get_command(app)
    try:
        code = command(prog_name="harness", standalone_mode=False)
    except UserError as error:
        code = complain(str(error))
    except TyperException as error:
        code = complain(explain(error))
    except BrokenPipeError:  # `harness tables | head`
        sys.stderr.close()
        code = 1
    sys.exit(code or 0)


def complain(message: str) -> int:
    say(f"harness: {message}", error=True)
    return 2


@app.callback(invoke_without_command=True)
def top(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        say(f"harness {harness.__version__}")
        raise typer.Exit
