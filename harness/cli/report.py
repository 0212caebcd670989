"""`harness report`: what is stored as one HTML page."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.app import DATA_ROOT, RESULTS, DataRootOption, ResultsOption, StorageOption, app, storage_of
from harness.cli.app import report as tell
from harness.cli.figures import asking
from harness.spec import Result, UserError
from harness.store import Store

if TYPE_CHECKING:
    from harness.figures.registry import Asked
    from harness.report.page import Lacking, Picture


@app.command(epilog="Example: harness report --dataset emoji --out report.html")
def report(
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write. Default: report.html in --results.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(metavar="NAME", help="Only this dataset.")] = None,
    protocol: Annotated[str | None, typer.Option(metavar="NAME", help="Only this protocol.")] = None,
    backbone: Annotated[str | None, typer.Option(metavar="NAME", help="Only this backbone.")] = None,
    data_root: DataRootOption = DATA_ROOT,
    storage: StorageOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Write tables, figures, runs and provenance into one HTML file that needs no network; print its path."""
    from harness.report import page as report
    from harness.tables import build as tables

    where = Store(results.absolute())
    found, problems = where.results()
    chosen = tables.select(found, dataset=dataset, protocol=protocol, backbone=backbone)
    if not chosen:
        tell(problems)
        raise UserError(f"no results in {results}; make some with: harness run")
    with asking(storage_of(storage, where), data_root) as asked:
        drawn = list(draw(chosen, asked))
    pictures = [one for one in drawn if isinstance(one, report.Picture)]
    lacking = [one for one in drawn if isinstance(one, report.Lacking)]
    text = report.build(chosen, pictures, lacking)
    file = out or results / "report.html"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode(errors="replace"))  # a title may hold half a surrogate pair
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror or error}") from None
    print(file)
    tell(problems)


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
