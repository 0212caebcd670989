"""Ray Tune runs the trials: only this file and the other ray_*.py import ray.

Tune dispatches, restarts what dies and frees what ends; it is not the memory of the run. A trial's checkpoint lies in
the storage under the trial's id and its result in the store, so Tune's own state is thrown away when a run ends, and
resuming is running the same command again.
"""

import contextlib
import logging
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

# Read by ray when it is imported. Results are the store's, not Tune's loggers'; Ctrl-C is the command line's.
os.environ.update(
    TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1",
    TUNE_DISABLE_SIGINT_HANDLER="1",
    TUNE_DISABLE_STRICT_METRIC_CHECKING="1",
    TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S="0",
    TUNE_GLOBAL_CHECKPOINT_S="3600",
    TUNE_MAX_PENDING_TRIALS_PG="200",  # with a searcher, one: nodes would come one by one
    TUNE_PRINT_ALL_TRIAL_ERRORS="0",
    RAY_AIR_NEW_OUTPUT="0",
    RAY_CHDIR_TO_TRIAL_DIR="0",
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
)

import ray
from ray import tune
from ray.exceptions import OutOfMemoryError, RayError
from ray.tune import TuneError
from ray.tune.schedulers import FIFOScheduler

import harness
import losses
from harness.execution.ray_checks import (
    PRIVATE,
    check_address,
    check_node,
    check_private,
    check_ray_folder,
    dashboard_line,
    own_folder_first,
    ray_folder,
)
from harness.execution.ray_listener import TuneListener
from harness.execution.ray_nodes import Waiting, absence, alive, has_autoscaler, has_room
from harness.execution.ray_preparation import Preparation, Show, candidates, expectations, prepare
from harness.execution.ray_scheduler import PerLoss, name_of
from harness.execution.ray_searcher import JobQueue, JobSearch
from harness.execution.ray_worker import Events, TrialWorker, training_events
from harness.spec import Job, Listener, Progress, Scheduler, UserError, Work
from harness.storage import Storage


def print_nothing(progress: Progress) -> None:
    """For whoever shows no progress."""


