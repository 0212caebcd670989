"""`harness check-loss`: the contract of losses, on anybody's."""

from typing import Annotated

import typer

from harness import config
from harness.cli.app import app


@app.command("check-loss", epilog="Example: harness check-loss ./mine.py:MyLoss")
def check_loss(
    name: Annotated[str, typer.Argument(metavar="LOSS", help="As --losses of run takes it.")],
) -> None:
    """Run the checks that every loss of this package passes; exit 1 if one fails."""
    spec = config.loss(name)
    import torch

    import losses
    from losses.contract import CHECKS

    torch.set_num_threads(1)  # tiny tensors
    found = losses.get(spec.name, spec.source)
    failed = 0
    for promise, check in CHECKS.items():
        try:
            check(found)
            print(f"ok      {promise}", flush=True)
        except (Exception, SystemExit) as error:  # whatever breaks is an answer
            failed += 1
            story = " ".join(str(error).split()) or type(error).__name__
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            print(f"FAILED  {promise}: {kind}{story[:200]}", flush=True)
    if failed:
        print(f"{spec.name} breaks {failed} of {len(CHECKS)} promises")
        raise typer.Exit(1)
    print(f"{spec.name} keeps all {len(CHECKS)} promises")
