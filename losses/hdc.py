"""HDC, hard-aware deeply cascaded embedding: deeper levels of the network learn from harder pairs."""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from losses.base import Limit, Loss, Positive, Range, Trunk, Z, squared_distances, unit

HIDDEN = 1024  # units of a branch
WEIGHTS = {"1,1,1": (1.0, 1.0, 1.0), "1,1,2": (1.0, 1.0, 2.0), "1,2,3": (1.0, 2.0, 3.0)}


class Hdc(Loss):
    """A contrastive loss at three depths; the deeper, the harder the pairs that count (Yuan et al.; released code).

    L = sum over levels k of 1/2 ( sum over Q+ of D^2  +  factor sum over Q- of [margin - D^2]+ ) / (|Q+| + 2 |Q-|),
    D the distance of two images in the unit-length embedding of level k, Q+ and Q- the pairs of one class and of two
    classes that level k keeps and that have a loss. A level without any gives 0.

    Level k keeps the hardest `first`, `second`, `third` share of all positive and of all negative pairs, rounded down.
    Positive pairs at distance 0 count in that share here; the released code drops them before. It also ranks each
    negative pair twice, once in each order, so its share may keep one of the two; ours counts it once, and rounds down.
    - `cascade="own"`, the released code: every level ranks all pairs by its own loss. "A simple approximation", says
      its author.
    - `cascade="previous"`, the paper's: a level chooses among the pairs of the level before, ranked by that level's
      loss. Whether the paper's shares are of all pairs or of the level before is not known to us; here they are of all.

    The value is that whose gradient the released code applies. What it reports has 1 and 2 factor in place of 1/2 and
    1/2 factor.

    The levels: GoogLeNet's inception_4a, inception_4d and the pooled output; here the first and the last stage of the
    resolution before the last one, and the pooled output. If that resolution has a single stage, the one before it
    counts as the first; where all stages have one resolution, those at one and at two thirds of the depth do. Branches
    are global average pooling, Linear 1024, ReLU, dropout 0.7, Linear; the released ones are GoogLeNet's auxiliary
    heads, with an average pooling of 5 x 5, a 1 x 1 convolution and ImageNet's weights. Level 3 has dropout 0.4 and a
    Linear. There the last Linears begin with Glorot's weights and learn 10 times as fast as other layers; here all
    layers of the head begin as torch's do and learn at one rate.

    At test time the three unit-length embeddings stand side by side, scaled by `weights`: 1,1,2 for CUB-200-2011, 1,2,3
    for Cars196, 1,1,1 for Stanford Online Products in the released code, and so in the protocols of the paper (`paper`,
    `released`, `counted`).
    """

    title = "HDC"
    cite = "Yuan et al., ICCV 2017"
    family = "pair"
    bibtex = """
    @inproceedings{yuan2017hard,
      author = {Yuan, Yuhui and Yang, Kuiyuan and Zhang, Chao},
      title = {Hard-Aware Deeply Cascaded Embedding},
      booktitle = {IEEE International Conference on Computer Vision (ICCV)},
      year = {2017},
    }
    """
    space = {"margin": Range(0.5, 1.5), "factor": Range(1.0, 20.0, log=True)}
    head_dim = 384
    extras = "Embeddings at three depths of the network, with layers of their own."

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        margin: Annotated[Positive, "squared distance beyond which a negative pair does not matter"] = 1.0,
        factor: Annotated[Positive, "weight of negative pairs"] = 10.0,
        first: Annotated[float, Limit(above=0, most=1), "share of the pairs that level 1 keeps"] = 1.0,
        second: Annotated[float, Limit(above=0, most=1), "share of the pairs that level 2 keeps"] = 0.5,
        third: Annotated[float, Limit(above=0, most=1), "share of the pairs that level 3 keeps"] = 0.2,
        cascade: Annotated[
            Literal["own", "previous"], "a level ranks all pairs by its own loss, or those of the level before by its"
        ] = "own",
        weights: Annotated[Literal["1,1,1", "1,1,2", "1,2,3"], "of the levels at test time"] = "1,1,1",
    ) -> None:
        super().__init__(num_classes, dim)
        if dim < 3:
            raise ValueError(f"dim={dim}: must be at least 3, one for each level")
        self.margin, self.factor = margin, factor
        self.shares = (first, second, third)
        self.cascade = cascade
        self.weights = WEIGHTS[weights]

    def head(self, trunk: Trunk) -> nn.Module:
        return Levels(trunk, [part.numel() for part in torch.empty(self.dim).tensor_split(3)])

    def represent(self, z: Z) -> Tensor:
        return torch.cat([w * unit(f) for w, f in zip(self.weights, self.levels(z), strict=True)], dim=1)

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        rows, columns = torch.triu_indices(len(labels), len(labels), 1, device=labels.device)
        positive = labels[rows] == labels[columns]
        squares = [squared_distances(unit(f))[rows, columns] for f in self.levels(z)]
        # by distance, not by loss: beyond the margin all losses are 0
        hardness = [torch.where(positive, pairs, -pairs).detach() for pairs in squares]
        total = z.new_zeros(())
        for kept, pairs in zip(self.keep(hardness, positive), squares, strict=True):
            losses = torch.where(positive, pairs, self.factor * (self.margin - pairs).relu())
            counted = kept & ~(losses.detach() <= 0)  # also a NaN, which must show
            count = (counted & positive).sum() + 2 * (counted & ~positive).sum()
            total = total + losses[counted].sum() / 2 / count.clamp_min(1)
        return total

    @staticmethod
    def levels(z: Z) -> tuple[Tensor, ...]:
        assert isinstance(z, Tensor)
        return z.tensor_split(3, dim=1)

    def keep(self, hardness: list[Tensor], positive: Tensor) -> list[Tensor]:
        """Which pairs each level keeps, given how hard all pairs are at each level."""
        kept = [torch.zeros_like(positive) for _ in hardness]
        for kind in (positive, ~positive):
            count = int(kind.sum())
            allowed = kind
            for level, share in enumerate(self.shares):
                ranked = hardness[level if self.cascade == "own" else max(level - 1, 0)]
                pairs = hardest(ranked, allowed, int(share * count + 1e-9))
                kept[level] |= pairs
                allowed = pairs if self.cascade == "previous" else kind
        return kept


