"""Divide and Conquer: clusters of the training images, each of which trains a slice of the embedding."""

from collections.abc import Sequence
from itertools import permutations
from typing import Annotated

import torch
from torch import Tensor, nn

from losses.base import Batch, Limit, Loss, Planned, Positive, Range, Trunk, View, Z, unit
from losses.margin import Margin

JOINT = -1  # the tag of a batch that trains the whole embedding
ITERATIONS, RESTARTS = 100, 5  # of k-means, as in the released code
BLOCK = 4096  # images whose differences from their centres are computed at once


class DivideConquer(Loss):
    """K slices of the embedding, each trained on one of K clusters of the images (Sanakoyeu et al.; released code).

    L = the margin loss (see `margin`) of unit(slice k) in a batch of cluster k; of unit(all slices) in the joint phase,
    where every slice has unit length first. Negatives are drawn by the density of distances in as many dimensions, none
    at beta + margin or farther, where they have no loss (1.4 by default).

    Every `regroup` epochs k-means divides the training images, by the trunk's pooled features of unit length, into K
    clusters, which take the numbers of those before that they have most images in common with. A batch comes from one
    cluster, and clusters take turns, from the first one in every epoch: where the steps of an epoch are no multiple of
    K, the first clusters have one batch more, and in a part of an epoch with fewer than K steps the last have none. In
    a cluster, images that are alone in their class rest until the next clustering.
    From the share `joint` of the epochs on, batches still come from clusters, but train all slices; in the last 20th of
    all epochs they then come from all images. At test time the slices, each of unit length, stand side by side.

    Differences from the released code. The renaming of clusters is the inverse there, so it is right only for
    permutations that are their own inverse. Its batches repeat images of small classes, ours do not. Its epoch has as
    many rounds as the largest cluster has batches; here every loss has the same number of steps. The images of a
    cluster without two classes of two images go to the nearest centres of the others. Its negatives are the 3 nearest
    with a distance of 0.5 or more; an author says that the published numbers need negatives drawn by distance, as ours
    are. beta is 1.2 and not learned, as there. dropout of 0.01 before the Linear, as there; a slice's weights begin
    with Glorot's.

    joint: 0.4 is what the released code's defaults come to (epoch 80 of 200), so most of the training is joint. The
    paper, as far as we know, speaks of a short joint stage at the end.

    K: 8 in the released code, for Stanford Online Products, and so there in the protocols of the paper (`paper`,
    `released`, `counted`); 4 for CUB-200-2011 and Cars196, as far as public threads tell, and so by default. The
    published backbone is ResNet-50.
    """

    title = "Divide and Conquer"
    cite = "Sanakoyeu et al., CVPR 2019"
    family = "pair"
    bibtex = r"""
    @inproceedings{sanakoyeu2019divide,
      author = {Sanakoyeu, Artsiom and Tschernezki, Vadim and B{\"u}chler, Uta and Ommer, Bj{\"o}rn},
      title = {Divide and Conquer the Embedding Space for Metric Learning},
      booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)},
      year = {2019},
    }
    """
    space = {"margin": Range(0.05, 0.5, log=True), "beta": Range(0.6, 1.4), "joint": Range(0.2, 0.9)}
    head_dim = 128
    extras = "Its own batches, from clusters of the training images, which it embeds again every few epochs."
    clustered: Tensor

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        clusters: Annotated[int, Limit(least=1, most=8), "clusters of images, and slices of the embedding"] = 4,
        margin: Annotated[Positive, "half of the gap between positives and negatives"] = 0.2,
        beta: Annotated[Positive, "the boundary between positives and negatives"] = 1.2,
        regroup: Annotated[int, Limit(least=1), "epochs between two clusterings"] = 2,
        joint: Annotated[float, Limit(least=0, most=1), "share of the epochs after which slices learn together"] = 0.4,
    ) -> None:
        super().__init__(num_classes, dim)
        if dim < clusters:
            raise ValueError(f"dim={dim}: must be at least clusters={clusters}")
        self.clusters, self.regroup, self.joint = clusters, regroup, joint
        self.sizes = [part.numel() for part in torch.empty(dim).tensor_split(clusters)]
        self.slices = nn.ModuleList(
            Margin(num_classes, size, margin=margin, beta=beta, betas="fixed", nonzero_cutoff=None)
            for size in (*self.sizes, dim)
        )
        self.register_buffer("clustered", torch.empty(0, dtype=torch.long))  # (N,) the cluster of each training image

    def head(self, trunk: Trunk) -> nn.Module:
        return Slices(trunk, self.sizes)

    def represent(self, z: Z) -> Tensor:
        assert isinstance(z, Tensor)
        return torch.cat([unit(part) for part in z.split(self.sizes, dim=1)], dim=1)

    def forward(self, z: Tensor, labels: Tensor, batch: Batch | None = None) -> Tensor:
        tag = 0 if batch is None else batch.tag
        part = self.represent(z) if tag == JOINT else z.split(self.sizes, dim=1)[tag]
        return self.slices[tag](part, labels)

    def plan(self, epoch: int, view: View) -> Sequence[Planned]:
        passed = 0.0 if view.warmup else (epoch - 1) / view.epochs
        if not len(self.clustered) or (epoch - 1) % self.regroup == 0:
            clustered = cluster(unit(view.features()), self.clusters, view.labels, view.generator)
            previous = self.clustered.to(clustered.device)
            self.clustered = matched(clustered, previous, self.clusters) if len(previous) else clustered
        clustered = self.clustered.cpu()
        joint = passed >= self.joint and not view.warmup
        if joint and passed >= 0.95:
            clustered = torch.zeros_like(clustered)
        return [Planned(indices, JOINT if joint else tag) for indices, tag in batches(clustered, view)]


