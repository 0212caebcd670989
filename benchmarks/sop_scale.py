"""The headline command at its real size: where seconds and memory go, on a stand-in of Stanford Online Products.

    python benchmarks/sop_scale.py                       # 120,053 generated images, two losses: an hour on two cores
    python benchmarks/sop_scale.py --fraction 0.05       # the same with a twentieth of the classes: minutes
    python benchmarks/sop_scale.py --folder ./products --classes 1000   # only make class folders of 4 to 7 images

The stand-in has the lists and the exact counts of the real one (11,318 and 11,316 classes, 59,551 and 60,502 images),
which the reader of the dataset checks. Its products are generated: a few coloured shapes per class, seen from a
different angle and in a different light in each image, so that classes can be learned and unseen ones retrieved. Each
loss is trained for one epoch under the protocol cpu, with EfficientNet-Lite0 at 32 px, by the same code that
`harness run` runs in a worker, in a process of its own. The seconds are those of that run; the bare loop does forward,
backward and step on the same batches, in turns with ours. Run it alone.
"""

import argparse
import functools
import inspect
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from training import Few, ratio_to_bare, seconds  # benchmarks/training.py

from harness import config, plan
from harness.data import listing, sampler
from harness.data.folds import fold
from harness.evaluation import metrics
from harness.spec import Dataset, Experiment, Job, Trial, finish
from harness.training import allocator, feeding, loop, trial
from harness.training.measuring import embed_images
from harness.training.setup import main_stage, set_up

SIDE = 40  # of a generated image, in pixels
SIZE = {"resize": 36, "crop": 32}
SUPER_CLASSES = ("bicycle", "cabinet", "chair", "coffee_maker", "fan", "kettle")
STEPS, ROUNDS = 24, 5  # of the comparison with a bare loop
AIM = 1.1


# --- generated products ---


@dataclass(frozen=True)
class Shape:
    """A coloured polygon; lengths are shares of the image's side."""

    corners: int
    centre: np.ndarray
    radii: np.ndarray
    angle: float
    colour: np.ndarray


def product(random: np.random.Generator) -> list[Shape]:
    """What the images of a class share."""
    return [
        Shape(
            corners=(3, 4, 12)[random.integers(3)],
            centre=random.uniform(-0.28, 0.28, 2),
            radii=random.uniform(0.1, 0.3, 2),
            angle=random.uniform(0, np.pi),
            colour=random.integers(0, 256, 3),
        )
        for _ in range(4)
    ]


def photograph(shapes: list[Shape], random: np.random.Generator) -> Image.Image:
    """One view: turned, moved, nearer or farther, in some light, before some grey."""
    turn, zoom, shift = random.uniform(-0.3, 0.3), random.uniform(0.85, 1.15), random.uniform(-0.08, 0.08, 2)
    light = random.uniform(0.8, 1.2) * random.uniform(0.9, 1.1, 3)
    image = Image.new("RGB", (SIDE, SIDE), (int(random.integers(120, 256)),) * 3)
    pen = ImageDraw.Draw(image)
    rotation = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    for shape in shapes:
        angles = shape.angle + np.arange(shape.corners) * 2 * np.pi / shape.corners
        outline = np.stack([np.cos(angles), np.sin(angles)], axis=1) * shape.radii + shape.centre
        points = ((outline @ rotation) * zoom + shift + 0.5) * SIDE
        colour = np.clip(shape.colour * light, 0, 255).astype(int)
        pen.polygon([tuple(point) for point in points.tolist()], fill=tuple(colour.tolist()))
    noisy = np.asarray(image) + random.normal(0, 8, (SIDE, SIDE, 1))
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def class_folders(folder: Path, classes: int, least: int = 4, most: int = 7) -> None:
    """A folder of class folders of `least` to `most` images each."""
    for number in range(classes):
        random = np.random.default_rng([0, number])
        shapes = product(random)
        inner = folder / f"{number:05d}"
        inner.mkdir(parents=True, exist_ok=True)
        for image in range(int(random.integers(least, most + 1))):
            photograph(shapes, random).save(inner / f"{image}.jpg", quality=90)


