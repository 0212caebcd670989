"""Time of forward + backward of our losses against pytorch-metric-learning's, and the memory that ours take; of methods
that are more than a loss, time and memory of a whole training step relative to the triplet loss.

    python benchmarks/loss_functions.py              # everything, a few minutes
    python benchmarks/loss_functions.py --only margin,arcface

The two take turns on the same batch, on one thread. A ratio is that of their medians, above 1 where ours is faster. A
row says where their formula differs (see each loss's docstring). Run nothing else on the machine at the same time.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from pytorch_metric_learning import distances, miners, regularizers
from pytorch_metric_learning import losses as pml
from torch import Tensor, nn

import losses

SHAPES = {
    "CUB: 54 x 512, 100 classes": (6, 9, 100),
    "SOP: 60 x 512, 11,318": (10, 6, 11_318),
    "512 x 512, 1,000": (128, 4, 1000),
}
DIM = 512
SECONDS = 0.4  # spent on each side of a comparison, at least
MINE = {"slowest": 1.1, "median": 2.0}  # what we aim for


class Mined(nn.Module):
    """A loss of theirs with its miner."""

    def __init__(self, loss: nn.Module, miner: nn.Module) -> None:
        super().__init__()
        self.loss, self.miner = loss, miner

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        value: Tensor = self.loss(x, y, self.miner(x, y))
        return value


@dataclass(frozen=True)
class Rival:
    """What one of our losses is compared with: their loss, our knobs, and the largest shapes it can take."""

    make: Callable[[int], nn.Module]
    knobs: dict[str, object]
    note: str = ""
    largest: int = 512  # images per batch
    most_classes: int = 11_318
    counts: bool = True  # whether the summary counts its ratio


def raw() -> distances.BaseDistance:
    return distances.LpDistance(normalize_embeddings=False)


def sparse(classes: int) -> nn.Module:
    return pml.SoftTripleLoss(
        classes, DIM, weight_regularizer=regularizers.SparseCentersRegularizer(classes, 10), weight_reg_weight=0.2
    )


RIVALS: dict[tuple[str, str], Rival] = {
    ("angular", ""): Rival(lambda c: pml.AngularLoss(45), {}, "theirs has no N-pairs term"),
    ("arcface", ""): Rival(lambda c: pml.ArcFaceLoss(c, DIM), {}),
    ("contrastive", ""): Rival(lambda c: pml.ContrastiveLoss(), {}, "theirs does not square"),
    ("lifted_structure", ""): Rival(
        lambda c: pml.LiftedStructureLoss(distance=raw()), {}, "theirs needs 1.6 GB at 512", 100
    ),
    ("margin", ""): Rival(lambda c: Mined(pml.MarginLoss(), miners.DistanceWeightedMiner()), {"betas": "fixed"}),
    ("multi_similarity", ""): Rival(lambda c: Mined(pml.MultiSimilarityLoss(), miners.MultiSimilarityMiner()), {}),
    ("n_pairs", "same pairs"): Rival(
        lambda c: pml.NTXentLoss(temperature=1, distance=distances.DotProductSimilarity(normalize_embeddings=False)),
        {"l2": 0.0},
        "NTXentLoss",
        100,
    ),
    ("n_pairs", "one pair per class"): Rival(
        lambda c: pml.NPairsLoss(), {}, "NPairsLoss uses two images per class", counts=False
    ),
    ("normalized_softmax", ""): Rival(lambda c: pml.NormalizedSoftmaxLoss(c, DIM), {}),
    ("proxy_anchor", ""): Rival(lambda c: pml.ProxyAnchorLoss(c, DIM), {}),
    ("proxy_nca", ""): Rival(lambda c: pml.ProxyNCALoss(c, DIM), {}, "theirs keeps the positive in the denominator"),
    ("ranked_list", ""): Rival(lambda c: pml.RankedListLoss(0.4, 10, alpha=1.2), {}),
    ("soft_triple", "tau 0"): Rival(lambda c: pml.SoftTripleLoss(c, DIM), {"tau": 0.0}),
    ("soft_triple", "regularised"): Rival(sparse, {}, "theirs needs 51 GB at 11,318 classes", most_classes=100),
    ("triplet", "semihard"): Rival(
        lambda c: Mined(pml.TripletMarginLoss(), miners.TripletMarginMiner(type_of_triplets="semihard")),
        {},
        "theirs returns all semi-hard triplets",
    ),
    ("triplet", "hard"): Rival(lambda c: Mined(pml.TripletMarginLoss(), miners.BatchHardMiner()), {"mining": "hard"}),
    ("triplet", "all"): Rival(lambda c: pml.TripletMarginLoss(), {"mining": "all"}),
}


def batch(per_batch: int, samples: int, classes: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    chosen = torch.randperm(classes)[:per_batch]
    x = torch.randn(per_batch, DIM).repeat_interleave(samples, 0) + 2 * torch.randn(per_batch * samples, DIM)
    return x / 10, chosen.repeat_interleave(samples)


def step(loss: nn.Module, x: Tensor, y: Tensor) -> float:
    """Seconds of forward and backward."""
    x = x.detach().requires_grad_()
    loss.zero_grad(set_to_none=True)
    begun = time.perf_counter()
    loss(x, y).backward()
    return time.perf_counter() - begun


def compare(sides: list[nn.Module], x: Tensor, y: Tensor) -> list[float]:
    """Median seconds of each side; they take turns."""
    for side in sides:
        step(side, x, y)
    seen: list[list[float]] = [[] for _ in sides]
    while len(seen[0]) < 5 or min(map(sum, seen)) < SECONDS:
        for side, times in zip(sides, seen, strict=True):
            times.append(step(side, x, y))
        if len(seen[0]) >= 5 and sum(map(sum, seen)) > 8 * SECONDS:
            break
    return [statistics.median(times) for times in seen]


def speed(only: set[str]) -> None:
    ratios = []
    for shape, (per_batch, samples, classes) in SHAPES.items():
        print(f"\n{shape}")
        x, y = batch(per_batch, samples, classes)
        for (name, what), rival in RIVALS.items():
            if (only and name not in only) or len(y) > rival.largest or classes > rival.most_classes:
                continue
            torch.manual_seed(0)
            ours, theirs = compare([losses.get(name)(classes, DIM, **rival.knobs), rival.make(classes)], x, y)
            ratios += [theirs / ours] if rival.counts else []
            title = f"{name}, {what}" if what else name
            print(
                f"  {title:28} {1e3 * ours:8.2f} ms  PML {1e3 * theirs:9.2f} ms  {theirs / ours:6.2f}x  {rival.note}",
                flush=True,
            )
    if ratios:
        print(f"\nslowest {1 / min(ratios):.2f}x theirs (aim: at most {MINE['slowest']}x)", end="; ")
        print(f"median {statistics.median(ratios):.1f} times as fast (aim: at least {MINE['median']:g})")


def group_with_many_classes() -> None:
    """The cost of classes="batch" without that of the classifier."""
    x, y = batch(10, 6, 100)
    rest = {}
    for classes in (100, 11_318):
        torch.manual_seed(0)
        group = losses.get("group")(classes, DIM, classes="batch")
        alone = Classifier(classes)
        whole, classifier = compare([group, alone], x, y)
        rest[classes] = max(whole - classifier, 0.0)
        print(
            f"\ngroup, classes=batch, {classes:,}: {1e3 * whole:.2f} ms, a classifier alone {1e3 * classifier:.2f} ms",
            end="",
        )
    print(f"\nwithout the classifier: {rest[11_318] / rest[100]:.2f} times the cost at 100 classes (aim: at most 1.5)")


class Classifier(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(DIM, classes)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.linear(x).sum()


MEMORY = """
import json, sys, torch, losses
torch.set_num_threads(1)
name, classes, samples, knobs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

