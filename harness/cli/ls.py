"""`harness ls`: losses, datasets, protocols and stored runs."""

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from harness import commands, config
from harness.cli.app import RESULTS, ResultsOption, app, report
from harness.store import Store


class Kind(StrEnum):
    losses = "losses"
    datasets = "datasets"
    protocols = "protocols"
    runs = "runs"


@app.command(epilog="Example: harness ls losses")
def ls(
    kind: Annotated[Kind, typer.Argument(help="losses, datasets, protocols or runs.")],
    results: ResultsOption = RESULTS,
) -> None:
    """List what there is."""
    from tabulate import tabulate

    problems: list[str] = []
    headers: Sequence[str]
    rows: list[list[Any]]
    if kind is Kind.losses:
        headers, rows = ["name", "title", "paper", "year", "knobs"], list(loss_rows())
    elif kind is Kind.datasets:
        headers = ["name", "classes", "images", "protocol", "what"]
        rows = [
            [
                data.name,
                f"{data.train_classes} / {data.test_classes}",
                f"{data.train_images} / {data.test_images}",
                data.protocol,
                data.note or data.title,
            ]
            for data in map(config.dataset, config.names("datasets"))
        ]
    elif kind is Kind.protocols:
        headers = ["name", "title", "backbone", "crop", "epochs", "selects by", "source"]
        rows = [
            [
                one.name,
                one.title,
                *(one.settings[key] for key in ("backbone", "crop", "epochs")),
                one.select,
                one.source,
            ]
            for one in map(config.protocol, config.names("protocols"))
        ]
    else:
        found, problems = Store(results).results()
        headers = ["id", "loss", "dataset", "fold", "protocol", "backbone", "seed", "R@1", "seconds"]
        rows = [
            [
                *(
                    one.id,
                    one.trial.loss + (f" ({one.recipe})" if one.recipe else ""),
                    one.trial.dataset,
                    one.trial.fold,
                    one.trial.protocol,
                    one.trial.backbone,
                ),
                *(one.trial.seed, f"{100 * one.metrics['R@1']:.1f}", f"{one.seconds['total']:.0f}"),
            ]
            for one in found
        ]
    print(tabulate(rows, headers=headers, disable_numparse=True))
    report(problems)


def loss_rows() -> Iterable[list[str]]:
    import losses

    for spec in map(config.loss, losses.names()):
        knobs = " ".join(f"{name}={commands.written(knob.default)}" for name, knob in spec.knobs.items())
        year = re.search(r" ((?:19|20)\d\d)\b", spec.cite)
        paper = spec.cite.replace(year[0], "", 1) if year else spec.cite
        yield [spec.name, spec.title, paper, year[1] if year else "", knobs]
