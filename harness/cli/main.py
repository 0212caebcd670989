"""The command line: parses, calls, prints. Whatever needs torch is imported inside the command that needs it."""

import sys
from typing import Annotated, NoReturn

import typer
from typer.exceptions import TyperException

import harness

# importing them registers their commands
from harness.cli import (  # noqa: F401
    check_loss,
    data,
    embed,
    eval,
    figures,
    import_,
    ls,
    report,
    rm,
    run,
    show,
    status,
    tables,
)
from harness.cli.app import app
from harness.spec import UserError, unknown


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
    print(f"harness: {message}", file=sys.stderr)
    return 2


def explain(error: TyperException) -> str:
    """A parser's complaint in one line, with what is allowed and where help is."""
    message = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    if context is None:
        return message
    wrong_option = getattr(error, "option_name", None)  # of an option that does not exist, or lacks its value
    options = [name for parameter in context.command.params for name in parameter.opts if name.startswith("--")]
    if wrong_option is not None and wrong_option not in options:
        return str(unknown("option", wrong_option, [*options, "--help"]))
    return f"{message.rstrip('.')}. See: {context.command_path} --help"


@app.callback(invoke_without_command=True)
def top(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(f"harness {harness.__version__}")
        raise typer.Exit
