"""`harness ls`: losses, datasets, protocols, settings and stored runs."""

from collections.abc import Callable, Iterator
from typing import Annotated

import typer

import losses as registry
from harness import config, pages
from harness.analysis.selection import Selection
from harness.cli.app import LOOKING, RESULTS, DatasetOption, ProtocolOption, ResultsOption, app
from harness.cli.filters import LossesFilter, NameFilter, SinceFilter, WhereFilter, selection
from harness.cli.listing import Row, print_rows
from harness.cli.page import print_page
from harness.cli.runs import list_runs
from harness.spec import UserError, unknown
from harness.store import Store

KINDS = ("losses", "datasets", "protocols", "settings", "runs")


def complete(kind: str) -> str:
    """The listing that a word means: `loss` is enough for losses."""
    meant = [name for name in KINDS if kind and name.startswith(kind)]
    if len(meant) != 1:
        raise unknown("listing", kind, KINDS)
    return meant[0]


@app.command(
    epilog="Example: harness ls runs --losses group,triplet --where epochs=4 --sort R@1", rich_help_panel=LOOKING
)
def ls(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            autocompletion=lambda: KINDS,
            callback=complete,
            help=f"What to list: {', '.join(KINDS)}.",
        ),
    ],
    losses: LossesFilter = "",
    where: WhereFilter = None,
    since: SinceFilter = "",
    name: NameFilter = "",
    dataset: DatasetOption = None,
    protocol: ProtocolOption = None,
    sort: Annotated[
        str,
        typer.Option(
            metavar="KEY", help="Sort runs by date, loss, R@1 (best first, test before validation classes) or seconds."
        ),
    ] = "date",
    results: ResultsOption = RESULTS,
) -> None:
    """List the losses, datasets, protocols, settings or stored runs. `harness show NAME` tells more about one; the
    filters choose among runs."""
    chosen = selection(losses, where, since, name, dataset, protocol)
    if kind == "runs":
        list_runs(Store(results), chosen, sort)
        return
    if chosen != Selection():
        raise UserError(f"ls {kind}: --losses, --where, --since, --name, --dataset and --protocol choose among runs")
    if kind == "settings":
        print_page(pages.of_settings())
        return
    listings: dict[str, Callable[[], Iterator[Row]]] = {
        "losses": loss_rows,
        "datasets": dataset_rows,
        "protocols": protocol_rows,
    }
    rows = list(listings[kind]())
    print_rows(rows, list(rows[0]))


def loss_rows() -> Iterator[Row]:
    """Read from the sources: torch is not imported, and a broken plug-in does not matter."""
    for name in registry.names():
        plugin = registry.plugins().get(name)
        yield {
            "name": name,
            "family": "" if plugin else registry.facts(name).family,
            "paper": f"installed: {plugin.value}" if plugin else registry.facts(name).cite,
        }


def dataset_rows() -> Iterator[Row]:
    for dataset in map(config.dataset, config.names("datasets")):
        yield {
            "name": dataset.name,
            "classes": f"{dataset.train_classes} / {dataset.test_classes}",
            "images": f"{dataset.train_images} / {dataset.test_images}",
            "protocol": dataset.protocol,
            "what": dataset.note or dataset.title,
        }


def protocol_rows() -> Iterator[Row]:
    for protocol in map(config.protocol, config.names("protocols")):
        yield {
            "name": protocol.name,
            "backbone": protocol.settings["backbone"],
            "crop": protocol.settings["crop"],
            "epochs": protocol.settings["epochs"],
            "what": protocol.title,
        }
