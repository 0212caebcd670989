"""What Prometheus finds of a run: gauges of each running trial, set by its worker, and of the whole, set by the driver.

Ray drops a series that is not set for half a minute. So each is set again every few seconds, also while a trial has
nothing to report, and those of a trial that has ended vanish. configs/grafana.json shows them.
"""

import contextlib
import math
import threading
import time
from collections.abc import Iterator
from typing import ClassVar

from ray.util.metrics import Gauge

from harness.execution.census import Census
from harness.execution.pulse import Pulse
from harness.spec import Event, Job, Progress, Result

INTERVAL = 5.0  # seconds
REST = 30.0  # seconds without a step, after which a trial counts as stopped: its worker hears nothing of that
TAGS = ("trial", "loss", "dataset", "purpose", "fold")
OF_A_TRIAL = {
    "loss": "The training loss of a running trial",
    "images_per_second": "Images per second of a running trial; 0 while it neither trains nor embeds",
    "recall_at_1": "Recall@1 of a running trial, where its epochs are measured, and of one that ends",
}


class TrialGauges:
    """In a worker: the last values of the trial that it is at."""

    def __init__(self) -> None:
        self.gauges = {name: Gauge(f"harness_{name}", text, tag_keys=TAGS) for name, text in OF_A_TRIAL.items()}
        self.tags: dict[str, str] = {}
        self.values: dict[str, float] = {}
        self.lock = threading.Lock()  # the values of a trial never go with the tags of the next
        self.resting: float | None = None  # since when the worker has been waiting to be asked for the next step

    def begin(self, job: Job) -> None:
        work = job.work
        with self.lock:
            self.values = {}
            self.tags = {
                "trial": work.name,
                "loss": work.loss,
                "dataset": work.dataset,
                "purpose": job.origin.get("purpose", ""),
                "fold": work.fold,
            }

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """While the worker is at a step of the trial."""
        self.resting = None
        try:
            yield
        finally:
            self.resting = time.monotonic()

    def hear(self, event: Event) -> None:
        """Keep what an event says; it is exported by the next beat."""
        values: dict[str, float] = {}
        if isinstance(event, Progress):
            values = {"loss": event.loss, "images_per_second": event.images_per_second}
        if isinstance(event, Progress | Result) and "R@1" in event.metrics:
            values["recall_at_1"] = event.metrics["R@1"]
        with self.lock:
            self.values.update({name: value for name, value in values.items() if not math.isnan(value)})

    def export(self) -> None:
        resting = self.resting
        if resting is not None and time.monotonic() - resting > REST:
            return
        with self.lock:
            for name, value in self.values.items():
                self.gauges[name].set(value, tags=self.tags)

    def end(self, event: Event) -> None:
        """Export a trial's last values, a last time: they are seen for some seconds more, but its speed is 0."""
        self.hear(event)
        if self.values:
            self.values["images_per_second"] = 0.0
        self.export()
        with self.lock:
            self.values = {}


class RunGauges:
    """In the driver: the run as a whole."""

    STATES: ClassVar[tuple[str, ...]] = ("done", "running", "waiting", "failed")

    def __init__(self, census: Census, dataset: str) -> None:
        self.census = census
        self.dataset = {"dataset": dataset}
        self.trials = Gauge("harness_trials", "Trials of a run by their state", tag_keys=("dataset", "state"))
        self.speed = Gauge("harness_run_images_per_second", "Of all running trials together", tag_keys=("dataset",))
        self.hours = Gauge("harness_run_hours", "Hours for which trials have run, all together", tag_keys=("dataset",))

    def export(self) -> None:
        for state in self.STATES:
            self.trials.set(getattr(self.census, state), tags={**self.dataset, "state": state})
        self.speed.set(self.census.images_per_second, tags=self.dataset)
        self.hours.set(self.census.hours, tags=self.dataset)


@contextlib.contextmanager
def exported(census: Census, dataset: str) -> Iterator[None]:
    """Export the gauges of a run while it runs."""
    gauges = RunGauges(census, dataset)
    pulse = Pulse(gauges.export, INTERVAL)
    pulse.start()
    try:
        yield
    finally:
        pulse.end()
