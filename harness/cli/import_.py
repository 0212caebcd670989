"""`harness import`: merge another results folder into this one."""

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.app import RESULTS, STORED, ResultsOption, StorageOption, app, exit_on_problems, storage_of
from harness.cli.output import say
from harness.files import writing
from harness.spec import Result, metric_order
from harness.store import Store, open_existing


@app.command("import", epilog="Example: harness import ../other-machine/results --artifacts", rich_help_panel=STORED)
def import_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The results folder to read.")],
    artifacts: Annotated[
        bool,
        typer.Option("--artifacts", help="Copy embeddings and weights too, from artifacts/ in DIR to --storage."),
    ] = False,
    storage: StorageOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Copy another machine's results and experiments into this folder. Results that are already stored here stay; the
    command says what it did not copy."""
    from harness import merging

    source, ours = open_existing(folder.absolute()), Store(results.absolute())
    ours.prepare()
    merged = merging.merge(source, ours)
    say(f"{len(merged.new)} imported, {len(merged.known) + len(merged.different)} already here")
    for mine, theirs in merged.different:
        say(f"{mine.id} is here with other numbers, which stay: {difference(mine, theirs)}")
    problems = merged.problems
    files = storage_of(storage, ours)
    missing = merging.missing_files(merged.stored, files)
    if artifacts:
        with writing(f"to --storage {files.title}"):
            copied = merging.copy_files(missing, storage_of(None, source), files)
        say(f"embeddings and weights copied: {copied.copied}")
        say_not_copied(f"embeddings and weights that are not in {source.artifacts}", copied.missing)
        problems += copied.problems
    else:
        say_not_copied("embeddings and weights (--artifacts copies them)", len(missing))
    for kind in ("failures", "stopped"):  # no results: the next run here makes its own
        count = len(list(source.root.glob(f"{kind}/*/*/*.json")))
        say_not_copied(f"record{'s' if count > 1 else ''} in {kind}/", count)
    exit_on_problems(problems)


def say_not_copied(what: str, count: int) -> None:
    if count:
        say(f"not copied: {count} {what}")


def difference(ours: Result, theirs: Result) -> str:
    """The first metric that differs, in percent."""
    different = [
        name for name in {**ours.metrics, **theirs.metrics} if ours.metrics.get(name) != theirs.metrics.get(name)
    ]
    name = min(different, key=metric_order)
    here, there = (
        f"{100 * result.metrics[name]:.4f}" if name in result.metrics else "none" for result in (ours, theirs)
    )
    return f"{name} {here} here, {there} there"
