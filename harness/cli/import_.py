"""`harness import`: merge another results folder into this one."""

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.app import RESULTS, ResultsOption, app, exit_on_problems
from harness.spec import UserError
from harness.store import Store


@app.command("import", epilog="Example: harness import ../other-machine/results")
def import_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The results folder to read.")],
    results: ResultsOption = RESULTS,
) -> None:
    """Copy the results of another machine into this folder; what is stored here already stays."""
    if not (folder / "runs").is_dir():
        raise UserError(f"{folder} is not a results folder: it has no runs/")
    theirs, problems = Store(folder).results()
    ours = Store(results)
    ours.prepare()
    new = sum(ours.put(result) for result in theirs)
    print(f"{new} imported, {len(theirs) - new} already here")
    exit_on_problems(problems)
