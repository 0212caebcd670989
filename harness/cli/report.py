"""`harness report`: the stored results as one HTML page."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from harness.analysis.queries import Queries
from harness.analysis.results import select
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
    exit_on_problems,
    require,
    storage_of,
)
from harness.cli.figures import CacheBar
from harness.cli.filters import LossesFilter, NameFilter, SinceFilter, SortOption, WhereFilter, selection
from harness.cli.output import say
from harness.files import write_whole, writing
from harness.spec import printable
from harness.store import Store


@app.command(epilog="Example: harness report --dataset emoji --out report.html", rich_help_panel=LOOKING)
def report(
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write. Default: report.html in --results.")
    ] = None,
    losses: LossesFilter = "",
    where: WhereFilter = None,
    since: SinceFilter = "",
    name: NameFilter = "",
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    dataset: DatasetOption = None,
    protocol: ProtocolOption = None,
    backbone: BackboneOption = None,
    sort: SortOption = "",
    data_root: DataRootOption = DATA_ROOT,
    storage: StorageOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Write all results into one HTML page. It has tables, figures, runs and provenance, and needs no network."""
    from harness.figures.registry import Sources
    from harness.report.page import page
    from harness.report.pictures import draw_all

    store = Store(results.absolute())
    stored, experiments, problems = store.everything()
    chosen = selection(losses, where, since, name, dataset, protocol, backbone)
    selected = select(chosen.shown(stored, experiments))
    require(selected, problems, f"no results in {results}; make some with: harness run")
    queries = Queries(store)
    with CacheBar() as cache_bar:
        sources = Sources(storage_of(storage, store), queries, data_root, report=cache_bar.update)
        pictures, missing = draw_all(selected, sources, experiments, sort)
    text = page(selected, pictures, missing, experiments, queries, sort)
    file = out or results / "report.html"
    with writing(file):
        write_whole(file, printable(text).encode())
    say(file)
    if open_ and not webbrowser.open(file.absolute().as_uri()):
        say(f"harness: no browser here to open {file} with", error=True)
    exit_on_problems(problems)
