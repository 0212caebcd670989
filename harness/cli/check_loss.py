"""`harness check-loss`: the contract that every loss keeps, checked on any loss."""

from typing import Annotated

import typer

from harness import config
from harness.cli.app import INPUTS, app
from harness.cli.output import say
from harness.commands import written
from harness.spec import first_line


@app.command("check-loss", epilog="Example: harness check-loss ./mine.py:MyLoss", rich_help_panel=INPUTS)
def check_loss(
    name: Annotated[
        str, typer.Argument(metavar="LOSS", help="A loss as `harness run --losses` takes it, e.g. ./mine.py:MyLoss.")
    ],
) -> None:
    """Check that a loss keeps the contract of all losses. The exit code is 1 if a check fails."""
    spec = config.loss(name)
    import losses
    from losses import torch_state
    from losses.contract import CHECKS
    from losses.small import make

    loss = losses.get(spec.name, spec.sources)
    try:
        with torch_state.usual(threads=1):
            make(loss)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        say(f"FAILED  it can be created: {described(error)}\nNothing else can be checked.")
        raise typer.Exit(1) from None
    failed = 0
    for promise, check in CHECKS.items():
        try:
            with torch_state.usual(threads=1):  # tiny tensors
                check(loss)
            say(f"ok      {promise}")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # any exception is a broken promise
            failed += 1
            say(f"FAILED  {promise}: {described(error)}")
    if loss.exact:
        knobs = ", ".join(f"{knob}={written(value)}" for knob, value in loss.exact.items())
        say(f"The gradient was checked with {knobs}: otherwise, by design, it is not that of the value.")
    if failed:
        say(f"{spec.name} breaks {failed} of {len(CHECKS)} promises")
        raise typer.Exit(1)
    say(f"{spec.name} keeps all {len(CHECKS)} promises")


def described(error: BaseException) -> str:
    """An error in one line, without the matrices that torch prints."""
    return first_line(error).removeprefix("AssertionError: ").partition("tensor(")[0][:200]
