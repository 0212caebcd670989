"""Trials on the small dataset."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

from harness import config, plan
from harness.data import listing, loading
from harness.spec import Dataset, Experiment, Job, Progress, Result, Trial
from harness.training import setup
from harness.training import trial as train


def trial(loss: str = "triplet", knobs: dict[str, Any] | None = None, **settings: Any) -> Trial:
    specs = (config.loss(loss),)
    asked = Experiment(blobs(), config.protocol("tiny"), specs, settings=settings, knobs={loss: knobs or {}})
    return plan.final(asked, {})[0]


def blobs() -> Dataset:
    return listing.identify(config.dataset("blobs"), Path())


def set_up(one: Trial) -> tuple[setup.Bench, Any]:
    images = loading.embedded(blobs())
    return setup.set_up(Job(one, blobs(), ""), images, loading.fold(images, blobs(), one.fold))


def run(one: Trial, artifacts: Path, **options: Any) -> tuple[Result, list[Progress]]:
    running = train.run(Job(one, blobs(), str(artifacts), threads=1, **options))
    seen = []
    while True:
        try:
            seen.append(next(running))
        except StopIteration as end:
            return end.value, seen


def finish(steps: Generator[Any, None, Any]) -> Any:
    """What a generator returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
