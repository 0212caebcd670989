"""What the training loop adds to a bare one, and where a trial's seconds go, measured in one run.

    python benchmarks/training.py                                    # emoji, as the demo trains
    python benchmarks/training.py --dataset cub --data-root ~/data   # CUB-200-2011, protocol cpu

The bare loop does nothing but forward, backward and step, on the same batches of the same trial, which it has in
memory. The two take turns, and the ratio is the median of their ratios; ours loads, augments, watches the loss, reports
progress and writes a checkpoint. The checkpoint is written once per epoch: it counts with the share that these batches
have of an epoch. Then the parts of a step, one by one, and an evaluation. Last, the allocator
(harness/training/allocator.py): steps and embedding in processes that keep freed memory and in processes that give it
back, in turns. Run it alone.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from harness import config, plan
from harness.data import listing
from harness.data.folds import fold
from harness.spec import Experiment, Job, finish
from harness.storage import Storage
from harness.training import allocator, feeding
from harness.training.checkpoint import Checkpoint
from harness.training.loop import fit
from harness.training.measuring import embed_images, score
from harness.training.optimizers import make_optimizer
from harness.training.setup import Stage, TrialSetup, main_stage, set_up
from harness.training.trial import prepare
from losses.base import Batch

ROUNDS = 9
PROCESSES = 3  # of each kind
AIM = 0.03

Batches = list[Batch]


def prepared(arguments: argparse.Namespace) -> tuple[Job, TrialSetup, Stage]:
    """A final run of the Group Loss, its epoch cut to some batches."""
    root = Path(arguments.data_root).absolute()
    dataset = listing.identify(config.dataset(arguments.dataset), root)
    protocol = config.protocol("cpu" if arguments.dataset != "emoji" else "quick")
    experiment = Experiment(dataset, protocol, (config.loss("group"),), settings={"weights": "package"})
    job = Job(plan.final(experiment, {})[0], dataset, "", data_root=str(root))
    images, _ = finish(prepare(job))
    setup, loss = set_up(job, images, fold(images, dataset, "test"))
    assert loss is not None
    stage = replace(main_stage(setup, loss), epochs=1)
    return job, setup, replace(stage, batches=Few(stage.batches, arguments.batches))  # type: ignore[arg-type]


class Few:
    """The first batches of an epoch."""

    def __init__(self, whole: object, count: int) -> None:
        self.whole, self.count = whole, count

    def __len__(self) -> int:
        return self.count

    def epoch(self, generator: torch.Generator) -> Iterator[Tensor]:
        for _, batch in zip(range(self.count), self.whole.epoch(generator), strict=False):  # type: ignore[attr-defined]
            yield batch


def ours(setup: TrialSetup, stage: Stage, storage: Storage) -> None:
    for _ in fit(setup, stage, storage, Checkpoint()):
        pass


def ratio_to_bare(setup: TrialSetup, stage: Stage, batches: Batches, epoch_steps: int) -> tuple[float, float]:
    """Our loop to a bare one, in turns on the same batches of an epoch of `epoch_steps`; and the share of an epoch that
    the checkpoint takes."""
    writing: list[float] = []
    write = Checkpoint.write

    def timed_write(*arguments: Any) -> None:
        writing.append(seconds(lambda: write(*arguments)))

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(Checkpoint, "write", timed_write):
        mine = seconds(lambda: ours(setup, stage, Storage(folder)))
        plain = seconds(lambda: bare(setup, stage, batches))
    share = len(batches) / epoch_steps
    return (mine - writing[0] * (1 - share)) / plain, writing[0] * share / plain


def bare(setup: TrialSetup, stage: Stage, batches: Batches) -> None:
    model, loss, optimizer = setup.model, stage.loss, make_optimizer(setup.model, stage)
    model.train()
    loss.train()
    for batch in batches:
        optimizer.zero_grad(set_to_none=True)
        loss(model(batch.images), batch.labels).backward()
        optimizer.step()


def parts(setup: TrialSetup, stage: Stage) -> dict[str, float]:
    """Seconds of each part of an epoch's steps."""
    spent: dict[str, float] = defaultdict(float)

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        if setup.device.type == "cuda":
            torch.cuda.synchronize()
        spent[name] += time.perf_counter() - begun

    model, loss, optimizer = setup.model, stage.loss, make_optimizer(setup.model, stage)
    model.train()
    loss.train()
    coming = feeding.load(setup, stage, 1)
    while True:
        with timed("data"):
            batch = next(coming, None)
        if batch is None:
            return spent
        images, labels = batch.images, batch.labels
        with timed("forward"):
            embeddings = model(images)
        with timed("loss"):
            value = loss(embeddings.float(), labels)
        with timed("backward"):
            optimizer.zero_grad(set_to_none=True)
            value.backward()
        with timed("optimizer"):
            optimizer.step()


