"""How fast images come out of the cache, against torchvision's ImageFolder + DataLoader, measured in one run.

    python benchmarks/loading.py ~/datasets/CUB_200_2011/images
    python benchmarks/loading.py ~/photos --images 3000

Any folder of class folders will do, from 270 images on. Both sides resize, crop, flip and return batches of floats;
torchvision decodes with PIL in two workers, the harness reads what the first use has decoded. The two are measured in
turns, several times; the ratio is that of the medians. Then follows the share of a training step that waits for data,
with EfficientNet-Lite0 at 128 px.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import losses
from harness import config, plan
from harness.data import listing, loading
from harness.data.folds import Images, fold
from harness.spec import Dataset, Experiment, Job, Trial, finish
from harness.training import feeding
from harness.training.optimizers import make_optimizer
from harness.training.setup import Stage, TrialSetup, main_stage, set_up

WORKERS = 2
BATCH = 54
PREFETCHED = 4  # batches that the workers prepare ahead
ROUNDS = 3
TARGET = 10.0
WAITING = 0.03

PIL = {
    "crop": lambda trial: [v2.Resize((trial.resize, trial.resize)), v2.RandomCrop(trial.crop)],
    "resized-crop": lambda trial: [
        v2.Resize(trial.resize),
        v2.RandomResizedCrop(trial.crop, scale=(trial.crop_scale, 1.0)),
    ],
}


def a_trial(dataset: Dataset, **settings: object) -> Trial:
    experiment = Experiment(dataset, config.protocol("cpu"), (config.loss("normalized_softmax"),), settings=settings)
    return plan.final(experiment, {})[0]


def load(dataset: Dataset, trial: Trial) -> tuple[Images, float]:
    """The images, and the seconds their first use took."""
    begun = time.perf_counter()
    images = finish(loading.load(dataset, trial, ""))
    return images, time.perf_counter() - begun


def prepared(trial: Trial, dataset: Dataset, images: Images) -> tuple[TrialSetup, Stage]:
    setup, loss = set_up(Job(trial, dataset, "", device="cpu"), images, fold(images, dataset, "test"))
    assert loss is not None
    return setup, main_stage(setup, loss)


def ours(setup: TrialSetup, stage: Stage, count: int, epoch: int) -> float:
    """Images per second."""
    seen, begun = 0, time.perf_counter()
    for batch in feeding.load(setup, stage, epoch):
        seen += len(batch.labels)
        if seen >= count:
            break
    return seen / (time.perf_counter() - begun)


def theirs(trial: Trial, folder: Path, count: int) -> float:
    """Images per second, without the start of the workers."""
    steps = [*PIL[trial.augment](trial), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    dataset = ImageFolder(str(folder), v2.Compose(steps))
    chosen = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).tolist()[
        : count + PREFETCHED * BATCH
    ]
    batches: Iterator[tuple[Tensor, Tensor]] = iter(DataLoader(Subset(dataset, chosen), BATCH, num_workers=WORKERS))
    for _ in range(PREFETCHED):  # these were prefetched before the clock started
        next(batches)
    seen, begun = 0, time.perf_counter()
    for batch, _ in batches:
        seen += len(batch)
    return seen / (time.perf_counter() - begun)


def waiting(setup: TrialSetup, stage: Stage, steps: int) -> float:
    """The share of a training step spent on getting its batch."""
    optimizer = make_optimizer(setup.model, stage)
    setup.model.train()
    fetching = computing = 0.0
    batches = feeding.load(setup, stage, 1)
    for step in range(steps + 1):
        begun = time.perf_counter()
        batch = next(batches)
        ready = time.perf_counter()
        optimizer.zero_grad()
        stage.loss(setup.model(batch.images), batch.labels).backward()
        optimizer.step()
        if step:  # the first one warms up
            fetching += ready - begun
            computing += time.perf_counter() - ready
    return fetching / (fetching + computing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a folder of class folders of images")
    parser.add_argument("--images", type=int, default=1500, help="images of each measurement of the other side")
    parser.add_argument("--steps", type=int, default=15, help="training steps timed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ.setdefault("HARNESS_CACHE", scratch)
        measure(arguments.folder, arguments.images, arguments.steps)


def measure(folder: Path, count: int, steps: int) -> None:
    dataset = listing.identify(replace(config.dataset(f"{folder.absolute()}"), name="benchmark"), Path())
    n, least = dataset.train_images + dataset.test_images, (PREFETCHED + 1) * BATCH
    if n < least:
        raise SystemExit(f"{folder}: has {n} images; at least {least} are needed to time their loading")
    print(f"{n} images of {folder}; {torch.get_num_threads()} torch threads here, {WORKERS} workers there\n")
    for augment, aspect in (("crop", "square"), ("resized-crop", "kept")):
        trial = a_trial(dataset, augment=augment, aspect=aspect, crop_scale=0.16)
        images, seconds = load(dataset, trial)
        setup, stage = prepared(trial, dataset, images)
        ours(setup, stage, count, 0)  # pages come into memory
        speeds = [
            (ours(setup, stage, 4 * count, epoch), theirs(trial, folder, count)) for epoch in range(1, ROUNDS + 1)
        ]
        mine, other = (statistics.median(side) for side in zip(*speeds, strict=True))
        aim = f"  (aim: at least {TARGET:.0f}x)" if augment == "crop" else ""
        print(f"{augment}, {trial.resize} -> {trial.crop} px: first use decoded everything in {seconds:.1f} s")
        print(f"  ImageFolder + DataLoader {other:8.0f} images/s")
        print(f"  from the cache           {mine:8.0f} images/s   {mine / other:.1f}x{aim}")
        if augment == "crop":
            share = waiting(setup, stage, steps)
            print(f"  waiting for data: {share:.2%} of a step of {backbone(setup)}  (aim: under {WAITING:.0%})")


def backbone(setup: TrialSetup) -> str:
    return f"{setup.trial.backbone} with {losses.get(setup.trial.loss).title} at {setup.trial.crop} px"


if __name__ == "__main__":
    main()
