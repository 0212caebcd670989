"""k-means and the NMI of its clusters, on the embeddings' device; a number comes with the recipe it was made by.

Why it is as it is. With 11,316 centres for 60,502 points an iteration of Lloyd's algorithm is a product as large as a
fifth of all pairs. `ours` avoids most of it, and stays exact: a centre whose members did not change has not moved, so
its products are known; a point is compared with the centres that moved, and with all of them only where its own centre
has come to lie farther away than the nearest other may be (a bound in the manner of Hamerly, SDM 2010). The start draws
centres in rounds, each point with probability proportional to its squared distance from those there are: the products
of all rounds together are those of a single iteration, and they give the first assignment too. What such a start
misses (a class without a centre, another with two), Lloyd's algorithm does not find; clusters that lie close together
are merged and wide ones split, many at once, while that pays. benchmarks/evaluation.py compares time and inertia with
faiss and scikit-learn.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

WORTH = 5e-4  # an exchange that lowers the inertia by less than this share is the last
BLOCK = 2**25  # entries of a block of products at once: 128 MB


@dataclass(frozen=True)
class Recipe:
    """How clusters are found: NMI depends on it."""

    name: str
    start: Literal["rounds", "random", "scikit-learn"]
    iterations: int
    rounds: int = 1
    exchanges: int = 0

    def __str__(self) -> str:
        how = {
            "rounds": f"k-means++ start in {self.rounds} rounds, Lloyd until the assignments stop or {self.iterations} "
            f"times, merges and splits while they pay, at most {self.exchanges} times",
            "random": f"random start, {self.iterations} iterations of Lloyd",
            "scikit-learn": f"scikit-learn's KMeans, Lloyd until its tolerance or {self.iterations} times",
        }[self.start]
        return f"{how}, 1 start, arithmetic mean"


OURS = Recipe("ours", "rounds", iterations=100, rounds=32, exchanges=20)
RECIPES = {
    "ours": OURS,
    "faiss": Recipe("faiss", "random", iterations=20),
    "sklearn": Recipe("sklearn", "scikit-learn", iterations=300),
}


def nmi(embeddings: Tensor, labels: Tensor, seed: int, recipe: Recipe = OURS) -> float:
    """NMI of the classes and a k-means clustering into as many clusters as there are classes."""
    return mutual_information(labels, kmeans(embeddings, len(labels.unique()), seed, recipe))


def mutual_information(a: Tensor, b: Tensor) -> float:
    """Mutual information of two labelings over the arithmetic mean of their entropies; 1 if both are constant."""
    a, b = (labels.unique(return_inverse=True)[1].cpu() for labels in (a, b))
    n = len(a)
    width = int(b.max()) + 1
    cells, counts = (a * width + b).unique(return_counts=True)
    joint = counts.double() / n
    pa, pb = a.bincount().double() / n, b.bincount().double() / n
    information = (joint * (joint.log() - pa[cells // width].log() - pb[cells % width].log())).sum().item()
    entropies = -(pa * pa.log()).sum().item() - (pb * pb.log()).sum().item()
    return min(max(2 * information / entropies, 0.0), 1.0) if entropies > 0 else 1.0


def kmeans(x: Tensor, k: int, seed: int, recipe: Recipe = OURS) -> Tensor:
    """Cluster labels (n,) of the rows of x (n, d). A cluster that runs empty starts again at a point far from its own
    centre. Deterministic given its seed."""
    if not 1 <= k <= len(x):
        raise ValueError(f"{k} clusters of {len(x)} points: allowed is 1 to {len(x)}")
    if recipe.start == "scikit-learn":
        return of_scikit_learn(x, k, seed, recipe)
    generator = torch.Generator().manual_seed(seed)
    if recipe.start == "random":
        centres = x[torch.randperm(len(x), generator=generator)[:k].to(x.device)]
        state = assign_all(x, centres)
    else:
        centres, state = start(x, k, recipe.rounds, generator)
    changed = torch.ones(k, dtype=torch.bool, device=x.device)
    lloyd(x, centres, state, changed, recipe.iterations)
    squares, before = x.square().sum(), math.inf
    for _ in range(recipe.exchanges):
        inertia = float(squares - 2 * state.score.sum())  # |x - c|^2 = |x|^2 - 2 score
        if inertia > (1 - WORTH) * before or not exchange(x, centres, state, changed):
            break
        before = inertia
        lloyd(x, centres, state, changed, recipe.iterations)
    return state.centre


@dataclass
class Assigned:
    """Where each point (n,) belongs. A score is x.c - |c|^2 / 2, largest for the nearest centre."""

    centre: Tensor
    score: Tensor  # of that centre
    others: Tensor  # no other centre's score is larger


def lloyd(x: Tensor, centres: Tensor, at: Assigned, changed: Tensor, iterations: int) -> None:
    """Until no assignment changes. `changed` (k,) are the clusters that got or lost a member since the last time."""
    k = len(centres)
    for _ in range(iterations):
        repair(x, at, k, changed)
        moved = changed.nonzero().flatten()
        members = changed[at.centre]
        sums = torch.zeros_like(centres).index_add_(0, at.centre[members], x[members])
        sizes = at.centre.bincount(minlength=k)
        centres[moved] = sums[moved] / sizes[moved, None]
        before = at.centre.clone()
        reassign(x, centres, moved, members, at)
        changed.zero_()
        different = before != at.centre
        changed[before[different]] = True
        changed[at.centre[different]] = True
        if not different.any():
            break


def exchange(x: Tensor, centres: Tensor, at: Assigned, changed: Tensor) -> bool:
    """Merge clusters that lie close together and split as many that are wide, where that pays: what a start misses,
    Lloyd's algorithm does not find. False where nothing pays."""
    k = len(centres)
    sizes = at.centre.bincount(minlength=k).to(x.dtype)
    costs, partner = nearest_centres(centres, sizes)
    gains, second = splits(x, centres, at, sizes)
    merges, cuts = costs.argsort().tolist(), gains.argsort(descending=True).tolist()
    cost, gain, other = costs.tolist(), gains.tolist(), partner.tolist()
    used = [False] * k
    wide = iter(cuts)
    target, taken = torch.arange(k), []
    for a in merges:
        b = other[a]
        if used[a] or used[b]:
            continue
        used[a] = used[b] = True
        cut = next((c for c in wide if not used[c]), None)
        if cut is None or gain[cut] <= cost[a]:
            break
        used[cut] = True
        target[b] = a
        taken.append((b, cut))
    if not taken:
        return False
    changed.zero_()
    target = target.to(x.device)
    freed, cut = torch.tensor(taken, device=x.device).T
    at.centre = target[at.centre]
    fresh = torch.full((k,), -1, device=x.device)
    fresh[cut] = freed
    leaving = second & (fresh[at.centre] >= 0)
    at.centre[leaving] = fresh[at.centre[leaving]]
    changed[freed] = changed[cut] = changed[target[freed]] = True
    return True