def seconds(function: Callable[[], object]) -> float:
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


def embed(setup: TrialSetup, count: int) -> float:
    """Seconds to embed all held-out images, from so many of them."""
    few = setup.fold.test[:count]
    return seconds(lambda: list(embed_images(setup, few))) * len(setup.fold.test) / len(few)


def in_process(arguments: argparse.Namespace, keep: bool, batches: int = 8) -> tuple[float, float]:
    """A process of its own: seconds of some steps and of an embedding, where freed memory is kept or given back."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(stepped, (arguments, keep, batches))


def stepped(arguments: argparse.Namespace, keep: bool, count: int) -> tuple[float, float]:
    if keep:
        allocator.keep_freed()
    torch.set_num_threads(arguments.threads)
    _, setup, stage = prepared(arguments)
    kept = [batch for _, batch in zip(range(count), feeding.load(setup, stage, 1), strict=False)]
    bare(setup, stage, kept[:3])  # warm
    return seconds(lambda: bare(setup, stage, kept)), min(embed(setup, 512) for _ in range(2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="emoji")
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--batches", type=int, default=8, help="of an epoch")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    allocator.keep_freed()  # as a trial on a CPU does
    job, setup, stage = prepared(arguments)
    kept: Batches = list(feeding.load(setup, stage, 1))
    epoch_steps = len(stage.batches.whole)  # type: ignore[attr-defined]
    rounds = [ratio_to_bare(setup, stage, kept, epoch_steps) for _ in range(ROUNDS + 1)][1:]  # the first one warms up
    ratios = sorted(ratio for ratio, _ in rounds)
    saving = statistics.median(share for _, share in rounds)
    images = sum(len(batch.labels) for batch in kept)
    print(f"{arguments.dataset}, {setup.trial.backbone} at {setup.trial.crop} px, {arguments.threads} threads")
    print(f"  {len(kept)} batches, {images} images; an epoch has {len(setup.fold.train)}")
    print(
        f"  ours adds {statistics.median(ratios) - 1:+.1%} to a bare loop (aim: at most {AIM:.0%}; "
        f"{ROUNDS} rounds: {ratios[0] - 1:+.1%} to {ratios[-1] - 1:+.1%})"
    )
    print(f"  of that the checkpoint, once per epoch: {saving:.1%}")

    spent = parts(setup, stage)
    total = sum(spent.values())
    print("  a step: " + ", ".join(f"{name} {value / total:.1%}" for name, value in spent.items()))

    embedding = min(embed(setup, 1024) for _ in range(2))  # the first one warms up
    generator = torch.Generator().manual_seed(0)
    whole = torch.nn.functional.normalize(torch.randn(len(setup.fold.test), setup.model.dim, generator=generator))
    scoring = seconds(lambda: finish(score(setup, whole, job.dataset.recall_at)))
    evaluation, epoch = embedding + scoring, total * len(setup.fold.train) / images
    print(f"  an evaluation: embedding {embedding / evaluation:.1%}, metrics {scoring / evaluation:.1%}")
    print(f"  an evaluation takes {evaluation / epoch:.0%} of an epoch of training")

    pairs = [(in_process(arguments, keep=False), in_process(arguments, keep=True)) for _ in range(PROCESSES)]
    steps, embeddings = (statistics.median(back[i] / keep[i] for back, keep in pairs) for i in range(2))
    print(f"  freed memory given back: a step takes {steps:.2f}x as long, embedding {embeddings:.2f}x")


if __name__ == "__main__":
    main()