@dataclass(frozen=True)
class Cluster:
    """Where to run and what a trial gets."""

    address: str | None = None  # None: a Ray of our own on this machine
    cpus_per_trial: float = 1.0
    gpus_per_trial: float | None = None  # None: 1 if there are any
    max_failures: int = 3  # how often a trial whose process died is started again; a lost node does not count
    wait_for_nodes: bool = False  # also for what no autoscaler brings
    max_concurrent: int | None = None  # trials at once at most; None: as many as fit
    scheduler: Scheduler = "none"
    select: str = "R@1"  # what the scheduler compares search trials by
    events: Events = training_events  # what a worker does with a job
    preparation: Preparation | None = None  # of the nodes of a cluster
    say: Callable[[str], None] = lambda line: None
    tell_waiting: Callable[[str], None] = lambda text: None  # what trials wait for, "" when they wait no more
    tell_lost: Callable[[Work], None] = lambda work: None  # it does not run now, and starts again
    exporting: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext  # while connected

    @contextlib.contextmanager
    def connected(
        self,
        storage: Storage,
        say: Callable[[str], None],
        jobs: Sequence[Job] = (),
        preparing: Callable[[], contextlib.AbstractContextManager[Show]] = lambda: contextlib.nullcontext(
            print_nothing
        ),
    ) -> Iterator["Cluster"]:
        """Start Ray or join a cluster, and prepare its nodes for the jobs: a UserError if one does not see the storage,
        or is unfit for them. A Ray that was started here stops at the end."""
        joined = self.address is not None
        if self.address is None:
            check_ray_folder()
        else:
            check_address(self.address)
            check_node(self.address)
        # On a cluster the workers need our code; on this machine they import what we import.
        code = [str(Path(module.__file__ or "").parent) for module in (harness, losses)]
        terminate = signal.getsignal(signal.SIGTERM)
        try:
            with own_folder_first():
                context = ray.init(
                    address=self.address if joined else "local",
                    include_dashboard=None if joined else True,
                    resources=None if joined else {PRIVATE: 1},
                    runtime_env={"py_modules": code} if joined else None,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    configure_logging=True,
                )
        except SystemExit:  # what Ray makes of SIGTERM while it starts
            if callable(terminate):
                terminate(signal.SIGTERM, None)
            raise
        except Exception as error:
            if not isinstance(error, OSError | ValueError | RuntimeError | RayError) and type(error) is not Exception:
                raise  # a mistake, not a failure that Ray foresees
            reason = " ".join(str(error).split())[:300]
            if joined:
                raise UserError(f"no Ray cluster at {self.address}: {reason}") from None
            if isinstance(error, OSError):
                raise UserError(f"Ray cannot start in {ray_folder()} (set by RAY_TMPDIR): {reason}") from None
            reason = reason.rstrip(".")
            raise UserError(f"Ray does not start: {reason}; on a busy machine, try the same command again") from error
        if threading.current_thread() is threading.main_thread() and terminate is not None:
            signal.signal(signal.SIGTERM, terminate)  # not Ray's, which dumps the stack and aborts
        try:
            if url := context.dashboard_url:
                say(dashboard_line(url))
            if self.address is None:  # this machine was prepared before Ray started
                with self.exporting():
                    yield replace(self, say=say)
                return
            check_private(self.address, say)
            with expectations(storage) as expected, self.exporting():
                nodes = candidates(self.cpus_per_trial, self.gpus_per_trial)
                with preparing() as show:
                    preparation = prepare(expected, jobs, nodes, show, say)
                yield replace(self, preparation=preparation, say=say)
        finally:
            ray.shutdown()

    def resources(self) -> dict[str, float]:
        """What a trial needs; a UserError if no node has as much, and none that has may come."""
        gpus = self.gpus_per_trial
        if gpus is None:
            gpus = 1.0 if any(node.get("GPU", 0) > 0 for node in alive()) else 0.0
            if not gpus and self.address:
                grows = has_autoscaler()
                where = ", also those of nodes that Ray starts" if grows else ""
                more = "" if grows else " --wait-for-nodes"
                self.say(
                    f"no node has a GPU now: trials train on CPUs{where}; to wait for a GPU: --gpus-per-trial 1{more}"
                )
        needed = {"CPU": self.cpus_per_trial, "GPU": gpus}
        if not (has_room(needed) or self.wait_for_nodes or (self.address and has_autoscaler())):
            waits = "; --wait-for-nodes waits for one that has" if self.address else ""
            raise UserError(f"{absence(needed)}{waits}")
        return needed

    def execute(self, jobs: Iterable[Job | None], listener: Listener) -> None:
        """Run the jobs, as many at once as the resources allow.

        A trial whose process or node died starts again from its last checkpoint. Tune fails as a whole where Ray kills
        workers because the memory of a node runs low. What has not ended then goes into another run of Tune.
        """
        resources = self.resources()
        queue = JobQueue(jobs, self.max_concurrent)
        callback = TuneListener(queue, listener, self.max_failures, self.say if self.address else lambda line: None)
        callback.tell_lost = self.tell_lost
        callback.resources = resources
        while not queue.is_over:
            deaths = callback.deaths.counted.total()
            queue.start_all_again()
            callback.held.clear()
            self.run(queue, callback, resources)
            if not queue.is_over and callback.deaths.counted.total() == deaths:
                raise RuntimeError(f"Ray Tune gave up {min(queue.open, default='all trials')} without a reason")

    def run(self, queue: JobQueue, callback: TuneListener, resources: dict[str, float]) -> None:
        """One run of Tune. Its own files are of no use to anybody, and stay on this machine."""
        waiting = Waiting(resources, self.tell_waiting, queue.unfit, however_long=self.wait_for_nodes)
        # A subclass carries what all trials share: Tune's own wrappers would hide its name in the dashboard.
        shared = {"events_of": staticmethod(self.events), "resources": resources, "preparation": self.preparation}
        worker = type("TrialWorker", (TrialWorker,), shared)
        with tempfile.TemporaryDirectory(prefix="harness-tune-", ignore_cleanup_errors=True) as folder:
            tuner = tune.Tuner(
                worker,
                tune_config=tune.TuneConfig(
                    search_alg=JobSearch(queue),
                    num_samples=-1,  # as many as the queue has
                    reuse_actors=True,
                    scheduler=FIFOScheduler() if self.scheduler == "none" else PerLoss(queue.known, self.select),
                    trial_name_creator=name_of,
                    trial_dirname_creator=name_of,
                ),
                run_config=tune.RunConfig(
                    name="run",
                    storage_path=folder,
                    failure_config=tune.FailureConfig(max_failures=0),  # the queue suggests again what died
                    checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                    callbacks=[callback, waiting],
                    verbose=0,
                ),
            )
            try:
                tuner.fit()
            except TuneError:
                if callback.broken is None:
                    raise
                raise callback.broken from None  # ours, which Tune wrapped
            except RuntimeError as error:
                if not isinstance(error.__cause__, OutOfMemoryError):
                    raise
                callback.on_low_memory(str(error.__cause__))
