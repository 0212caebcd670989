"""The process that runs trials on a node."""

import contextlib
import math
import os
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, ClassVar

import ray
from ray import tune

from harness import storage as names
from harness.spec import Event, Failure, Job, Progress, Result, Trial
from harness.storage import Storage

LOOK_SECONDS = 1.0  # how often a running trial is heard of, at most


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
            self.storage.write_json(names.sign_of_life(trial.id), {"name": trial.name, **where, "progress": progress})

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