def hardest(hardness: Tensor, among: Tensor, count: int) -> Tensor:
    """The `count` hardest pairs among the allowed ones; all of them if there are fewer."""
    chosen = torch.zeros_like(among)
    ranked = hardness.nan_to_num(nan=torch.inf).masked_fill(~among, -torch.inf)
    chosen[ranked.topk(min(count, int(among.sum()))).indices] = True
    return chosen


class Levels(nn.Module):
    """The embeddings of three depths, side by side."""

    def __init__(self, trunk: Trunk, sizes: list[int]) -> None:
        super().__init__()
        self.trunk = trunk
        self.taps = taps(trunk.shapes)
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Linear(channels, HIDDEN), nn.ReLU(), nn.Dropout(0.7), nn.Linear(HIDDEN, size))
            for channels, size in zip((channels_of(trunk.shapes[at]) for at in self.taps), sizes[:2], strict=True)
        )
        self.last = nn.Sequential(nn.Dropout(0.4), nn.Linear(trunk.width, sizes[2]))

    def forward(self, x: Tensor) -> Tensor:
        levels = []
        for number, stage in enumerate(self.trunk.stages):
            x = stage(x)
            levels += [branch(pooled(x)) for branch, at in zip(self.branches, self.taps, strict=True) if at == number]
        return torch.cat([*levels, self.last(self.trunk.pool(x))], dim=1)


def taps(shapes: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    """The stages after which levels 1 and 2 begin."""
    sides = [shape[-1] if len(shape) == 3 else 0 for shape in shapes]
    larger = [number for number, side in enumerate(sides) if side > sides[-1]]
    if not larger:
        return len(sides) // 3, 2 * len(sides) // 3
    first = sides.index(sides[larger[-1]])
    return (first, larger[-1]) if first < larger[-1] else (max(first - 1, 0), larger[-1])


def channels_of(shape: tuple[int, ...]) -> int:
    """Of a map (c, h, w) or of tokens (tokens, c)."""
    return shape[0] if len(shape) == 3 else shape[-1]


def pooled(x: Tensor) -> Tensor:
    """The mean over places of a map, or over tokens."""
    return x.mean(dim=(2, 3)) if x.ndim == 4 else x.mean(dim=1)