loss = losses.get(name)(1000, 512, **knobs)
x = torch.randn(512, 512, requires_grad=True)
loss(x[:8], torch.arange(8) // 2).backward()
open("/proc/self/clear_refs", "w").write("5")  # the peak starts here
before = peak()
loss(x, torch.arange(classes).repeat_interleave(samples)).backward()
print(peak() - before)
"""


def memory() -> None:
    print("\nlargest growth of the process in a step at batch 512 (aim: under 1,000 MB)")
    for name, knobs in (("angular", {}), ("triplet", {"mining": "all"}), ("margin", {})):
        grown = []
        for classes, samples in ((128, 4), (4, 128)):
            arguments = [name, str(classes), str(samples), json.dumps(knobs)]
            run = subprocess.run([sys.executable, "-c", MEMORY, *arguments], capture_output=True, text=True, check=True)
            grown.append(f"{classes} x {samples}: {int(run.stdout) / 1e3:.0f} MB")
        print(f"  {name:20} {', '.join(grown)}")


METHODS = tuple(name for name in losses.shipped() if losses.facts(name).extras)
STEP = """
import dataclasses, json, sys, time, torch
from pathlib import Path
from harness import config, plan
from harness.data import listing, loading
from harness.data.folds import fold
from harness.spec import Experiment, Job
from harness.training import feeding, loop, planning, setup, teaching
torch.set_num_threads(1)
name, count = sys.argv[1], int(sys.argv[2])

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

dataset = listing.identify(config.dataset("emoji"), Path())
trial = plan.final(Experiment(dataset, config.protocol("quick"), (config.loss(name),)), {})[0]
images = loading.embedded(dataset)
job = Job(trial, dataset, "", device="cpu")
ready, loss = setup.set_up(job, images, fold(images, dataset, "test"))
if trial.teacher:  # what its weights are changes neither time nor memory
    ready = dataclasses.replace(ready, teacher=teaching.network(job, ready.model.state_dict()))
stage = setup.main_stage(ready, loss)
learner = loop.Learner.of(ready, stage)
open("/proc/self/clear_refs", "w").write("5")  # the peak starts here
before = peak()
planned = planning.plan(ready, stage, 1)  # not timed: a step is, with the method's own batches and tree
learner.train()
batches = [batch for _, batch in zip(range(count + 1), feeding.load(ready, stage, 1, planned))]
open("/proc/self/clear_refs", "w").write("5")  # what planning took at most does not count
loop.step(learner, batches[0])
grown, seconds = peak() - before, []
for batch in batches[1:]:
    begun = time.perf_counter()
    loop.step(learner, batch)
    seconds.append(time.perf_counter() - begun)
print(json.dumps([sorted(seconds)[len(seconds) // 2], grown]))
"""


def methods(only: set[str], steps: int = 8) -> None:
    """Time and memory of a whole step, network and head included, relative to the triplet loss; without what a method
    does before an epoch."""
    print("\na step of training on emoji, protocol quick, relative to triplet: median time, growth of the process")
    usual: list[float] = []
    for name in ("triplet", *(name for name in METHODS if not only or name in only)):
        run = subprocess.run([sys.executable, "-c", STEP, name, str(steps)], capture_output=True, text=True, check=True)
        seconds, grown = json.loads(run.stdout)
        usual = usual or [seconds, grown]
        print(
            f"  {name:22} {1e3 * seconds:8.0f} ms {seconds / usual[0]:6.2f}x {grown / 1e3:8.0f} MB "
            f"{grown / usual[1]:6.2f}x",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="losses, comma-separated")
    only = {name for name in parser.parse_args().only.split(",") if name}
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    speed(only)
    if not only:
        group_with_many_classes()
        memory()
    if not only or only & set(METHODS):
        methods(only)


if __name__ == "__main__":
    main()
