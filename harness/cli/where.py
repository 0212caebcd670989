"""The options that say where trials and measurements run, which several commands have."""

from typing import Annotated

import typer

WHERE = "Where it runs"

AddressOption = Annotated[
    str | None,
    typer.Option(
        envvar="RAY_ADDRESS",
        metavar="auto|HOST:PORT",
        rich_help_panel=WHERE,
        help="Join this Ray cluster, e.g. head:6379. Default: start Ray on this machine.",
    ),
]
CpusOption = Annotated[
    float,
    typer.Option(
        metavar="N",
        rich_help_panel=WHERE,
        help="Give each trial N CPUs; torch uses as many threads for it, on which numbers depend.",
    ),
]
GpusOption = Annotated[
    float | None,
    typer.Option(
        metavar="N",
        rich_help_panel=WHERE,
        help="Give each trial N GPUs; with 0.5, two trials share one. Default: 1 if there are any.",
    ),
]
WaitForNodesOption = Annotated[
    bool,
    typer.Option(
        "--wait-for-nodes",
        rich_help_panel=WHERE,
        help="Wait for a node with what a trial gets, also where the cluster has no autoscaler that starts one. "
        "Default: wait only if it has one.",
    ),
]
MaxConcurrentOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        rich_help_panel=WHERE,
        help="Run at most N trials at once. Default: as many as fit; the local executor runs one.",
    ),
]
