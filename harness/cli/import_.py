"""`harness import`: merge another results folder into this one."""

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.app import RESULTS, ResultsOption, app, report
from harness.spec import UserError
from harness.store import Store


@app.command("import", epilog="Example: harness import ../other-machine/results")
def import_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Another results folder.")],
    results: ResultsOption = RESULTS,
) -> None:
    """Merge another machine's results into this store; what is here already stays."""
    other, mine = Store(folder), Store(results)
    if not (folder / "runs").is_dir():
        raise UserError(f"{folder} is not a results folder: it has no runs/")
    found, problems = other.results()
    mine.prepare()
    new = sum(mine.put(result) for result in found)
    print(f"{new} imported, {len(found) - new} already here")
    report(problems)
