"""`harness figures`: the paper's figures, drawn from stored results."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from harness.analysis.queries import Queries
from harness.cli.app import (
    DATA_ROOT,
    LOOKING,
    RESULTS,
    BackboneOption,
    DataRootOption,
    DatasetOption,
    ProtocolOption,
    ResultsOption,
    StorageOption,
    app,
    check_folder,
    exit_on_problems,
    option_of,
    require,
    storage_of,
)
from harness.cli.data import bar
from harness.cli.filters import LossesFilter, NameFilter, SinceFilter, SortOption, WhereFilter, selection
from harness.cli.output import say
from harness.figures.groups import groups
from harness.figures.registry import FIGURES, FORMATS, Sources, draw
from harness.spec import UserError, unknown
from harness.store import Store


@app.command(
    epilog="Example: harness figures retrieval tsne --dataset emoji --queries worst --out paper/figures",
    rich_help_panel=LOOKING,
)
def figures(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help=f"The figures to draw: {', '.join(FIGURES)}. Default: all that can be drawn.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write to. Default: figures/ in --results.")
    ] = None,
    form: Annotated[
        str, typer.Option("--format", metavar="NAMES", help="File formats: png, pdf, svg, or several with commas.")
    ] = "png,pdf",
    losses: LossesFilter = "",
    where: WhereFilter = None,
    since: SinceFilter = "",
    name: NameFilter = "",
    dataset: DatasetOption = None,
    protocol: ProtocolOption = None,
    backbone: BackboneOption = None,
    sort: SortOption = "",
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The loss that retrieval and tsne show, e.g. triplet. "
            "Default: every loss for retrieval, the Group Loss for tsne.",
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
    """Draw figures of stored results. There is one per dataset, protocol and backbone; prints the files written."""
    formats = check(names or (), form)
    if out is not None:
        check_folder(out)
    store = Store(results.absolute())
    stored, experiments, problems = store.everything()
    chosen = selection(losses, where, since, name, dataset, protocol, backbone)
    parts = groups(chosen.shown(stored, experiments), experiments, option_of(results), sort)
    require(parts, problems, f"no results in {results}; make some with: harness run")
    known = sorted({line for part in parts for line in part.losses})
    if loss is not None and loss not in known:
        raise unknown("loss", loss, known)
    missing: dict[str, list[UserError]] = {}
    with CacheBar() as cache_bar:
        sources = Sources(storage_of(storage, store), Queries(store), data_root, queries, loss, cache_bar.update)
        for figure in names or FIGURES:
            drawn = 0
            for group in parts:
                try:
                    for drawing in draw(figure, group, sources, out or results / "figures", formats):
                        say("\n".join(map(str, drawing.files)))
                        drawn += 1
                except UserError as error:
                    missing.setdefault(figure, []).append(error)
            if drawn or not names:
                for reason in missing.pop(figure, ()):
                    say(f"skipped {figure}: {reason}", error=True)
    for errors in missing.values():  # figures that were named
        say(f"harness: {errors[0]}", error=True)
    exit_on_problems(problems)
    if missing:
        raise typer.Exit(2)


def check(names: Sequence[str], form: str) -> list[str]:
    """The formats; a UserError if a figure or a format is not known."""
    for name in names:
        if name not in FIGURES:
            raise unknown("figure", name, FIGURES)
    formats = [word.strip() for word in form.split(",") if word.strip()]
    if not formats or not set(formats) <= set(FORMATS):
        raise UserError(f"--format {form}: must be {', '.join(FORMATS)}, or several with commas")
    return formats


class CacheBar(ExitStack):
    """A progress bar for decoding images; it appears with the first image, because most figures need none."""

    advance: Callable[[int, int | None], None] | None = None

    def update(self, done: int, total: int) -> None:
        if self.advance is None:
            self.advance = self.enter_context(bar("image cache", total))
        self.advance(done, total)
