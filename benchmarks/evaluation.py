"""Evaluation at the scale of Stanford Online Products, against every peer, in one run: ratios, and each one's memory.

    python benchmarks/evaluation.py --scale 0.25     # a quarter of the points and classes: minutes
    python benchmarks/evaluation.py                  # 60,502 points, 11,316 classes, 512-d; scikit-learn takes long
    python benchmarks/evaluation.py --skip sklearn

Each measurement has a process of its own, so that its peak memory is its own; embeddings are generated (unit length,
classes overlap). Needs pip install faiss-cpu and pytorch-metric-learning. Run it alone.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

POINTS, CLASSES, DIM = 60_502, 11_316, 512
KS = (1, 10, 100)


def generate(points: int, classes: int, dim: int = DIM) -> tuple[Any, Any]:
    """Unit-length embeddings in classes that overlap: R@1 is far from 1."""
    import torch

    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(points) % classes
    centres = torch.nn.functional.normalize(torch.randn(classes, dim, generator=generator), dim=1)
    noise = torch.randn(points, dim, generator=generator) * (2.2 / dim**0.5)
    return torch.nn.functional.normalize(centres[labels] + noise, dim=1), labels


def product(x: Any, y: Any) -> dict[str, float]:
    """The matrix products alone, in the tiles of ours, each pair once."""
    import torch

    from harness.evaluation import neighbours

    side, half = neighbours.side(x), torch.zeros(len(x))
    for first in range(0, len(x), side):
        for begin in range(first, len(x), side):
            torch.addmm(half[begin : begin + side], x[first : first + side], x[begin : begin + side].T)
    return {}


def retrieval(x: Any, y: Any) -> dict[str, float]:
    from harness.evaluation import metrics

    return metrics.retrieval(x, y, KS)


def pml(x: Any, y: Any) -> dict[str, float]:
    """pytorch-metric-learning's calculator with faiss: Recall@K it has not, so precision@1 and MAP@R at depth 100."""
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    include = ("precision_at_1", "mean_average_precision_at_r")
    found = AccuracyCalculator(include=include, k=max(KS)).get_accuracy(x, y)
    return {"R@1": found["precision_at_1"], "MAP@R": found["mean_average_precision_at_r"]}


def clusters(recipe: str) -> Callable[[Any, Any], dict[str, float]]:
    def run(x: Any, y: Any) -> dict[str, float]:
        from harness.evaluation.clustering import kmeans
        from harness.evaluation.recipes import RECIPES

        return quality(x, y, kmeans(x, len(y.unique()), 0, RECIPES[recipe]))

    return run


def faiss_kmeans(x: Any, y: Any) -> dict[str, float]:
    import faiss
    import torch

    found = faiss.Kmeans(x.shape[1], len(y.unique()), niter=20, seed=0, min_points_per_centroid=1)
    found.train(x.numpy())
    got = quality(x, y, torch.from_numpy(found.index.search(x.numpy(), 1)[1][:, 0]))
    return {**got, "iterations": len(found.obj)}  # it stops where nothing changes


def curve(x: Any, y: Any) -> dict[str, float]:
    """Seconds and inertia of ours after its start and after each whole sweep, the short ones before it included."""
    import torch

    from harness.evaluation import clustering
    from harness.evaluation.recipes import OURS

    k, generator = len(y.unique()), torch.Generator().manual_seed(0)
    begun = time.perf_counter()
    labels = clustering.start(x, k, OURS.rounds, generator)
    spent, found = time.perf_counter() - begun, {}
    going = clustering.hartigan(x, labels, k, OURS.sweeps, generator)
    for sweeps in range(OURS.sweeps):
        got = quality(x, y, labels)
        found |= {f"{sweeps} seconds": spent, f"{sweeps} inertia": got["inertia"], f"{sweeps} NMI": got["NMI"]}
        begun = time.perf_counter()
        if next(going, None) is None:
            break
        spent += time.perf_counter() - begun
    return found


def quality(x: Any, y: Any, labels: Any) -> dict[str, float]:
    import torch

    from harness.evaluation.clustering import mutual_information

    sums = torch.zeros(int(labels.max()) + 1, x.shape[1]).index_add_(0, labels, x)
    sizes = labels.bincount(minlength=len(sums)).clamp_min(1)
    # |x - c|^2 summed over a cluster is the sum of |x|^2 less n |c|^2
    inertia = x.double().square().sum() - (sums.double().square().sum(dim=1) / sizes).sum()
    return {"inertia": inertia.item(), "NMI": mutual_information(y, labels)}


def wide(x: Any, y: Any) -> dict[str, float]:
    """5,000 queries against the rest."""
    import torch

    from harness.evaluation import metrics

    queries = torch.zeros(len(y), dtype=torch.bool)
    queries[:5000] = True
    return metrics.retrieval(x, y, (1, 10), queries)


TASKS: dict[str, Callable[[Any, Any], dict[str, float]]] = {
    "product": product,
    "retrieval": retrieval,
    "pml": pml,
    "wide": wide,
    "kmeans ours": clusters("ours"),
    "kmeans faiss": faiss_kmeans,
    "kmeans sklearn": clusters("sklearn"),
    "curve": curve,
}


