"""The options by which `ls runs`, `tables`, `figures` and `report` choose among stored results."""

from typing import Annotated

import typer

from harness.analysis.selection import Selection
from harness.cli import completion

LossesFilter = Annotated[
    str,
    typer.Option(
        "--losses",
        metavar="NAMES",
        autocompletion=completion.losses,
        help="Show only these losses, separated by commas, e.g. group,triplet; `none` stands for the baselines.",
    ),
]
WhereFilter = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="KEY=VALUE",
        autocompletion=completion.settings,
        help="Show only results with this setting (epochs=4), or this knob of a loss (group.anchors=1). Repeatable.",
    ),
]
SinceFilter = Annotated[
    str,
    typer.Option(
        "--since",
        metavar="DATE|AGE",
        help="Show only results from this moment on: a date like 2026-11-18, or an age like 2h or 3d.",
    ),
]
NameFilter = Annotated[
    str,
    typer.Option("--name", metavar="TEXT", help="Show only results of the experiments that `run --name` named so."),
]
SortOption = Annotated[
    str,
    typer.Option("--sort", metavar="METRIC", help="Sort losses by this metric, e.g. R@1, the highest first."),
]


def selection(
    losses: str,
    where: list[str] | None,
    since: str,
    name: str,
    dataset: str | None = None,
    protocol: str | None = None,
    backbone: str | None = None,
) -> Selection:
    return Selection(
        losses=tuple(word.strip() for word in losses.split(",") if word.strip()),
        where=tuple(where or ()),
        since=since,
        name=name,
        dataset=dataset,
        protocol=protocol,
        backbone=backbone,
    )