def stand_in(folder: Path, dataset: Dataset) -> None:
    """The lists of Stanford Online Products and the images they name, with the dataset's counts."""
    first_class, first_image = 1, 1
    sides = (
        ("train", dataset.train_classes, dataset.train_images),
        ("test", dataset.test_classes, dataset.test_images),
    )
    for side, classes, images in sides:
        lines = ["image_id class_id super_class_id path"]
        for number, size in enumerate(class_sizes(classes, images), start=first_class):
            random = np.random.default_rng([1, number])
            shapes = product(random)
            kind = number % len(SUPER_CLASSES)
            inner = f"{SUPER_CLASSES[kind]}_final"
            (folder / inner).mkdir(parents=True, exist_ok=True)
            for view in range(size):
                path = f"{inner}/{number:012d}_{view}.JPG"
                photograph(shapes, random).save(folder / path, format="jpeg", quality=90)
                lines.append(f"{first_image} {number} {kind + 1} {path}")
                first_image += 1
        (folder / f"Ebay_{side}.txt").write_text("\n".join(lines) + "\n")
        first_class += classes


def class_sizes(classes: int, images: int) -> list[int]:
    """So many images in all, 2 to about 9 per class."""
    random = np.random.default_rng(classes)
    sizes = random.integers(2, 9, classes)
    while (missing := images - int(sizes.sum())) != 0:
        few = random.permutation(classes)[: abs(missing)]
        sizes[few] = np.maximum(sizes[few] + np.sign(missing), 2)
    return sizes.tolist()


def scaled(dataset: Dataset, fraction: float) -> Dataset:
    """The dataset with this fraction of its classes and images."""
    if fraction == 1:
        return dataset
    names = ("train_classes", "test_classes", "train_images", "test_images")
    return replace(dataset, **{name: round(getattr(dataset, name) * fraction) for name in names})


# --- what a run costs ---


class Stopwatch:
    """Seconds spent inside functions and generators, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.begun = 0.0

    def watch(self, owner: Any, function: str, name: str) -> None:
        """From now on, calls of `owner.function` are timed; of a generator, only the time in which it runs."""
        original: Callable[..., Any] = getattr(owner, function)

        @functools.wraps(original)
        def timed(*arguments: Any, **options: Any) -> Any:
            begun = time.perf_counter()
            result = original(*arguments, **options)
            self.seconds[name] += time.perf_counter() - begun
            return result

        @functools.wraps(original)
        def timed_generator(*arguments: Any, **options: Any) -> Generator[Any, None, Any]:
            running = original(*arguments, **options)
            while True:
                begun = time.perf_counter()
                try:
                    item = next(running)
                except StopIteration as end:
                    return end.value
                finally:
                    self.seconds[name] += time.perf_counter() - begun
                yield item

        setattr(owner, function, timed_generator if inspect.isgeneratorfunction(original) else timed)

    def watch_optimizers(self) -> None:
        def start(*_: object) -> None:
            self.begun = time.perf_counter()

        def stop(*_: object) -> None:
            self.seconds["optimizer"] += time.perf_counter() - self.begun

        register_optimizer_step_pre_hook(start)
        register_optimizer_step_post_hook(stop)


@dataclass(frozen=True)
class Report:
    """What one trial took, measured in its process."""

    seconds: dict[str, float]
    recall: float
    untrained: float
    collapsed_in: int | None
    ratio: float  # of our loop to a bare one
    memory: float  # peak, in GB


def run_trial(job: Job) -> Report:
    """In a process of its own: the untrained network's recall, our loop against a bare one, then the trial."""
    torch.set_num_threads(job.threads or 1)
    allocator.keep_freed()
    images, _ = finish(trial.prepare(job))
    setup, loss = set_up(job, images, fold(images, job.dataset, "test"))
    assert loss is not None
    embeddings = finish(embed_images(setup, setup.fold.test))
    untrained = metrics.retrieval(embeddings, setup.fold.test_labels, (1,))["R@1"]
    stage = replace(main_stage(setup, loss), epochs=1)
    few = replace(stage, batches=Few(stage.batches, min(STEPS, len(stage.batches))))
    batches = list(feeding.load(setup, few, 1))
    rounds = [ratio_to_bare(setup, few, batches, len(stage.batches)) for _ in range(ROUNDS + 1)][1:]  # one warms up
    ratio = statistics.median(ratio for ratio, _ in rounds)
    del images, setup, loss, embeddings, stage, few, batches

    watch = Stopwatch()
    watch.watch_optimizers()
    watch.watch(sampler.Balanced, "epoch", "sampling")
    watch.watch(loop, "step", "step")
    watch.watch(trial, "embed_images", "embedding")
    watch.watch(metrics, "rankings", "retrieval")
    result = finish(trial.run(job))
    spent, training = watch.seconds, result.seconds.get("warmup", 0) + result.seconds["train"]
    parts = {
        "sampling": spent["sampling"],
        "forward and backward": spent["step"] - spent["optimizer"],
        "optimizer": spent["optimizer"],
        "rest of the loop": training - spent["step"] - spent["sampling"],
        "embedding": spent["embedding"],
        "retrieval": spent["retrieval"],
        "k-means": result.seconds["evaluate"] - spent["embedding"] - spent["retrieval"],
    }
    return Report(parts, result.metrics["R@1"], untrained, result.collapsed_in, ratio, peak_memory())


