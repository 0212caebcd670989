"""Batches on their way to the network: in order, as floats, in memory that does not grow with the dataset."""

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.training import feeding

# Builds the cache, trains an epoch and evaluates, on small crops, then loads all images again at full size. Prints the
# largest resident memory on the way, without the pages of mapped files, which the system drops when it needs the room,
# and the size of the cache. Both in bytes.
TRAIN = """
import resource, sys, threading
from dataclasses import replace
from pathlib import Path

from harness.data import cache, listing
from harness.data.folds import fold
from harness import config, plan
from harness.training import feeding, setup
from harness.training.trial import prepare, run
from harness.spec import Experiment, Job, finish

folder, storage = sys.argv[1:]
peak, over = 0, threading.Event()

def sample():
    global peak
    while not over.wait(0.005):
        _, resident, mapped, *_ = map(int, Path("/proc/self/statm").read_text().split())
        peak = max(peak, (resident - mapped) * resource.getpagesize())

feeding.EMBED_BATCH = 32  # as large in evaluation as in training

dataset = listing.identify(config.dataset(folder), Path())
settings = {
    "backbone": "test_efficientnet",
    "weights": "none",
    "dim": 8,
    "resize": 128,
    "crop": 32,
    "augment": "crop",
    "epochs": 1,
    "classes_per_batch": 8,
    "samples_per_class": 4,
}
experiment = Experiment(dataset, config.protocol("quick"), (config.loss("triplet"),), settings=settings)
job = Job(plan.final(experiment, {})[0], dataset, storage, threads=1)
thread = threading.Thread(target=sample)
thread.start()
stages = {progress.stage for progress in run(job)}
images, _ = finish(prepare(job))
at_work, loss = setup.set_up(job, images, fold(images, dataset, "test"))
at_work = replace(at_work, trial=replace(job.trial, crop=128))
for _ in feeding.load(at_work, setup.main_stage(at_work, loss), 1):
    pass
for _ in feeding.feed(at_work.device, feeding.plain(at_work, at_work.fold.test)):
    pass
over.set()
thread.join()
assert {"images", "train", "evaluate"} <= stages, stages
print(peak, sum(summary.bytes for summary in cache.summaries()))
"""


def alive() -> set[threading.Thread]:
    return set(threading.enumerate())


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit, "it never became true"
        time.sleep(0.005)


# --- prefetch ---


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_items_come_in_order_from_another_thread(depth: int) -> None:
    before = alive()
    makers = set()

    def items() -> Iterator[int]:
        for item in range(100):
            makers.add(threading.current_thread())
            yield item

    assert list(feeding.prefetch(items(), depth)) == list(range(100))
    assert len(makers) == 1
    assert not makers & before
    assert alive() <= before


def test_nothing_in_is_nothing_out() -> None:
    assert list(feeding.prefetch(iter(()))) == []


@pytest.mark.parametrize("error", [ValueError("a broken batch"), KeyboardInterrupt("enough")])
def test_what_is_raised_while_preparing_is_raised_to_the_consumer_after_the_items_before_it(
    error: BaseException,
) -> None:
    before = alive()

    def items() -> Iterator[int]:
        yield from (1, 2, 3)
        raise error

    made = feeding.prefetch(items())
    assert [next(made), next(made), next(made)] == [1, 2, 3]
    with pytest.raises(type(error), match=str(error)) as raised:
        next(made)
    assert raised.value is error
    assert alive() <= before


def test_closed_early_it_stops_its_thread() -> None:
    before = alive()
    items = feeding.prefetch(itertools.count())
    assert [next(items), next(items)] == [0, 1]
    assert len(alive() - before) == 1
    items.close()  # type: ignore[attr-defined]
    assert alive() <= before


