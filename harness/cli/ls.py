"""`harness ls`: losses, datasets, protocols and stored runs."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import typer

from harness import commands, config
from harness.cli.app import LOOKING, RESULTS, ResultsOption, app, exit_on_problems
from harness.cli.output import say
from harness.spec import Result, percent
from harness.store import Store

Kind = Literal["losses", "datasets", "protocols", "runs"]
Row = dict[str, Any]  # header -> value


@app.command(epilog="Example: harness ls losses", rich_help_panel=LOOKING)
def ls(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="What to list.")],
    results: ResultsOption = RESULTS,
) -> None:
    """List the losses, datasets or protocols, or the stored runs."""
    from tabulate import tabulate

    problems: list[str] = []
    if kind == "runs":
        stored, problems = Store(results).results()
        rows = [run_row(result) for result in stored]
        say(tabulate(rows, headers={name: name for name in RUN_HEADERS}, disable_numparse=True))
    else:
        listings = {"losses": loss_rows, "datasets": dataset_rows, "protocols": protocol_rows}
        say(tabulate(list(listings[kind]()), headers="keys", disable_numparse=True))
    exit_on_problems(problems)


def loss_rows() -> Iterator[Row]:
    import losses

    for spec in map(config.loss, losses.names()):
        year = re.search(r" ((?:19|20)\d\d)\b", spec.cite)
        yield {
            "name": spec.name,
            "title": spec.title,
            "paper": spec.cite.replace(year[0], "", 1) if year else spec.cite,
            "year": year[1] if year else "",
            "family": spec.family,
            "knobs": " ".join(f"{name}={commands.written(knob.default)}" for name, knob in spec.knobs.items()),
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
            "title": protocol.title,
            "backbone": protocol.settings["backbone"],
            "crop": protocol.settings["crop"],
            "epochs": protocol.settings["epochs"],
            "selects by": protocol.select,
            "source": protocol.source,
        }


RUN_HEADERS = ("id", "loss", "dataset", "fold", "protocol", "backbone", "seed", "R@1", "seconds")


def run_row(result: Result) -> Row:
    trial = result.trial
    return {
        "id": result.id,
        "loss": trial.loss + (f" ({result.recipe})" if result.recipe else ""),
        "dataset": trial.dataset,
        "fold": trial.fold,
        "protocol": trial.protocol,
        "backbone": trial.backbone,
        "seed": trial.seed,
        "R@1": percent(result.metrics["R@1"]),
        "seconds": f"{result.seconds['total']:.0f}",
    }
