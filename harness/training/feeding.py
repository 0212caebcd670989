"""Batches on their way to the network: augmented, as floats, on the device."""

import queue
import threading
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor

from harness.data import transforms
from harness.training.setup import Stage, TrialSetup, seed
from losses.hooks import Batch, Planned

EMBED_BATCH = 256

Item = TypeVar("Item")


def load(setup: TrialSetup, stage: Stage, epoch: int, planned: Sequence[Planned] | None = None) -> Iterator[Batch]:
    """The batches of one epoch, augmented, on the device: the planned ones, or else the stage's own."""
    for images, labels, indices, tag in feed(setup.device, augmented(setup, stage, epoch, planned)):
        yield Batch(images, labels, indices, tag, epoch, stage.schedule_epochs, stage.frozen, setup.teacher)


def augmented(
    setup: TrialSetup, stage: Stage, epoch: int, planned: Sequence[Planned] | None
) -> Iterator[tuple[Tensor, Tensor, Tensor, int]]:
    trial, fold = setup.trial, setup.fold
    order = torch.Generator().manual_seed(seed(trial, f"{stage.name}:{epoch}:batches"))
    looks = torch.Generator().manual_seed(seed(trial, f"{stage.name}:{epoch}:augment"))
    chosen = map(Planned, stage.batches.epoch(order)) if planned is None else iter(planned)
    for indices, tag in islice(chosen, stage.steps_of(epoch)):
        images = transforms.augmented(setup.images, fold.train[indices], trial, stage.augment, looks)
        yield images, fold.train_labels[indices], indices, tag


def plain(setup: TrialSetup, indices: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """These images as they are evaluated, with their indices."""
    for part in indices.split(EMBED_BATCH):
        yield transforms.plain(setup.images, part, setup.trial), part


def feed(device: torch.device, batches: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Batches on the device, images as floats in 0..1, channels last; whatever comes with the images comes along.

    For a GPU, another thread prepares them in pinned memory while the GPU computes. On a CPU, they are prepared in the
    training thread.
    """
    if device.type == "cuda":
        batches = prefetch(tuple(map(pinned, batch)) for batch in batches)
    for images, *rest in batches:
        images = transforms.to_float(images.to(device, non_blocking=True))
        yield images.contiguous(memory_format=torch.channels_last), *(moved(part, device) for part in rest)


def pinned(part: Any) -> Any:
    return part.pin_memory() if isinstance(part, Tensor) else part


def moved(part: Any, device: torch.device) -> Any:
    return part.to(device, non_blocking=True) if isinstance(part, Tensor) else part


def prefetch(items: Iterator[Item], depth: int = 2) -> Iterator[Item]:
    """The same items, made by another thread: `depth` of them wait while the next is made. An exception of that thread
    is raised here."""
    ready: queue.Queue[tuple[Item | None, BaseException | None]] = queue.Queue(depth)
    over = threading.Event()

    def put(item: Item | None, error: BaseException | None) -> None:
        while not over.is_set():
            try:
                return ready.put((item, error), timeout=0.1)
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                put(item, None)
                if over.is_set():
                    return
            put(None, StopIteration())
        except BaseException as error:
            put(None, error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        over.set()
        thread.join()