def test_a_consumer_that_fails_stops_the_thread_too() -> None:
    before = alive()

    def consume() -> None:
        for item in feeding.prefetch(itertools.count()):
            if item == 3:
                raise RuntimeError("the network failed")

    with pytest.raises(RuntimeError, match="the network failed"):
        consume()
    until(lambda: alive() <= before)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_while_one_item_is_used_depth_wait_and_one_more_is_in_hand(depth: int) -> None:
    made, requested, ahead = 0, 0, []

    def items() -> Iterator[int]:
        nonlocal made
        for item in range(100):
            made += 1
            ahead.append(made - requested)
            yield item

    coming = feeding.prefetch(items(), depth)
    for used in range(1, 101):
        requested = used
        next(coming)
        until(lambda used=used: made == min(used + depth + 1, 100))  # it works ahead
    assert max(ahead) == depth + 1  # and never farther
    coming.close()  # type: ignore[attr-defined]


# --- feed ---


def batches(count: int = 3) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 4, 6, 6, 3), dtype=torch.uint8, generator=generator)
    return [(batch.permute(0, 3, 1, 2), torch.arange(4) + 10 * place) for place, batch in enumerate(pixels)]


def check_fed(fed: list[tuple[Tensor, Tensor]], given: list[tuple[Tensor, Tensor]]) -> None:
    assert len(fed) == len(given)
    for (images, labels), (pixels, numbers) in zip(fed, given, strict=True):
        assert images.dtype == torch.float32
        assert images.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(images.cpu(), pixels / 255)
        assert torch.equal(labels.cpu(), numbers)


def test_batches_are_floats_from_0_to_1_channels_last_with_their_labels() -> None:
    before = alive()
    fed = []
    for images, labels in feeding.feed(torch.device("cpu"), iter(batches())):
        fed.append((images, labels))
        assert alive() <= before  # a CPU prepares its batches itself
    check_fed(fed, batches())


def test_batches_that_are_floats_already_are_only_laid_out() -> None:
    given = torch.rand(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    ((images, _),) = feeding.feed(torch.device("cpu"), iter([(given, torch.arange(2))]))
    assert torch.equal(images, given)
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_for_a_gpu_another_thread_pins_the_batches_before_they_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    here, pinned, copied = threading.current_thread(), [], []

    def pin(tensor: Tensor) -> Tensor:
        assert threading.current_thread() is not here
        pinned.append(tensor)
        return tensor

    def to(tensor: Tensor, device: torch.device, *, non_blocking: bool) -> Tensor:
        assert threading.current_thread() is here
        assert non_blocking
        assert device.type == "cuda"
        copied.append(tensor)
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", to)
    fed = list(feeding.feed(torch.device("cuda"), iter(batches())))
    monkeypatch.undo()
    check_fed(fed, batches())
    assert [id(tensor) for tensor in copied] == [id(tensor) for tensor in pinned]
    assert copied[0].dtype == torch.uint8  # a quarter of the bytes of floats


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_is_fed_the_same_as_a_cpu() -> None:
    fed = list(feeding.feed(torch.device("cuda"), iter(batches())))
    assert all(images.is_cuda and labels.is_cuda for images, labels in fed)
    check_fed(fed, batches())


# --- memory ---


def generate(folder: Path, count: int, classes: int = 20) -> Path:
    """Class folders of tiny images, which the cache makes large."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, 8 * 8 * 3), dtype=np.uint8)
    for label in range(classes):
        (folder / f"{label:02}").mkdir(parents=True)
    for number, image in enumerate(pixels):
        (folder / f"{number % classes:02}" / f"{number}.ppm").write_bytes(b"P6 8 8 255\n" + image.tobytes())
    return folder


def start(folder: Path, place: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "HARNESS_CACHE": str(place / "cache"), "MALLOC_ARENA_MAX": "1"}
    words = [sys.executable, "-c", TRAIN, str(folder), str(place / "storage")]
    return subprocess.Popen(
        words, cwd=Path(__file__).parent.parent.parent, env=environment, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_memory_does_not_grow_with_the_dataset(tmp_path: Path) -> None:
    running = [start(generate(tmp_path / f"{count}", count), tmp_path / f"run {count}") for count in (200, 2000)]
    printed = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    (small, small_cache), (large, large_cache) = (map(int, line.split()) for line in printed)
    assert large_cache - small_cache > 85_000_000
    assert large - small < 35_000_000
