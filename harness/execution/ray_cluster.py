"""Ray Tune runs the trials: the only file that imports ray.

Tune dispatches, restarts what dies and frees what ends; it is not the memory of the run. A trial's checkpoint lies in
the storage under the trial's id and its result in the store, so Tune's own state is thrown away when a run ends, and
resuming is running the same command again.
"""

import contextlib
import logging
import math
import os
import platform
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

# Read by ray when it is imported. Results are the store's, not Tune's loggers'; Ctrl-C is the command line's.
os.environ.update(
    TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1",
    TUNE_DISABLE_SIGINT_HANDLER="1",
    TUNE_DISABLE_STRICT_METRIC_CHECKING="1",
    TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S="0",
    TUNE_GLOBAL_CHECKPOINT_S="3600",
    TUNE_PRINT_ALL_TRIAL_ERRORS="0",
    RAY_AIR_NEW_OUTPUT="0",
    RAY_CHDIR_TO_TRIAL_DIR="0",
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
)

import ray
from ray import tune
from ray.exceptions import OutOfMemoryError
from ray.tune import TuneError
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, TrialScheduler
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import harness
import losses
from harness import storage as names
from harness.spec import Event, Failure, Job, Progress, Result, Stopped, Trial, UserError
from harness.storage import Storage

Tell = Callable[[Trial, Event], None]
LOOK_SECONDS = 1.0  # how often a running trial is heard of, at most


