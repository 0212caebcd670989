"""`harness import`: merge another results folder into this one."""

from pathlib import Path
from typing import Annotated

import typer

from harness import sources
from harness.cli.app import RESULTS, STORED, ResultsOption, app, exit_on_problems
from harness.cli.output import say
from harness.store import Store, open_existing


@app.command("import", epilog="Example: harness import ../other-machine/results", rich_help_panel=STORED)
def import_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The results folder to read.")],
    results: ResultsOption = RESULTS,
) -> None:
    """Copy another machine's results and experiments into this folder. Results that are already stored here stay."""
    source = open_existing(folder)
    theirs, problems = source.results()
    experiments, unreadable = source.experiments()
    ours = Store(results)
    ours.prepare()
    new = 0
    for result in theirs:
        sources.put(ours, sources.get(source, result).values())
        try:
            new += ours.put(source.with_values(result))
        except ValueError as error:
            new += ours.put(result)
            problems.append(f"{folder}/{error}; {result.id} was imported without it")
    for experiment in experiments:
        ours.put_experiment(experiment)
    say(f"{new} imported, {len(theirs) - new} already here")
    exit_on_problems([*problems, *unreadable])