def peak() -> int:
    """Bytes of the largest resident set so far."""
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def measure(task: str, points: int, classes: int, dim: int) -> None:
    """In the child: seconds, growth of memory, and what came out."""
    x, y = generate(points, classes, dim)
    small = TASKS[task] if task not in ("wide",) else None
    if small is not None:
        small(x[:2000], y[:2000] % 100)  # imports and threads are not what is measured
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")
    before = peak()
    begun = time.perf_counter()
    found = TASKS[task](x, y)
    seconds = time.perf_counter() - begun
    print(json.dumps({"seconds": seconds, "memory": peak() - before, "total": peak(), "found": found}))


def run(task: str, points: int, classes: int, dim: int = DIM) -> dict[str, Any]:
    command = [sys.executable, os.path.abspath(__file__), "--task", task, "--size", f"{points},{classes},{dim}"]
    out = subprocess.run(command, capture_output=True, text=True)
    if out.returncode:
        return {"seconds": float("nan"), "memory": 0, "total": 0, "found": {}, "error": out.stderr.strip()[-300:]}
    answer: dict[str, Any] = json.loads(out.stdout.splitlines()[-1])
    return answer


def show(name: str, got: dict[str, Any], extra: str = "") -> None:
    found = "  ".join(f"{key} {value:.4f}" for key, value in got["found"].items())
    print(
        f"  {name:24} {got['seconds']:8.1f} s  +{got['memory'] / 1e6:6.0f} MB  {found}  {extra}{got.get('error', '')}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of points and classes")
    parser.add_argument("--skip", default="", help="pml, faiss, sklearn, wide, growth: comma-separated")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("--size", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        measure(arguments.task, *map(int, arguments.size.split(",")))
        return
    skip = set(arguments.skip.split(","))
    points, classes = round(POINTS * arguments.scale), round(CLASSES * arguments.scale)
    compare_retrieval(points, classes, skip)
    compare_kmeans(points, classes, skip)
    if "growth" not in skip:
        show_growth(points, classes)
    if "wide" not in skip:
        n = round(1_000_000 * arguments.scale)
        got = run("wide", n, n // 100, 128)
        print(f"\n4. 5,000 queries against {n - 5000:,} x 128")
        show("ours", got, f"the process: {got['total'] / 1e9:.2f} GB (aim: under 4)")


def compare_retrieval(points: int, classes: int, skip: set[str]) -> None:
    print(f"1. Recall@1/10/100 and MAP@R, {points:,} x {DIM}, {classes:,} classes")
    bare, ours = run("product", points, classes), run("retrieval", points, classes)
    show("matrix product alone", bare)
    show("ours", ours, f"{bare['seconds'] / ours['seconds']:.0%} of it is the product (aim: at least 70%)")
    if "pml" not in skip:
        theirs = run("pml", points, classes)
        ratio, share = theirs["seconds"] / ours["seconds"], ours["memory"] / max(theirs["memory"], 1)
        aims = f"{ratio:.1f}x our time (aim: 2.5), ours needs {share:.0%} of its memory (aim: 10%)"
        show("PML with faiss", theirs, aims)


def compare_kmeans(points: int, classes: int, skip: set[str]) -> None:
    print(f"\n2. k-means with {classes:,} clusters")
    ours = run("kmeans ours", points, classes)
    show("ours", ours)
    peers = {}
    for peer, aim in (("faiss", 2), ("sklearn", 8)):
        if peer not in skip:
            theirs = peers[peer] = run(f"kmeans {peer}", points, classes)
            ratio = theirs["seconds"] / ours["seconds"]
            worse = ours["found"]["inertia"] / theirs["found"]["inertia"] - 1 if theirs["found"] else float("nan")
            show(peer, theirs, f"{ratio:.1f}x our time (aim: {aim}); our inertia {worse:+.2%} (aim: at most +0.5%)")
    steps = run("curve", points, classes)["found"]
    print("  ours, sweep by sweep (a recipe stops where it likes; `ours` goes on while a sweep pays):")
    for sweep in range(len(steps) // 3):
        spent, inertia = steps[f"{sweep} seconds"], steps[f"{sweep} inertia"]
        beside = "".join(
            f"  {peer}: {theirs['seconds'] / spent:4.1f}x the time, our inertia "
            f"{inertia / theirs['found']['inertia'] - 1:+.2%}"
            for peer, theirs in peers.items()
            if theirs["found"]
        )
        print(
            f"    {sweep:2} whole sweeps {spent:8.1f} s  inertia {inertia:.1f}  NMI {steps[f'{sweep} NMI']:.4f}{beside}"
        )


def show_growth(points: int, classes: int) -> None:
    print("\n3. How cost grows")
    for factor in (1, 2, 4):
        n, k = round(points * factor / 4), round(classes * factor / 4)
        found, grouped = run("retrieval", n, k), run("kmeans ours", n, k)
        print(f"  {factor}x: {n:,} points  retrieval {found['seconds']:.1f} s  k-means {grouped['seconds']:.1f} s")


if __name__ == "__main__":
    main()