@dataclass(frozen=True)
class Cluster:
    """Where to run and what a trial gets."""

    address: str | None = None  # None: a Ray of our own on this machine
    cpus_per_trial: float = 1.0
    gpus_per_trial: float | None = None  # None: one where there are any
    max_failures: int = 3  # how often a trial whose process or node died is started again
    scheduler: str = "none"
    select: str = "R@1"

    @contextlib.contextmanager
    def connected(self, storage: Storage, say: Callable[[str], None]) -> Iterator["Cluster"]:
        """Ray, started or joined, checked to see the storage; ours is stopped at the end."""
        joined = self.address is not None
        if self.address is not None:
            check_address(self.address)
        # On a cluster the workers need our code; on this machine they import what we import.
        code = [str(Path(module.__file__ or "").parent) for module in (harness, losses)]
        try:
            context = ray.init(
                address=self.address if joined else "local",
                include_dashboard=None if joined else True,
                runtime_env={"py_modules": code} if joined else None,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=True,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            if not joined:
                raise
            raise UserError(f"no Ray cluster at {self.address}: {str(error).splitlines()[0]}") from None
        try:
            if url := context.dashboard_url:
                say(f"Ray dashboard: http://{url}  (it asks for a token: ray get-auth-token)")
            if joined:
                probe(storage)
            yield self
        finally:
            ray.shutdown()

    def resources(self) -> dict[str, float]:
        """What a trial asks for; a UserError where no node will ever have it."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = self.gpus_per_trial
        if gpus is None:
            gpus = 1.0 if any(node.get("GPU", 0) > 0 for node in nodes) else 0.0
        asked = {"CPU": self.cpus_per_trial, "GPU": gpus}
        if not any(all(node.get(kind, 0) >= amount for kind, amount in asked.items()) for node in nodes):
            there = "; ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)
            raise UserError(
                f"a trial asks for {asked['CPU']:g} CPUs and {gpus:g} GPUs (--cpus-per-trial, --gpus-per-trial) on one "
                f"node, and no node has them: {there}"
            )
        return asked

    def execute(self, jobs: Sequence[Job], tell: Tell) -> None:
        """Run the jobs, as many at once as the resources allow.

        Ray kills workers when a node's memory runs low, and Tune falls with them: what has not ended is started again,
        from its last epoch, as after any other death of a process.
        """
        for _ in range(self.max_failures + 1):
            jobs = self.run(jobs, tell)
            if not jobs:
                return
        raise UserError(
            f"a node ran low on memory {self.max_failures + 1} times (--max-failures): let fewer trials run at once, "
            "with a larger --cpus-per-trial; what finished is stored"
        )

    def run(self, jobs: Sequence[Job], tell: Tell) -> list[Job]:
        """One run of Tune. Returns the jobs that have not ended, where it fell because a node ran low on memory."""
        resources = self.resources()
        storage = Storage(jobs[0].storage)
        threads = max(1, math.floor(self.cpus_per_trial))
        # A class of its own carries what its trials need; tune's wrappers would hide its name in the dashboard. Tune
        # unpickles the class for every trial, so the jobs themselves wait in Ray's object store.
        by_name = {job.trial.name: job for job in jobs}
        needs = {"jobs": ray.put(by_name), "resources": resources, "threads": threads}
        worker = type("TrialWorker", (TrialWorker,), needs)
        folder = f"tune/{uuid.uuid4().hex[:8]}"
        listener = Listener(by_name, tell)
        tuner = tune.Tuner(
            worker,
            param_space={"trial": tune.grid_search(list(by_name))},
            tune_config=tune.TuneConfig(
                reuse_actors=True,
                scheduler=FIFOScheduler() if self.scheduler == "none" else PerLoss(by_name, self.select),
                trial_name_creator=name_of,
                trial_dirname_creator=name_of,
            ),
            run_config=tune.RunConfig(
                name=folder.split("/")[1],
                storage_path=storage.path("tune") if storage.local else f"{storage.uri}/tune",
                failure_config=tune.FailureConfig(max_failures=self.max_failures),
                callbacks=[listener],
                verbose=0,
            ),
        )
        try:
            tuner.fit()
        except TuneError:
            if listener.broken is None:
                raise
            raise listener.broken from None  # ours, which Tune wrapped
        except RuntimeError as error:
            if not isinstance(error.__cause__, OutOfMemoryError):
                raise
            return [job for job in jobs if job.trial.id not in listener.ended]
        finally:
            storage.remove_folder(folder)
        return []


def name_of(trial: TuneTrial) -> str:
    return str(trial.config["trial"])


class PerLoss(FIFOScheduler):
    """Asynchronous successive halving in which a loss competes only with itself. Final runs are never stopped."""

    def __init__(self, jobs: Mapping[str, Job], metric: str) -> None:
        super().__init__()
        self.jobs = jobs
        # each fold for itself too: an easier one would push the others out
        self.rungs: dict[tuple[str, str], AsyncHyperBandScheduler] = {}
        for job in jobs.values():
            if job.validate:
                self.rungs.setdefault(
                    (job.trial.loss, job.trial.fold),
                    AsyncHyperBandScheduler(
                        time_attr="epoch",
                        metric=metric,
                        mode="max",
                        max_t=max(2, job.trial.epochs),
                        grace_period=1,
                        reduction_factor=2,
                        stop_last_trials=False,  # what reaches the end is evaluated like any other trial
                    ),
                )

    def _rung(self, trial: TuneTrial) -> AsyncHyperBandScheduler | None:
        job = self.jobs[name_of(trial)]
        return self.rungs.get((job.trial.loss, job.trial.fold)) if job.validate else None

    def on_trial_add(self, tune_controller: Any, trial: TuneTrial) -> None:
        if rung := self._rung(trial):
            rung.on_trial_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: TuneTrial, result: dict) -> str:
        rung = self._rung(trial)
        if rung is None or "epoch" not in result:
            return TrialScheduler.CONTINUE
        if result["epoch"] >= self.jobs[name_of(trial)].trial.epochs:  # all is paid for: its result counts
            return TrialScheduler.CONTINUE
        return str(rung.on_trial_result(tune_controller, trial, result))


class TrialWorker(tune.Trainable):
    """A process that runs one trial after another: imports, data and CUDA context are kept between them."""

    jobs: ClassVar[ray.ObjectRef]  # of a dictionary, by the trials' names
    resources: ClassVar[dict[str, float]]
    threads: ClassVar[int]

    @classmethod
    def default_resource_request(cls, config: dict) -> tune.PlacementGroupFactory:
        return tune.PlacementGroupFactory([{kind: amount for kind, amount in cls.resources.items() if amount}])

    def setup(self, config: dict) -> None:
        self.known: Mapping[str, Job] = ray.get(self.jobs)
        self._begin(config)

    def reset_config(self, new_config: dict) -> bool:
        self._begin(new_config)
        return True

    def __repr__(self) -> str:
        return f"TrialWorker({self.job.trial.name})" if hasattr(self, "job") else "TrialWorker"

    def events_of(self, job: Job) -> Iterator[Event]:
        from harness.training import trial as train

        return train.events(job)

    def _begin(self, config: dict) -> None:
        self.job = self.known[config["trial"]]
        device = None if self.resources["GPU"] else "cpu"  # Ray hides GPUs only from those that asked for some
        job = replace(self.job, threads=self.threads, device=device)
        self.storage = Storage(job.storage)
        self.events = self.events_of(job)
        self.begun = False

    def step(self) -> dict[str, Any]:
        """Until the trial ends, an epoch ends, or a second has passed."""
        began = time.monotonic()
        if not self.begun:  # not in setup: Tune may set up a worker whose trial another one has taken
            self.begun = True
            self._note(None)
            print(f"{self.job.trial.name} begins", flush=True)
        while True:
            event = next(self.events)
            if isinstance(event, Failure):
                event = replace(event, log=log_file())
            if not isinstance(event, Progress):
                print(
                    f"{self.job.trial.name} ends: {event.error if isinstance(event, Failure) else 'done'}", flush=True
                )
                measure(self.job.trial, event)
                return {"event": event, "done": True}
            epoch_ends = event.closes_epoch and event.stage == "train"
            if event.closes_epoch or time.monotonic() - began >= LOOK_SECONDS:
                self._note(event)
                measure(self.job.trial, event)
                return {"event": event, **({"epoch": event.epoch, **event.metrics} if epoch_ends else {})}

    def _note(self, event: Progress | None) -> None:
        """A sign of life for `harness status`, which may ask without Ray."""
        trial = self.job.trial
        where = {"node": platform.node(), "pid": os.getpid(), "log": log_file(), "time": time.time()}
        progress = {**asdict(event), "loss": None if math.isnan(event.loss) else event.loss} if event else None
        with contextlib.suppress(OSError):  # a full disk is for the checkpoint to complain of
            self.storage.write_json(names.heartbeat(trial.id), {"name": trial.name, **where, "progress": progress})

    def cleanup(self) -> None:
        if hasattr(self, "events"):
            self.events.close()  # type: ignore[attr-defined]

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: the training loop writes a checkpoint of its own after every epoch, under the trial's id."""


def log_file() -> str:
    """Where this worker's output goes, as the operating system knows it."""
    try:
        return os.readlink("/proc/self/fd/2")
    except OSError:
        return ""


_gauges: dict[str, Any] = {}


def measure(trial: Trial, event: Event) -> None:
    """Export loss, images per second and R@1 as Ray metrics, tagged with the trial's name."""
    from ray.util.metrics import Gauge

    if isinstance(event, Progress):
        values = {"loss": event.loss, "images_per_second": event.images_per_second, **_recall(event.metrics)}
    elif isinstance(event, Result):
        values = _recall(event.metrics)
    else:
        return
    for name, value in values.items():
        if name not in _gauges:
            _gauges[name] = Gauge(f"harness_{name}", f"{name} of a running trial", tag_keys=("trial",))
        if not math.isnan(value):
            _gauges[name].set(value, tags={"trial": trial.name})


def _recall(metrics: Any) -> dict[str, float]:
    return {"recall_at_1": metrics["R@1"]} if "R@1" in metrics else {}


class Listener(tune.Callback):
    """In the driver: passes on what Tune hears. What goes wrong here (a full disk) stops the run."""

    def __init__(self, jobs: Mapping[str, Job], tell: Tell) -> None:
        self.jobs = jobs
        self.tell = tell
        self.ended: set[str] = set()
        self.last: dict[str, Progress] = {}
        self.broken: Exception | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its callbacks in order to resume; we do not resume from Tune

    def on_trial_result(self, iteration: int, trials: list, trial: TuneTrial, result: dict, **info: Any) -> None:
        event = result.pop("event", None)
        trial.last_result.pop("event", None)  # or Tune keeps it for the whole run
        if event is not None:
            self.pass_on(trial, event)

    def on_trial_complete(self, iteration: int, trials: list, trial: TuneTrial, **info: Any) -> None:
        """Completed without a result: a scheduler stopped it."""
        ours = self.jobs[name_of(trial)].trial
        if ours.id not in self.ended:
            last = self.last[ours.id]
            self.pass_on(trial, Stopped(ours, last.epoch, last.metrics))

    def on_trial_error(self, iteration: int, trials: list, trial: TuneTrial, **info: Any) -> None:
        """Its process or node died once too often."""
        story = "".join(Path(trial.error_file).read_text().splitlines(keepends=True)[-40:]) if trial.error_file else ""
        error = f"its worker died {trial.num_failures} times (--max-failures)"
        job = self.jobs[name_of(trial)]
        sign = Storage(job.storage).read_json(names.heartbeat(job.trial.id)) or {}
        self.pass_on(trial, Failure(job.trial, error, story, sign.get("log", "")))

    def pass_on(self, trial: TuneTrial, event: Event) -> None:
        ours = self.jobs[name_of(trial)].trial
        if isinstance(event, Progress):
            if event.closes_epoch and event.stage == "train":
                self.last[ours.id] = event
        else:
            self.ended.add(ours.id)
        try:
            self.tell(ours, event)
        except Exception as error:
            self.broken = error
            raise


def check_address(address: str) -> None:
    """Ray waits for minutes where nobody answers; we ask first."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=5):
            return
    except (OSError, ValueError) as error:
        raise UserError(f"no Ray cluster at {address}: {error}; allowed is auto or HOST:PORT") from None


def probe(storage: Storage) -> None:
    """Does every node see the storage? The driver writes a file, a task on each node reads it."""
    name, word = f"probe-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
    storage.write(name, word.encode())

    @ray.remote(num_cpus=0)
    def look(uri: str) -> bool:
        with contextlib.suppress(Exception):  # whatever keeps it from seeing the file
            return Storage(uri).read(name) == word.encode()
        return False

    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        seen = {
            node["NodeManagerAddress"]: look.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote(storage.uri)
            for node in nodes
        }
        blind = [address for address, answer in seen.items() if not ray.get(answer)]
    finally:
        storage.remove(name)
    if blind:
        raise UserError(
            f"--storage {storage.uri} is not seen by {', '.join(blind)}: name a folder that every node mounts, or a URI"
        )