class Slices(nn.Module):
    """The raw embedding, whose slices begin with weights of their own."""

    def __init__(self, trunk: Trunk, sizes: list[int]) -> None:
        super().__init__()
        self.trunk = trunk
        self.dropout = nn.Dropout(0.01)
        self.linear = nn.Linear(trunk.width, sum(sizes))
        for weight in self.linear.weight.data.split(sizes):
            nn.init.xavier_normal_(weight)

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(self.dropout(self.trunk(images)))


def cluster(x: Tensor, k: int, labels: Tensor, generator: torch.Generator) -> Tensor:
    """The cluster 0..k-1 of each row of x (N, d). Clusters that no batch could come from are left empty."""
    x = x.double()
    centres, found = min((kmeans(x, k, generator) for _ in range(RESTARTS)), key=lambda run: within(x, *run))
    usable = torch.tensor([len(members(labels[(found == number).cpu()])) >= 2 for number in range(k)])
    if usable.all() or not usable.any():
        return found if usable.any() else torch.zeros_like(found)
    distances = torch.cdist(x, centres).masked_fill(~usable.to(x.device), torch.inf)
    return torch.where(usable.to(x.device)[found], found, distances.argmin(dim=1))


def kmeans(x: Tensor, k: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm from k-means++ centres: the centres (k, d), and the cluster of each row."""
    centres = x[torch.randint(len(x), (1,), generator=generator).to(x.device)]
    while len(centres) < k:
        nearest = torch.cdist(x, centres).amin(dim=1).square().cpu()
        weights = nearest if nearest.sum() > 0 else torch.ones_like(nearest)
        centres = torch.cat([centres, x[torch.multinomial(weights, 1, generator=generator).to(x.device)]])
    found = torch.cdist(x, centres).argmin(dim=1)
    for _ in range(ITERATIONS):
        counts = found.bincount(minlength=k)
        sums = torch.zeros_like(centres).index_add_(0, found, x)
        centres = torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None], centres)
        closest = torch.cdist(x, centres).argmin(dim=1)
        if torch.equal(closest, found):
            break
        found = closest
    return centres, found


def within(x: Tensor, centres: Tensor, found: Tensor) -> float:
    """The sum of squared distances to the centres."""
    blocks = zip(x.split(BLOCK), found.split(BLOCK), strict=True)
    return float(sum((rows - centres[numbers]).square().sum() for rows, numbers in blocks))


def matched(current: Tensor, previous: Tensor, k: int) -> Tensor:
    """The current clusters under the numbers of those before: the permutation with the fewest images that are in
    exactly one of a cluster and its namesake."""
    now, before = (nn.functional.one_hot(found, k).double() for found in (current, previous))
    cost = now.sum(dim=0)[:, None] + before.sum(dim=0) - 2 * now.T @ before
    orders = torch.tensor(list(permutations(range(k))), device=cost.device)  # at most 8! of them
    totals = cost[torch.arange(k, device=cost.device), orders].sum(dim=1)
    return orders[totals.argmin()][current]


def members(labels: Tensor) -> list[Tensor]:
    """The places of each class that has two images or more."""
    classes, counts = labels.unique(return_counts=True)
    return [(labels == label).nonzero().squeeze(1) for label in classes[counts >= 2]]


def batches(clustered: Tensor, view: View) -> list[tuple[Tensor, int]]:
    """As many batches as the epoch has steps, the clusters taking turns: images, and the number of their cluster."""
    tags = clustered.unique().tolist()
    images = {tag: (clustered == tag).nonzero().squeeze(1) for tag in tags}
    classes = {tag: [images[tag][rows] for rows in members(view.labels[images[tag]])] for tag in tags}
    turns: dict[int, list[int]] = {tag: [] for tag in tags}
    planned = []
    for step in range(view.steps):
        tag = tags[step % len(tags)]
        count = min(view.classes, len(classes[tag]))
        while len(turns[tag]) < count:  # no class comes again before the others had their turn
            fresh = torch.randperm(len(classes[tag]), generator=view.generator).tolist()
            turns[tag] += [number for number in fresh if number not in turns[tag]]
        chosen, turns[tag] = turns[tag][:count], turns[tag][count:]
        drawn = [shuffled(classes[tag][number], view.generator)[: view.samples] for number in chosen]
        planned.append((torch.cat(drawn), tag))
    return planned


def shuffled(items: Tensor, generator: torch.Generator) -> Tensor:
    return items[torch.randperm(len(items), generator=generator)]
