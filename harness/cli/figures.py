"""`harness figures`: the paper's figures from what is stored."""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Annotated, Self

import typer

from harness.cli.app import (
    DATA_ROOT,
    RESULTS,
    BackboneOption,
    DataRootOption,
    DatasetOption,
    ProtocolOption,
    ResultsOption,
    StorageOption,
    app,
    exit_on_problems,
    storage_of,
)
from harness.cli.data import bar
from harness.spec import UserError, unknown
from harness.store import Store


@app.command(epilog="Example: harness figures retrieval tsne --dataset emoji --queries worst --out paper/figures")
def figures(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="The figures to draw: retrieval, grid, curves, overfitting, tsne, search, cost, ensemble. "
            "Default: all that can be drawn.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write to. Default: figures/ in --results.")
    ] = None,
    form: Annotated[
        str, typer.Option("--format", metavar="NAMES", help="File formats: png, pdf, or both with a comma.")
    ] = "png,pdf",
    dataset: DatasetOption = None,
    protocol: ProtocolOption = None,
    backbone: BackboneOption = None,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The loss that retrieval and tsne show, e.g. triplet. Default: every loss, and the Group Loss.",
        ),
    ] = None,
    queries: Annotated[
        str,
        typer.Option(
            metavar="WHICH",
            help="The queries that retrieval shows: indices in the test half (3,17,256), random:SEED or worst.",
        ),
    ] = "random:0",
    data_root: DataRootOption = DATA_ROOT,
    storage: StorageOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Draw figures of stored results, for every dataset, protocol and backbone; print the files written."""
    formats = check(names or (), form)
    from harness.figures import registry

    store = Store(results.absolute())
    stored, problems = store.results()
    groups = registry.groups(stored, dataset=dataset, protocol=protocol, backbone=backbone)
    if not groups:
        exit_on_problems(problems)
        raise UserError(f"no results in {results}; make some with: harness run")
    lacking: dict[str, list[UserError]] = {}
    with CacheBar() as cache_bar:
        needs = registry.Asked(storage_of(storage, store), data_root, queries, loss, cache_bar.update)
        for name in names or registry.FIGURES:
            drawn = 0
            for group in groups:
                try:
                    for file in registry.draw(name, group, needs, out or results / "figures", formats):
                        print(file, flush=True)
                        drawn += 1
                except UserError as error:
                    lacking.setdefault(name, []).append(error)
            if drawn or not names:
                for reason in lacking.pop(name, ()):
                    print(f"skipped {name}: {reason}", file=sys.stderr)
    for errors in lacking.values():  # figures that were named
        print(f"harness: {errors[0]}", file=sys.stderr)
    exit_on_problems(problems)
    if lacking:
        raise typer.Exit(2)


def check(names: Sequence[str], form: str) -> list[str]:
    """The formats; a UserError where a figure or a format is not known."""
    from harness.figures import registry

    for name in names:
        if name not in registry.FIGURES:
            raise unknown("figure", name, registry.FIGURES)
    formats = [word.strip() for word in form.split(",") if word.strip()]
    if not formats or not set(formats) <= set(registry.FORMATS):
        raise UserError(f"--format {form}: must be {' or '.join(registry.FORMATS)}, or both with a comma")
    return formats


class CacheBar:
    """A progress bar for decoding images; it appears with the first image, because most figures need none."""

    def __init__(self) -> None:
        self.stack = ExitStack()
        self.show: Callable[[int, int | None], None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.stack.close()

    def update(self, done: int, total: int) -> None:
        if self.show is None:
            self.show = self.stack.enter_context(bar("image cache", total))
        self.show(done, total)
