"""From an account of trials to the outcome of their run: what `harness run` and harness.run() share."""

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.data import listing
from harness.execution import stored
from harness.execution.account import Account
from harness.execution.display import Display
from harness.execution.run import Executor, Run
from harness.request import Request
from harness.spec import Experiment, Failure, Job, Listener, Measurement, Result, UserError
from harness.storage import Storage

if TYPE_CHECKING:
    from harness.execution.ray_cluster import Cluster


@dataclass(frozen=True)
class Outcome:
    """The results of a run, and its failures."""

    results: list[Result]  # baselines, final runs and ensembles; or those of a grid
    failures: list[Failure]


def start(request: Request, account: Account, storage: Storage, display: Display) -> Outcome:
    """Run what is missing. If everything is stored Ray is not started, and if nothing is to be trained no input is
    needed."""
    stored.check(account, display.line)
    display.line(overview(account))
    run = Run(account, storage, nothing_to_execute, display, threads=request.threads)
    with ExitStack() as executor:
        if account.is_complete:
            account.store.prepare()
            storage.prepare()
        else:
            account.store.check()
            if not account.is_trained:
                check_inputs(request, account, display)  # before a folder is made: what is refused leaves nothing
            check_room(account, storage)
            with run.getting_ready():
                if not account.is_trained:
                    prepare_images(request, account, storage, display)
                display.begin(account.experiment, log_file(account))
                run.executor = executor.enter_context(opened_executor(request, run))
        return Outcome(run(), run.failures)


def overview(account: Account) -> str:
    """6 trials and 1 ensemble: 2 are stored and not run again, 5 to run."""
    needs, unnamed = account.needs([*account.known, *account.unnamed()]), account.unnamed_work()
    to_run = len(account.pending(account.work)) + len(unnamed) + len(needs)
    planned = [*{one.id: one for one in account.work}.values(), *unnamed, *needs]
    if not to_run:
        words = "all stored, nothing to run"
    elif to_run == len(planned):
        words = f"0 stored, {to_run} to run"
    else:
        words = f"{len(planned) - to_run} stored and not run again, {to_run} to run"
    ensembles = sum(isinstance(one, Measurement) for one in planned)
    return f"{counted(len(planned) - ensembles, ensembles)}: {words}"


def counted(trials: int, ensembles: int) -> str:
    """6 trials and 1 ensemble."""
    counts = ((trials, "trial"), (ensembles, "ensemble"))
    return " and ".join(f"{count} {what}{'s' if count > 1 else ''}" for count, what in counts if count)


def log_file(account: Account) -> Path:
    """The file that gets what the display shows, of this run of an experiment."""
    name = f"{time.strftime('%Y-%m-%d-%H%M%S')}-{account.record('').id}.log"
    return account.store.logs / name


def check_inputs(request: Request, account: Account, display: Display) -> None:
    """What takes the least time comes first: the listing needs neither torch nor timm, the GPUs need torch alone."""
    check_listing(account.experiment)
    check_machine(request)
    from harness.execution import batches, inputs  # import torch and timm

    inputs.check(account, None if request.address else display.line)
    batches.check(account, display.line)


def check_listing(experiment: Experiment) -> None:
    """A UserError if the user's own images have none that can be retrieved."""
    dataset, root = experiment.dataset, Path(experiment.data_root)
    if dataset.is_own and listing.exists(dataset, root):
        for problem in listing.unmatched(dataset, listing.read(dataset, root)):
            raise UserError(problem)


def check_machine(request: Request) -> None:
    """A UserError for more GPUs per trial than this machine has. Ray would say so too, after it has started."""
    import torch

    wanted, existing = request.gpus_per_trial or 0, torch.cuda.device_count()
    if request.executor == "ray" and not request.address and wanted > existing:
        raise UserError(f"--gpus-per-trial {wanted:g}: this machine has {existing} GPUs")


def check_room(account: Account, storage: Storage) -> None:
    """A UserError if results or storage cannot be written, or have no room for what the run writes at least."""
    from harness.execution import room  # imports torch and timm

    needed = room.needed(account)
    account.store.prepare(needed.results)
    storage.prepare(needed.storage)


def prepare_images(request: Request, account: Account, storage: Storage, display: Display) -> None:
    """Prepare the images once, before the trials; on a cluster each node does it for itself."""
    from harness.execution import inputs

    if request.address:
        return
    with display.preparing() as show:
        for progress in inputs.prepare(account, storage):
            show(progress)


def preparations(request: Request, account: Account, storage: Storage) -> list[Job]:
    """What the nodes of a cluster are prepared for."""
    if not request.address:
        return []
    from harness.execution import inputs

    return inputs.preparations(account, storage)


@contextmanager
def opened_executor(request: Request, run: Run) -> Iterator[Executor]:
    if request.executor == "local":
        yield local_executor(request)
    else:
        run.display.line(f"joining the Ray at {request.address} ..." if request.address else "starting Ray ...")
        from harness.execution.ray_metrics import exported

        experiment = run.account.experiment
        cluster = replace(
            cluster_of(request),
            select=experiment.protocol.select,
            tell_waiting=run.wait,
            tell_lost=run.lose,
            exporting=partial(exported, run.census, experiment.dataset.name),
        )
        jobs = preparations(request, run.account, run.storage)
        with cluster.connected(run.storage, run.display.line, jobs, run.display.preparing) as connected:
            yield connected.execute


def local_executor(request: Request) -> Executor:
    from harness.execution import local

    return partial(local.execute, device="cpu" if request.gpus_per_trial == 0 else None)


def cluster_of(request: Request) -> "Cluster":
    from harness.execution.ray_cluster import Cluster

    return Cluster(
        request.address,
        request.cpus_per_trial,
        request.gpus_per_trial,
        request.max_failures,
        request.wait_for_nodes,
        request.max_concurrent,
        request.scheduler,
    )


def nothing_to_execute(jobs: Iterable[Job | None], listener: Listener) -> None:
    raise AssertionError("every trial is stored, but some are to run")
