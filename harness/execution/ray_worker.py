"""The worker: a process that Ray starts on a node, and that runs trials there."""

import contextlib
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import ray
from ray import tune

from harness.execution.heartbeat import Heart
from harness.execution.pulse import Pulse
from harness.execution.ray_metrics import INTERVAL as GAUGES_INTERVAL
from harness.execution.ray_metrics import TrialGauges
from harness.execution.ray_preparation import Preparation, checked
from harness.spec import Event, Failure, Job, Progress
from harness.storage import Storage

Events = Callable[[Job], Iterator[Event]]
INTERVAL = 1.0  # seconds at least between two reports within an epoch
NODE_ID = "ray.io/node-id"  # a label that Ray gives each node
WORKING_DIRECTORY = "HARNESS_WORKING_DIRECTORY"  # environment variable: where the user started the run


def training_events(job: Job) -> Iterator[Event]:
    """The events of a trial. Training is imported here, so that the driver needs no torch."""
    from harness.training import trial as training

    return training.events(job)


class OwnProcess(tune.PlacementGroupFactory):
    """The resources of a trial that shares its process with no other one. Tune gives a worker to another trial only if
    their requests are equal, and this one is equal to no other trial's."""

    def __init__(self, bundles: list[dict[str, float]], trial: str, others: list[dict[str, str]] | None) -> None:
        super().__init__(bundles, bundle_label_selector=others)
        self.trial = trial

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OwnProcess) and self.trial == other.trial

    def __hash__(self) -> int:
        return hash(self.trial)


class TrialWorker(tune.Trainable):
    """A process that runs one trial after another: imports, data and CUDA context are kept between them."""

    events_of: ClassVar[Events]
    resources: ClassVar[dict[str, float]]
    preparation: ClassVar[Preparation | None]

    @classmethod
    def default_resource_request(cls, config: dict) -> tune.PlacementGroupFactory:
        bundles = [{kind: amount for kind, amount in cls.resources.items() if amount}]
        others = [{NODE_ID: f"!in({','.join(config['avoid'])})"}] if config["avoid"] else None
        if config["alone"]:
            return OwnProcess(bundles, config["trial"], others)
        return tune.PlacementGroupFactory(bundles, bundle_label_selector=others)

    def setup(self, config: dict) -> None:
        self.gauges = TrialGauges()
        self.pulse = Pulse(self.gauges.export, GAUGES_INTERVAL)
        self.pulse.start()
        self._begin(config)

    def reset_config(self, new_config: dict) -> bool:
        self._begin(new_config)
        return True

    def __repr__(self) -> str:
        return f"TrialWorker({platform.node()})"  # the dashboard asks once, so not for the trial

    def _begin(self, config: dict) -> None:
        self._leave()
        self.job: Job = ray.get(config["job"])
        device = None if self.resources["GPU"] else "cpu"  # Ray hides GPUs only from workers that request some
        job = replace(self.job, device=device)
        self.storage = Storage(job.storage)
        self.node = ray.get_runtime_context().get_node_id()
        return_to_working_directory()
        self.events = checked(self.preparation, job, type(self).events_of(job), self.resources["GPU"])
        self.begun = False

    def step(self) -> dict[str, Any]:
        """Train until the trial ends, an epoch ends, or a second has passed."""
        with self.gauges.at_work():
            return self._step()

    def _step(self) -> dict[str, Any]:
        began = time.monotonic()
        show_as(self.job.work.name)
        if not self.begun:  # not in setup: Tune may set up a worker whose trial another one has taken
            self.begun = True
            self.gauges.begin(self.job)
            self.heart = Heart(self.storage, self.job, log_file())
            print(f"{self.job.work.name} begins", flush=True)
            return {"node": self.node}  # known from the first moment on, if the node is lost
        while True:
            event = next(self.events)
            if isinstance(event, Failure):
                event = replace(event, log=log_file())
            if not isinstance(event, Progress):
                self.heart.end()
                end = event.error if isinstance(event, Failure) else "done"
                print(f"{self.job.work.name} ends: {end}", flush=True)
                self.gauges.end(event)
                return {"event": event, "node": self.node, "done": True}
            self.gauges.hear(event)
            self.heart.hear(event)
            if event.closes_epoch or event.note or time.monotonic() - began >= INTERVAL:
                if event.closes_epoch and event.stage == "train":
                    return {"event": event, "node": self.node, "epoch": event.epoch, **event.metrics}
                return {"event": event, "node": self.node}

    def cleanup(self) -> None:
        self._leave()
        self.pulse.end()

    def _leave(self) -> None:
        """Leave the trial, if there is one: it may have been stopped at any moment."""
        if hasattr(self, "heart"):
            self.heart.end()
        if hasattr(self, "events"):
            self.events.close()  # type: ignore[attr-defined]

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: the training loop writes a checkpoint of its own after every epoch, under the trial's id."""


def show_as(name: str) -> None:
    """Name this process: the dashboard's page of a node lists its workers by the names of their processes, as ps does.
    Ray names it after the method at each call."""
    with contextlib.suppress(ImportError):  # no part of Ray's public interface
        from ray._raylet import setproctitle  # type: ignore[attr-defined]

        setproctitle(f"ray::{name}")


def return_to_working_directory() -> None:
    """Where the user started the run, if this node has it: a loss of the user's own may read files there."""
    with contextlib.suppress(OSError):
        os.chdir(os.environ.get(WORKING_DIRECTORY, "."))


def log_file() -> str:
    """The file that this worker's standard error goes to; empty if the system does not say."""
    try:
        return os.readlink("/proc/self/fd/2")
    except OSError:
        return ""