def nearest_centres(centres: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """What it costs to merge each cluster with the one whose centre is nearest, and which that is."""
    half = centres.square().sum(dim=1) / 2
    parts = []
    for rows in blocks(len(centres), len(centres), centres.device):
        scores = torch.addmm(-half, centres[rows], centres.T)
        scores[torch.arange(len(rows), device=rows.device), rows] = -math.inf
        best, which = scores.max(dim=1)
        parts.append((2 * (half[rows] - best).clamp_min(0), which))
    squared, which = (torch.cat(part) for part in zip(*parts, strict=True))
    return squared * sizes * sizes[which] / (sizes + sizes[which]).clamp_min(1), which


def splits(x: Tensor, centres: Tensor, at: Assigned, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """What splitting each cluster gains, and the points (n,) that would leave it: two-means, from the centre and the
    point farthest from it."""
    k = len(centres)
    apart = squared_distances(x, centres, at.centre)
    farthest = torch.zeros(k, dtype=x.dtype, device=x.device).scatter_reduce_(0, at.centre, apart, "amax")
    is_it = (apart == farthest[at.centre]).nonzero().flatten()
    seed = torch.zeros(k, dtype=torch.long, device=x.device)
    seed[at.centre[is_it]] = is_it
    one, two = centres, x[seed]
    for _ in range(3):
        second = squared_distances(x, two, at.centre) < squared_distances(x, one, at.centre)
        key = at.centre + k * second
        sums = x.new_zeros(2 * k, x.shape[1]).index_add_(0, key, x)
        counts = key.bincount(minlength=2 * k).to(x.dtype)
        means = sums / counts[:, None].clamp_min(1)
        one, two = means[:k], means[k:]
    weighted = counts * means.square().sum(dim=1)
    return weighted[:k] + weighted[k:] - sizes * centres.square().sum(dim=1), second


def reassign(x: Tensor, centres: Tensor, moved: Tensor, members: Tensor, at: Assigned) -> None:
    """The nearest centre of every point, after those in `moved` moved; `members` are the points whose own did."""
    half = centres.square().sum(dim=1) / 2
    at.score[members] = (x[members] * centres[at.centre[members]]).sum(dim=1) - half[at.centre[members]]
    place = torch.full((len(centres),), -1, device=x.device)
    place[moved] = torch.arange(len(moved), device=x.device)
    uncertain = []
    for rows in blocks(len(x), len(moved), x.device):
        scores = torch.addmm(-half[moved], x[rows], centres[moved].T)
        own = place[at.centre[rows]]
        mine = own >= 0
        scores[mine.nonzero().flatten(), own[mine]] = -math.inf
        best, which = scores.max(dim=1)
        score, others = at.score[rows], at.others[rows]
        # beaten by a moved centre that no other can beat; or by one that only a look at all of them can tell
        switch = (best > score) & (best >= others)
        uncertain.append(rows[(torch.maximum(score, best) < others)])
        scores[switch.nonzero().flatten(), which[switch]] = -math.inf
        best_of_rest = torch.where(switch, score, best)
        best_of_rest[switch] = torch.maximum(best_of_rest[switch], scores[switch].amax(dim=1))
        at.others[rows] = torch.maximum(best_of_rest, others)
        at.score[rows] = torch.where(switch, best, score)
        at.centre[rows] = torch.where(switch, moved[which], at.centre[rows])
    again = torch.cat(uncertain)
    if len(again):
        found, own, score = assign_all(x[again], centres), at.centre[again], at.score[again]
        leaves = found.score > score  # not for one that is as near: identical points keep their clusters
        at.centre[again] = torch.where(leaves, found.centre, own)
        at.score[again] = torch.where(leaves, found.score, score)
        at.others[again] = torch.where(leaves | (found.centre == own), found.others, found.score)


def assign_all(x: Tensor, centres: Tensor) -> Assigned:
    """Every point against every centre."""
    half = centres.square().sum(dim=1) / 2
    parts = []
    for rows in blocks(len(x), len(centres), x.device):
        scores = torch.addmm(-half, x[rows], centres.T)
        score, which = scores.max(dim=1)
        scores.scatter_(1, which[:, None], -math.inf)
        parts.append((which, score, scores.amax(dim=1)))
    return Assigned(*(torch.cat(part) for part in zip(*parts, strict=True)))


def start(x: Tensor, k: int, rounds: int, generator: torch.Generator) -> tuple[Tensor, Assigned]:
    """k points as centres, drawn in rounds: those of a round with probability proportional to their squared distance
    from the centres of the rounds before (k-means++ with k rounds)."""
    n = len(x)
    lengths = x.square().sum(dim=1)
    at = Assigned(
        torch.zeros(n, dtype=torch.long, device=x.device),
        torch.full((n,), -math.inf, dtype=x.dtype, device=x.device),
        torch.full((n,), -math.inf, dtype=x.dtype, device=x.device),
    )
    chosen = torch.zeros(0, dtype=torch.long, device=x.device)
    sizes = [len(part) for part in torch.arange(k).tensor_split(min(rounds, k))]
    for size in sizes:
        distances = (lengths - 2 * at.score).clamp_min(0) if len(chosen) else torch.ones_like(lengths)
        distances[chosen] = 0  # exactly, whatever rounding says
        # the smallest of exponential waiting times: a draw without replacement
        waiting = torch.empty(n, dtype=torch.float64).exponential_(generator=generator).to(x.device) / distances
        waiting[chosen] = math.inf
        # all points coincide with a centre: any will do
        drawn = torch.where(waiting.isnan(), math.inf, waiting).topk(size, largest=False).indices
        if waiting[drawn].isinf().any():
            rest = torch.ones(n, dtype=torch.bool, device=x.device)
            rest[chosen] = False
            rest[drawn[waiting[drawn].isfinite()]] = False
            drawn = torch.cat([drawn[waiting[drawn].isfinite()], rest.nonzero().flatten()])[:size]
        extend(x, x[drawn], len(chosen), at)
        chosen = torch.cat([chosen, drawn])
    return x[chosen], at


def extend(x: Tensor, centres: Tensor, first: int, at: Assigned) -> None:
    """More centres, numbered from `first` on."""
    half = centres.square().sum(dim=1) / 2
    for rows in blocks(len(x), len(centres), x.device):
        scores = torch.addmm(-half, x[rows], centres.T)
        best, which = scores.max(dim=1)
        scores.scatter_(1, which[:, None], -math.inf)
        second = scores.amax(dim=1)
        closer = best > at.score[rows]
        loser = torch.where(closer, at.score[rows], best)
        at.others[rows] = torch.maximum(torch.maximum(at.others[rows], second), loser)
        at.score[rows] = torch.where(closer, best, at.score[rows])
        at.centre[rows] = torch.where(closer, which + first, at.centre[rows])


def squared_distances(x: Tensor, centres: Tensor, which: Tensor) -> Tensor:
    """Of each point to one centre, (n,)."""
    rows = blocks(len(x), x.shape[1], x.device)
    return torch.cat([(x[some] - centres[which[some]]).square().sum(dim=1) for some in rows])


def repair(x: Tensor, at: Assigned, k: int, changed: Tensor) -> None:
    """Give each empty cluster the point farthest from its centre, of those in clusters that keep another."""
    sizes = at.centre.bincount(minlength=k)
    empty = (sizes == 0).nonzero().flatten().tolist()
    if not empty:
        return
    distances = x.square().sum(dim=1) - 2 * at.score
    for cluster in empty:
        farthest = int(torch.where(sizes[at.centre] > 1, distances, -math.inf).argmax())
        left = int(at.centre[farthest])
        sizes[left] -= 1
        sizes[cluster] = 1
        changed[[left, cluster]] = True
        at.centre[farthest] = cluster
        at.others[farthest] = math.inf  # the centre is new: the point is looked at in full
        distances[farthest] = -math.inf


def blocks(rows: int, columns: int, device: torch.device) -> Iterator[Tensor]:
    """Rows at once whose products with so many columns fit a block."""
    yield from torch.arange(rows, device=device).split(max(1, BLOCK // max(columns, 1)))


def of_scikit_learn(x: Tensor, k: int, seed: int, recipe: Recipe) -> Tensor:
    from sklearn.cluster import KMeans

    found = KMeans(k, n_init=1, max_iter=recipe.iterations, random_state=seed).fit(x.cpu().numpy())
    return torch.from_numpy(found.labels_).long().to(x.device)
