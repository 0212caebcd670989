"""`harness figures`: the paper's figures from what is stored."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.app import DATA_ROOT, RESULTS, DataRootOption, ResultsOption, StorageOption, app, report, storage_of
from harness.cli.data import bar
from harness.spec import UserError, unknown
from harness.store import Store

if TYPE_CHECKING:
    from harness.figures.registry import Asked
    from harness.storage import Storage


@app.command(epilog="Example: harness figures retrieval tsne --dataset emoji --queries worst --out paper/figures")
def figures(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="retrieval, grid, curves, overfitting, tsne, search, cost, ensemble. Default: all that can be drawn.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write. Default: figures/ in --results.")
    ] = None,
    form: Annotated[str, typer.Option("--format", metavar="NAMES", help="png, pdf or both.")] = "png,pdf",
    dataset: Annotated[str | None, typer.Option(metavar="NAME", help="Only this dataset.")] = None,
    protocol: Annotated[str | None, typer.Option(metavar="NAME", help="Only this protocol.")] = None,
    backbone: Annotated[str | None, typer.Option(metavar="NAME", help="Only this backbone.")] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="For retrieval and tsne. Default: retrieval of every loss, tsne of the Group Loss."
        ),
    ] = None,
    queries: Annotated[
        str,
        typer.Option(metavar="WHICH", help="For retrieval: indices in the test half (3,17,256), random:SEED or worst."),
    ] = "random:0",
    data_root: DataRootOption = DATA_ROOT,
    storage: StorageOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Draw figures of stored results, each for every dataset, protocol and backbone; print the files written."""
    from harness.figures import registry as figures

    for name in names or ():
        if name not in figures.FIGURES:
            raise unknown("figure", name, figures.FIGURES)
    formats = [word.strip() for word in form.split(",") if word.strip()]
    if not formats or not set(formats) <= set(figures.FORMATS):
        raise UserError(f"--format {form}: allowed is {' | '.join(figures.FORMATS)}, or both with a comma")
    where = Store(results.absolute())
    found, problems = where.results()
    groups = figures.groups(found, dataset=dataset, protocol=protocol, backbone=backbone)
    if not groups:
        report(problems)
        raise UserError(f"no results in {results}; make some with: harness run")
    lacking: dict[str, list[UserError]] = {}
    with asking(storage_of(storage, where), data_root, queries, loss) as asked:
        for name in names or figures.FIGURES:
            drawn = 0
            for group in groups:
                try:
                    for file in figures.draw(name, group, asked, out or results / "figures", formats):
                        print(file, flush=True)
                        drawn += 1
                except UserError as error:
                    lacking.setdefault(name, []).append(error)
            if drawn or not names:
                for why in lacking.pop(name, ()):
                    print(f"skipped {name}: {why}", file=sys.stderr)
    for errors in lacking.values():  # what was asked for by name
        print(f"harness: {errors[0]}", file=sys.stderr)
    report(problems)
    if lacking:
        raise typer.Exit(2)


@contextmanager
def asking(
    storage: "Storage", data_root: Path, queries: str = "random:0", loss: str | None = None
) -> Iterator["Asked"]:
    """What pictures need; a bar is shown only where images have to be decoded first."""
    from harness.figures.registry import Asked

    with ExitStack() as stack:

        @cache
        def cache_bar(total: int) -> Callable[[int, int | None], None]:
            return stack.enter_context(bar("image cache", total))

        yield Asked(storage, data_root, queries, loss, lambda done, total: cache_bar(total)(done, total))
