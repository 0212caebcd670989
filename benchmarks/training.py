"""What the training loop adds to a bare one, and where a trial's seconds go, measured in one run.

    python benchmarks/training.py                                    # emoji, as the demo trains
    python benchmarks/training.py --dataset cub --data-root ~/data   # CUB-200-2011, protocol cpu

The bare loop does nothing but forward, backward and step, on the same batches of the same trial, which it has in
memory. The two take turns, and the ratio is the median of their ratios; an epoch of ours loads, augments, watches the
loss, reports progress and writes a checkpoint. Then the parts of a step, one by one, an evaluation, and both once more
with an allocator that gives freed memory back (harness/allocator.py). Run it alone.
"""

import argparse
import ctypes
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from harness import allocator, config, data, listing, loop, plan, train
from harness.spec import Experiment, Job
from harness.storage import Storage

ROUNDS = 5
AIM = 0.03
MEGABYTE = 2**20

Batches = list[tuple[Tensor, Tensor]]


def set_up(arguments: argparse.Namespace) -> tuple[Job, loop.Bench, loop.Stage]:
    """A final run of the Group Loss, its epoch cut to so many batches."""
    root = Path(arguments.data_root).absolute()
    dataset = listing.identify(config.dataset(arguments.dataset), root)
    protocol = config.protocol("cpu" if arguments.dataset != "emoji" else "quick")
    asked = Experiment(dataset, protocol, (config.loss("group"),), settings={"weights": "package"})
    job = Job(plan.final(asked, {})[0], dataset, "", data_root=str(root))
    loading = train.prepare(job)
    try:
        while True:
            next(loading)
    except StopIteration as end:
        images = end.value
    bench, loss = train.set_up(job, images, data.fold(images, dataset, "test"))
    assert loss is not None
    stage = replace(train.main_stage(bench, loss), epochs=1)
    return job, bench, replace(stage, batches=Few(stage.batches, arguments.batches))  # type: ignore[arg-type]


class Few:
    """The first batches of an epoch."""

    def __init__(self, whole: object, count: int) -> None:
        self.whole, self.count = whole, count

    def __len__(self) -> int:
        return self.count

    def epoch(self, generator: torch.Generator) -> Iterator[Tensor]:
        for _, batch in zip(range(self.count), self.whole.epoch(generator), strict=False):  # type: ignore[attr-defined]
            yield batch


def ours(bench: loop.Bench, stage: loop.Stage, storage: Storage) -> None:
    for _ in loop.fit(bench, stage, storage, loop.Checkpoint()):
        pass


def bare(bench: loop.Bench, stage: loop.Stage, batches: Batches) -> None:
    model, loss, optimizer = bench.model, stage.loss, loop.make_optimizer(bench, stage)
    model.train()
    loss.train()
    for images, labels in batches:
        optimizer.zero_grad(set_to_none=True)
        loss(model(images), labels).backward()
        optimizer.step()


def parts(bench: loop.Bench, stage: loop.Stage) -> dict[str, float]:
    """Seconds of each part of an epoch's steps."""
    spent: dict[str, float] = defaultdict(float)

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        if bench.device.type == "cuda":
            torch.cuda.synchronize()
        spent[name] += time.perf_counter() - begun

    model, loss, optimizer = bench.model, stage.loss, loop.make_optimizer(bench, stage)
    model.train()
    loss.train()
    coming = loop.load(bench, stage, 1)
    while True:
        with timed("data"):
            batch = next(coming, None)
        if batch is None:
            return spent
        images, labels = batch
        with timed("forward"):
            embeddings = model(images)
        with timed("loss"):
            value = loss(embeddings.float(), labels)
        with timed("backward"):
            optimizer.zero_grad(set_to_none=True)
            value.backward()
        with timed("optimizer"):
            optimizer.step()


def give_back() -> None:
    """The allocator as glibc's own rule leaves it once a large tensor was freed."""
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(allocator.M_MMAP_MAX, 65536)
    mallopt(allocator.M_MMAP_THRESHOLD, 32 * MEGABYTE)
    mallopt(allocator.M_TRIM_THRESHOLD, 64 * MEGABYTE)


def seconds(function: Callable[[], object]) -> float:
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="emoji")
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--batches", type=int, default=20, help="of an epoch")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    kept_memory = allocator.keep_freed()  # as a trial does
    job, bench, stage = set_up(arguments)
    kept: Batches = list(loop.load(bench, stage, 1))
    with tempfile.TemporaryDirectory() as folder:
        storage = Storage(folder)
        ours(bench, stage, storage)  # warm
        bare(bench, stage, kept)
        taken = [
            (seconds(lambda: ours(bench, stage, storage)), seconds(lambda: bare(bench, stage, kept)))
            for _ in range(ROUNDS)
        ]
        state = seconds(lambda: loop.Checkpoint(state={"model": bench.model.state_dict()}).write(storage, bench.trial))
    plain = statistics.median(bare for _, bare in taken)
    ratios = sorted(mine / bare for mine, bare in taken)
    images = sum(len(labels) for _, labels in kept)
    print(f"{arguments.dataset}, {bench.trial.backbone} at {bench.trial.crop} px, {arguments.threads} threads")
    print(f"  {len(kept)} batches, {images} images; an epoch has {len(bench.fold.train)}")
    print(
        f"  ours adds {statistics.median(ratios) - 1:+.1%} to a bare loop (aim: at most {AIM:.0%}; "
        f"{ROUNDS} rounds: {ratios[0] - 1:+.1%} to {ratios[-1] - 1:+.1%})"
    )
    print(f"  of that the checkpoint, once an epoch: {state / plain:.1%} of these batches")

    spent = parts(bench, stage)
    total = sum(spent.values())
    print("  a step: " + ", ".join(f"{name} {value / total:.1%}" for name, value in spent.items()))

    few = bench.fold.test[:1024]

    def embed() -> float:
        return seconds(lambda: train.quietly(train.embed_images(bench, few))) * len(bench.fold.test) / len(few)

    embed()  # warm
    embedding = embed()
    generator = torch.Generator().manual_seed(0)
    whole = torch.nn.functional.normalize(torch.randn(len(bench.fold.test), bench.model.dim, generator=generator))
    scoring = seconds(lambda: train.score(bench, whole, job.dataset.recall_at))
    evaluation, epoch = embedding + scoring, total * len(bench.fold.train) / images
    print(f"  an evaluation: embedding {embedding / evaluation:.1%}, metrics {scoring / evaluation:.1%}")
    print(f"  an evaluation takes {evaluation / epoch:.0%} of an epoch of training")

    if kept_memory:
        stepping, embedded = [], []
        for _ in range(ROUNDS):
            give_back()
            slow = seconds(lambda: bare(bench, stage, kept)), embed()
            allocator.keep_freed()
            bare(bench, stage, kept[:1])  # the heap grows back
            fast = seconds(lambda: bare(bench, stage, kept)), embed()
            stepping.append(slow[0] / fast[0])
            embedded.append(slow[1] / fast[1])
        print(
            f"  freed memory kept: a step {statistics.median(stepping):.2f}x as fast as with glibc's own rule, "
            f"embedding {statistics.median(embedded):.2f}x"
        )


if __name__ == "__main__":
    main()
