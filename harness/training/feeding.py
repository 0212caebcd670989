"""Batches on their way to the network."""

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

import torch
from torch import Tensor

from harness.data import transforms
from harness.training.setup import Bench, Stage, seed

Item = TypeVar("Item")


def load(bench: Bench, stage: Stage, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of one epoch, augmented, on the device."""
    trial, fold = bench.trial, bench.fold
    order = torch.Generator().manual_seed(seed(trial, f"{stage.name}:{epoch}:batches"))
    looks = torch.Generator().manual_seed(seed(trial, f"{stage.name}:{epoch}:augment"))
    return feed(
        bench.device,
        (
            (
                transforms.augmented(bench.images, fold.train[chosen], trial, stage.augment, looks),
                fold.train_labels[chosen],
            )
            for chosen in stage.batches.epoch(order)
        ),
    )


def feed(device: torch.device, batches: Iterator[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches on the device, images as floats in 0..1, channels last. For a GPU they are prepared in pinned memory by a
    thread of their own, while it computes; a CPU has better things to do."""
    if device.type == "cuda":
        batches = prefetch((images.pin_memory(), labels.pin_memory()) for images, labels in batches)
    for images, labels in batches:
        images = transforms.to_float(images.to(device, non_blocking=True))
        yield images.contiguous(memory_format=torch.channels_last), labels.to(device, non_blocking=True)


def prefetch(items: Iterator[Item], depth: int = 2) -> Iterator[Item]:
    """The same items, made by a thread: `depth` wait while one more is made. What it raises is raised here."""
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