def peak_memory() -> float:
    """Of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def trials(dataset: Dataset, losses: str, epochs: int) -> list[Trial]:
    """A final run of each loss under the protocol cpu."""
    specs = tuple(config.loss(name) for name in losses.split(","))
    experiment = Experiment(dataset, config.protocol("cpu"), specs, settings={**SIZE, "epochs": epochs})
    return plan.final(experiment, {})


def measure(arguments: argparse.Namespace, root: Path) -> None:
    """Make the stand-in, run each loss on it, and print what each took."""
    os.environ["HARNESS_CACHE"] = str(root / "cache")
    sop = scaled(config.dataset("sop"), arguments.fraction)
    making = seconds(lambda: stand_in(root / sop.folder, sop))
    begun = time.perf_counter()
    dataset = listing.identify(sop, root)  # raises where a count differs
    listed = time.perf_counter() - begun
    runs = trials(dataset, arguments.losses, arguments.epochs)
    jobs = [Job(run, dataset, str(root / "storage"), arguments.threads, data_root=str(root)) for run in runs]
    cached = seconds(lambda: finish(trial.prepare(jobs[0])))
    counts = f"{dataset.train_classes:,} + {dataset.test_classes:,} classes"
    print(f"{counts}, {dataset.train_images:,} + {dataset.test_images:,} images, made in {making:.0f} s")
    print(
        f"  driver: listing {listed:.1f} s, image cache {cached:.1f} s, peak memory {peak_memory():.1f} GB", flush=True
    )
    for job in jobs:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            report = pool.apply(run_trial, (job,))
        total = sum(report.seconds.values())
        collapsed = "" if report.collapsed_in is None else f", collapsed in epoch {report.collapsed_in}"
        settings = f"warm-up {job.trial.warmup_epochs:g} epochs, batches {job.trial.classes_per_batch} x "
        print(f"{job.trial.loss}: {settings}{job.trial.samples_per_class}, {total:.0f} s on {job.threads} threads")
        print(f"  R@1 {100 * report.recall:.1f}, untrained {100 * report.untrained:.1f}{collapsed}")
        print("  " + ", ".join(f"{name} {value / total:.1%}" for name, value in report.seconds.items()))
        print(f"  our loop takes {report.ratio:.2f} times a bare one (aim: at most {AIM})")
        print(f"  worker: peak memory {report.memory:.1f} GB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fraction", type=float, default=1.0, help="of the classes and images")
    parser.add_argument("--losses", default="group,triplet")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--folder", help="only make class folders here, of 4 to 7 images")
    parser.add_argument("--classes", type=int, default=1000, help="in --folder")
    arguments = parser.parse_args()
    if arguments.folder:
        class_folders(Path(arguments.folder), arguments.classes)
        return
    with tempfile.TemporaryDirectory() as root:
        measure(arguments, Path(root))


if __name__ == "__main__":
    main()
