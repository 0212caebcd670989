"""`harness report`: what is stored as one HTML page."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from harness.cli.figures import CacheBar
from harness.spec import Result, UserError
from harness.store import Store

if TYPE_CHECKING:
    from harness.figures.registry import Asked
    from harness.report.page import Lacking, Picture


@app.command(epilog="Example: harness report --dataset emoji --out report.html")
def report(
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write. Default: report.html in --results.")
    ] = None,
    dataset: DatasetOption = None,
    protocol: ProtocolOption = None,
    backbone: BackboneOption = None,
    data_root: DataRootOption = DATA_ROOT,
    storage: StorageOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Write tables, figures, runs and provenance into one HTML file that needs no network; print its path."""
    from harness.figures.registry import Asked
    from harness.report import page
    from harness.tables import build as tables

    store = Store(results.absolute())
    stored, problems = store.results()
    selected = tables.select(stored, dataset=dataset, protocol=protocol, backbone=backbone)
    if not selected:
        exit_on_problems(problems)
        raise UserError(f"no results in {results}; make some with: harness run")
    with CacheBar() as cache_bar:
        drawn = list(draw(selected, Asked(storage_of(storage, store), data_root, report=cache_bar.update)))
    pictures = [item for item in drawn if isinstance(item, page.Picture)]
    lacking = [item for item in drawn if isinstance(item, page.Lacking)]
    text = page.build(selected, pictures, lacking)
    file = out or results / "report.html"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode(errors="replace"))  # a title may hold half a surrogate pair
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror or error}") from None
    print(file)
    exit_on_problems(problems)


def draw(results: list[Result], asked: "Asked") -> Iterator["Picture | Lacking"]:
    """Every figure of every dataset, protocol and backbone, or why it is none."""
    from harness.figures import registry as figures
    from harness.report.page import Lacking, Picture

    with tempfile.TemporaryDirectory() as folder:
        for name in figures.FIGURES:
            for group in figures.groups(results):
                try:
                    for file in figures.draw(name, group, asked, Path(folder), ["png"]):
                        what = file.stem.removesuffix(f"-{group.slug}").removeprefix(name).strip("-")
                        parts = (group.dataset, group.protocol, group.backbone, what)
                        yield Picture(name, " · ".join(filter(None, parts)), file.read_bytes())
                except UserError as error:
                    yield Lacking(name, str(error))
