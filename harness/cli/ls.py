"""`harness ls`: losses, datasets, protocols, settings and stored runs."""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import typer

import losses
from harness import config, pages
from harness.cli.app import LOOKING, RESULTS, ResultsOption, app, exit_on_problems
from harness.cli.listing import Row, print_rows
from harness.cli.page import print_page
from harness.spec import Result, UserError, percent, unknown
from harness.store import Store

KINDS = ("losses", "datasets", "protocols", "settings", "runs")


def complete(kind: str) -> str:
    """The listing that a word means: `loss` is enough for losses."""
    meant = [name for name in KINDS if kind and name.startswith(kind)]
    if len(meant) != 1:
        raise unknown("listing", kind, KINDS)
    return meant[0]


@app.command(epilog="Example: harness ls losses", rich_help_panel=LOOKING)
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
    results: ResultsOption = RESULTS,
) -> None:
    """List the losses, datasets, protocols, settings or stored runs. `harness show NAME` tells more about one."""
    if kind == "runs":
        list_runs(Store(results))
        return
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
    for name in losses.names():
        plugin = losses.plugins().get(name)
        yield {
            "name": name,
            "family": "" if plugin else losses.facts(name).family,
            "paper": f"installed: {plugin.value}" if plugin else losses.facts(name).cite,
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


def list_runs(store: Store) -> None:
    stored, problems = store.results()
    if not stored and not problems:
        raise UserError(f"no results in {store.root}; make some with: harness run")
    print_rows([run_row(result) for result in stored], run_headers(stored))
    exit_on_problems(problems)


def run_headers(results: Sequence[Result]) -> list[str]:
    """The backbone is told where there are several."""
    headers = ["id", "loss", "dataset", "fold", "protocol", "seed", "R@1", "seconds"]
    if len({result.trial.backbone for result in results if not result.trial.is_pixels}) > 1:
        headers.insert(5, "backbone")
    return headers


def run_row(result: Result) -> Row:
    trial = result.trial
    baseline = "pixels" if trial.is_pixels else "untrained"
    words = [baseline if trial.is_baseline else trial.loss]
    if result.is_ensemble:
        words.append(f"x {result.ensemble}")
    if result.recipe:
        words.append(f"({result.recipe})")
    return {
        "id": result.id,
        "loss": " ".join(words),
        "dataset": trial.dataset,
        "fold": trial.fold,
        "protocol": trial.protocol,
        "backbone": trial.backbone,
        "seed": trial.seed,
        "R@1": percent(result.metrics["R@1"]),
        "seconds": f"{result.seconds['total']:.0f}",
    }
