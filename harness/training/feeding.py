"""Batches on their way to the network: augmented, as floats, on the device."""

import queue
import threading
from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor

from harness.data import transforms
from harness.training.setup import Stage, TrialSetup, seed

Item = TypeVar("Item")


def load(setup: TrialSetup, stage: Stage, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Images and labels of each batch of one epoch, augmented, on the device."""
    return feed(setup.device, augmented(setup, stage, epoch))


def augmented(setup: TrialSetup, stage: Stage, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    trial, fold = setup.trial, setup.fold
    order = torch.Generator().manual_seed(seed(trial, f"{stage.name}:{epoch}:batches"))
    looks = torch.Generator().manual_seed(seed(trial, f"{stage.name}:{epoch}:augment"))
    for indices in islice(stage.batches.epoch(order), stage.steps_of(epoch)):
        images = transforms.augmented(setup.images, fold.train[indices], trial, stage.augment, looks)
        yield images, fold.train_labels[indices]


def feed(device: torch.device, batches: Iterator[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches on the device, images as floats in 0..1, channels last.

    For a GPU, another thread prepares them in pinned memory while the GPU computes. On a CPU, they are prepared in the
    training thread.
    """
    if device.type == "cuda":
        batches = prefetch((images.pin_memory(), labels.pin_memory()) for images, labels in batches)
    for images, labels in batches:
        images = transforms.to_float(images.to(device, non_blocking=True))
        yield images.contiguous(memory_format=torch.channels_last), labels.to(device, non_blocking=True)


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
