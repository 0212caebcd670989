"""Evaluation at the scale of Stanford Online Products, against every peer, in one run: ratios, and each one's memory.

    python benchmarks/evaluation.py --fraction 0.1   # a tenth of the points and classes: minutes
    python benchmarks/evaluation.py                  # 60,502 points, 11,316 classes, 512-d; scikit-learn takes hours
    python benchmarks/evaluation.py --skip sklearn,seeds

Each measurement has a process of its own, so that its peak memory is its own. Embeddings are generated (unit length,
classes overlap), except those of the emoji, which are the untrained network's. Needs faiss-cpu and
pytorch-metric-learning. Run it alone.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

POINTS, CLASSES, DIM = 60_502, 11_316, 512
KS = (1, 10, 100)
SEEDS = 5
CUB = (5_924, 100, 512)  # images, classes, dimensions


def generate(points: int, classes: int, dim: int = DIM) -> tuple[Any, Any]:
    """Unit-length embeddings in classes that overlap: R@1 is far from 1."""
    import torch

    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(points) % classes
    centres = torch.nn.functional.normalize(torch.randn(classes, dim, generator=generator), dim=1)
    noise = torch.randn(points, dim, generator=generator) * (2.2 / dim**0.5)
    return torch.nn.functional.normalize(centres[labels] + noise, dim=1), labels


def emoji() -> tuple[Any, Any]:
    """The test images of the embedded dataset as the untrained network embeds them."""
    from harness import config, plan
    from harness.data import listing, loading
    from harness.data.folds import fold
    from harness.spec import Experiment, Job, finish
    from harness.training.measuring import embed_images
    from harness.training.setup import set_up

    dataset = listing.identify(config.dataset("emoji"), Path())
    _, untrained = plan.baselines(Experiment(dataset, config.protocol("quick"), ()))
    images = loading.embedded(dataset)
    setup, _ = set_up(Job(untrained, dataset, ""), images, fold(images, dataset, "test"))
    return finish(embed_images(setup, setup.fold.test)).clone(), setup.fold.test_labels


def collapse(x: Any, kind: str) -> Any:
    """Embeddings as a network gives them that has collapsed: to one point and what float32 leaves of the differences,
    to very one point, to 0 for every other image, or all but a few outliers."""
    import torch

    n = len(x)
    last_bits = torch.nn.functional.normalize(x[:1] + 1e-6 * x, dim=1)
    if kind == "near one point":
        return last_bits
    if kind == "one point":
        return x[:1].expand(n, -1).contiguous()
    if kind == "every other at 0":
        return x * (torch.arange(n) % 2)[:, None]
    outlier = torch.arange(n) % 20 == 0
    return torch.where(outlier[:, None], x, last_bits)


COLLAPSES = ("near one point", "one point", "every other at 0", "outliers")


def collapsed(kind: str) -> Callable[[Any, Any], dict[str, float]]:
    def run(x: Any, y: Any) -> dict[str, float]:
        from harness.evaluation import metrics

        return metrics.retrieval(collapse(x, kind), y, KS)

    return run


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
    """One clustering."""

    def run(x: Any, y: Any) -> dict[str, float]:
        from harness.evaluation.clustering import kmeans
        from harness.spec.recipes import RECIPES

        return quality(x, y, kmeans(x, len(y.unique()), 0, RECIPES[recipe]))

    return run


def one_start(x: Any, y: Any) -> dict[str, float]:
    """`lloyd` from one start, where it takes the best of ten."""
    from unittest import mock

    from harness.evaluation import lloyd

    with mock.patch.object(lloyd, "starts", return_value=1):
        return clusters("lloyd")(x, y)


def seeds(recipe: str) -> Callable[[Any, Any], dict[str, float]]:
    """Clusterings with several seeds: means, and the range of NMI."""

    def run(x: Any, y: Any) -> dict[str, float]:
        from harness.evaluation.clustering import kmeans
        from harness.spec.recipes import RECIPES

        found = [quality(x, y, kmeans(x, len(y.unique()), seed, RECIPES[recipe])) for seed in range(SEEDS)]
        means = {name: sum(one[name] for one in found) / SEEDS for name in ("inertia", "NMI")}
        values = [one["NMI"] for one in found]
        return {**means, "lowest": min(values), "highest": max(values)}

    return run


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
    **{f"collapsed {kind}": collapsed(kind) for kind in COLLAPSES},
    **{f"kmeans {recipe}": clusters(recipe) for recipe in ("lloyd", "hartigan", "faiss", "sklearn")},
    "one start": one_start,
    **{f"seeds {recipe}": seeds(recipe) for recipe in ("lloyd", "sklearn", "faiss")},
}


def peak() -> int:
    """Bytes of the largest resident set so far."""
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def measure(task: str, data: str) -> None:
    """In the child: seconds, growth of memory, and what came out. `data`: emoji, or points, classes and dimensions."""
    x, y = emoji() if data == "emoji" else generate(*map(int, data.split(",")))
    if task != "wide":
        TASKS[task](x[:2000], y[:2000] % 100)  # imports and threads are not what is measured
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")
    before = peak()
    begun = time.perf_counter()
    found = TASKS[task](x, y)
    seconds = time.perf_counter() - begun
    print(json.dumps({"seconds": seconds, "memory": peak() - before, "total": peak(), "found": found}))


def run(task: str, points: int = 0, classes: int = 0, dim: int = DIM) -> dict[str, Any]:
    """Without points: the emoji."""
    data = f"{points},{classes},{dim}" if points else "emoji"
    command = [sys.executable, os.path.abspath(__file__), "--task", task, "--data", data]
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
    parser.add_argument("--fraction", type=float, default=1.0, help="of the numbers of points and classes")
    parser.add_argument(
        "--skip",
        default="",
        help="retrieval, pml, collapsed, kmeans, faiss, sklearn, seeds, starts, growth, wide: comma-separated",
    )
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("--data", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        measure(arguments.task, arguments.data)
        return
    skip = set(arguments.skip.split(","))
    points, classes = round(POINTS * arguments.fraction), round(CLASSES * arguments.fraction)
    if "retrieval" not in skip:
        compare_retrieval(points, classes, skip)
    if "collapsed" not in skip:
        compare_collapsed(points, classes)
    if "kmeans" not in skip:
        compare_kmeans(points, classes, skip)
    if "seeds" not in skip:
        compare_seeds(points, classes, skip)
    if "starts" not in skip:
        compare_starts()
    if "growth" not in skip:
        show_growth(points, classes)
    if "wide" not in skip:
        n = round(1_000_000 * arguments.fraction)
        got = run("wide", n, n // 100, 128)
        print(f"\n7. 5,000 queries against {n - 5000:,} x 128")
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


def compare_collapsed(points: int, classes: int) -> None:
    print(f"\n2. The same of collapsed embeddings, {points:,} x {DIM}")
    good = run("retrieval", points, classes)
    show("good", good)
    for kind in COLLAPSES:
        bad = run(f"collapsed {kind}", points, classes)
        show(kind, bad, f"{bad['seconds'] / good['seconds']:.1f}x the time of good ones (aim: at most 3)")


def compare_kmeans(points: int, classes: int, skip: set[str]) -> None:
    print(f"\n3. k-means with {classes:,} clusters of {points:,} x {DIM}, one seed")
    ours = run("kmeans lloyd", points, classes)
    show("lloyd", ours)
    show("hartigan", run("kmeans hartigan", points, classes))
    for peer in ("faiss", "sklearn"):
        if peer not in skip:
            theirs = run(f"kmeans {peer}", points, classes)
            show(peer, theirs, beside(ours, theirs) + (" (aim: 3)" if peer == "sklearn" else ""))


def beside(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    if not ours["found"] or not theirs["found"]:
        return ""
    inertia = ours["found"]["inertia"] / theirs["found"]["inertia"] - 1
    return f"inertia of lloyd {inertia:+.2%}; {theirs['seconds'] / ours['seconds']:.2f}x the time of lloyd"


def compare_seeds(points: int, classes: int, skip: set[str]) -> None:
    print(f"\n4. k-means, means of {SEEDS} seeds (aim: inertia within 0.5 % of scikit-learn's, NMI within its range)")
    for title, shape in (
        ("emoji, untrained network", ()),
        ("in the shape of CUB", CUB),
        ("in the shape of Stanford Online Products", (points, classes)),
    ):
        print(f"  {title} {' x '.join(f'{size:,}' for size in shape)}")
        ours = run("seeds lloyd", *shape)
        show("lloyd", ours)
        for peer in ("sklearn", "faiss"):
            if peer not in skip:
                theirs = run(f"seeds {peer}", *shape)
                show(peer, theirs, beside(ours, theirs))


def compare_starts() -> None:
    print("\n5. What the ten starts of lloyd cost on emoji, untrained network")
    one, ten = run("one start"), run("kmeans lloyd")
    show("1 start", one)
    show("10 starts", ten, f"{ten['seconds'] / one['seconds']:.1f}x the time of one")
    show("hartigan, 1 start", run("kmeans hartigan"))


def show_growth(points: int, classes: int) -> None:
    print("\n6. How cost grows")
    for factor in (1, 2, 4):
        n, k = round(points * factor / 4), round(classes * factor / 4)
        found, grouped = run("retrieval", n, k), run("kmeans lloyd", n, k)
        print(f"  {factor}x: {n:,} points  retrieval {found['seconds']:.1f} s  k-means {grouped['seconds']:.1f} s")


if __name__ == "__main__":
    main()
