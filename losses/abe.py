"""ABE, attention-based ensemble: one network, seen through several learned masks."""

import copy
from collections.abc import Sequence
from itertools import combinations
from typing import Annotated

import torch
from torch import Tensor, nn

from losses.base import Limit, Loss, Positive, Range, Trunk, Z, squared_distances, unit


class Abe(Loss):
    """M learners B_m(x) = G( S(x) * A_m(S(x)) ) of one network, * elementwise (Kim et al.; no code was released).

    L = sum_m L_m + diversity L_div
    L_m   = 1/2 mean over positive pairs of D_m^2  +  1/2 mean over negative pairs of [margin - D_m^2]+
    L_div = mean over images i of the sum over p < q of [ apart - |B_p(x_i) - B_q(x_i)|^2 ]+.
    D_m is the distance of two images in learner m, whose embeddings have unit length. margin, apart and diversity are
    1, as published: learners of an image are pushed apart until they are 60 degrees from each other.

    S is the first part of the network and G the rest, shared by all learners and run M times. A_m is a copy of the
    stages that follow S, shared by all learners and without their strides, then a 1 x 1 convolution per learner and a
    sigmoid: a mask of S's shape. At test time the learners' embeddings, each dim / M wide, stand side by side.

    The paper's text was not readable. The form, the constants and what learners share are from a third-party summary;
    that they share the copied stages too, the sigmoid, and a last Linear without bias are from a reimplementation
    (Horde).

    Our choices: pairs are all those of the batch, in place of 16 positive and 16 negative ones, and each kind weighs
    half, as there. L_div has the mean over images, and each pair of learners once; the summary's sum over p != q is
    twice as much. S ends before the stages that reduce to stride 16, which are those that are copied. In GoogLeNet that
    reduction is a pooling of its own, and the paper's S ends after it. The Linear and the convolutions begin with
    Glorot's weights.

    At first the masks are 0.5 on average, so G gets smaller values than it was trained on. The statistics of its batch
    normalisation do not fit them, and with `freeze_bn` they stay as they are. Stages are copied before pre-training,
    which then changes the network and not the copy: A_m begins with the weights from before it, such as ImageNet's.
    """

    title = "ABE"
    cite = "Kim et al., ECCV 2018"
    family = "pair"
    bibtex = """
    @inproceedings{kim2018attention,
      author = {Kim, Wonsik and Goyal, Bhavya and Chawla, Kunal and Lee, Jungmin and Kwon, Keunjoo},
      title = {Attention-based Ensemble for Deep Metric Learning},
      booktitle = {European Conference on Computer Vision (ECCV)},
      year = {2018},
    }
    """
    space = {"margin": Range(0.5, 1.5), "diversity": Range(0.1, 10.0, log=True)}
    head_dim = 512
    extras = "Learned masks, from a copy of a part of the network; the part behind them runs once per learner."

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        learners: Annotated[int, Limit(least=1, most=64), "masks, and so passes through the network's second part"] = 8,
        margin: Annotated[Positive, "squared distance beyond which a negative pair does not matter"] = 1.0,
        diversity: Annotated[float, Limit(least=0), "weight of the term that keeps learners apart"] = 1.0,
        apart: Annotated[Positive, "squared distance at which two learners of an image are far enough"] = 1.0,
    ) -> None:
        super().__init__(num_classes, dim)
        if dim % learners:
            raise ValueError(f"dim={dim}: must be a multiple of learners={learners}")
        self.learners = learners
        self.margin, self.diversity, self.apart = margin, diversity, apart

    def head(self, trunk: Trunk) -> nn.Module:
        return Attention(trunk, self.learners, self.dim // self.learners)

    def split(self, z: Z) -> list[Tensor]:
        """The learners' embeddings, each of unit length."""
        assert isinstance(z, Tensor)
        return [unit(part) for part in z.split(self.dim // self.learners, dim=1)]

    def represent(self, z: Z) -> Tensor:
        return torch.cat(self.split(z), dim=1)

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        learners = self.split(z)
        same = labels[:, None] == labels
        positive = same.clone().fill_diagonal_(False)
        total = z.new_zeros(())
        for b in learners:
            D2 = squared_distances(b)
            pull = D2.masked_fill(~positive, 0).sum() / positive.sum().clamp_min(1)
            push = (self.margin - D2).relu().masked_fill(same, 0).sum() / (~same).sum().clamp_min(1)
            total = total + (pull + push) / 2
        return total + self.diversity * self.overlap(learners)

    def overlap(self, learners: list[Tensor]) -> Tensor:
        """L_div of the learners' embeddings, each (n, dim / M)."""
        total = learners[0].new_zeros(())
        for p, q in combinations(learners, 2):
            total = total + (self.apart - (p - q).square().sum(dim=1)).relu().mean()
        return total


class Attention(nn.Module):
    """The learners' raw embeddings, side by side."""

    def __init__(self, trunk: Trunk, learners: int, size: int) -> None:
        super().__init__()
        self.trunk, self.learners = trunk, learners
        self.cut, end = places(trunk.shapes)
        channels, *sides = trunk.shapes[self.cut - 1]
        self.attention = nn.Sequential(*(unstrided(stage) for stage in trunk.stages[self.cut : end]))
        self.masks = nn.Conv2d(trunk.shapes[end - 1][0], learners * channels, 1)
        self.linear = nn.Linear(trunk.width, size, bias=False)
        for layer in (self.masks, self.linear):
            nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(self.masks.bias)  # type: ignore[arg-type]
        self.check(channels, sides)

    def check(self, channels: int, sides: list[int]) -> None:
        """A ValueError if the copied stages do not keep the size of the map."""
        given = torch.zeros(1, channels, *sides, device=self.masks.weight.device, dtype=self.masks.weight.dtype)
        try:
            with torch.no_grad():
                found = list(self.attention.eval()(given).shape[2:])
        except RuntimeError:  # its branches no longer fit together: a pooling that is no module keeps its stride
            raise ValueError(f"a map of {sides} does not pass: this backbone's stages cannot keep its size") from None
        self.attention.train()
        if found != sides:
            raise ValueError(f"a map of {sides} becomes {found}: this backbone's stages cannot keep its size")

    def forward(self, images: Tensor) -> Tensor:
        stages, S = self.trunk.stages, images
        for stage in stages[: self.cut]:
            S = stage(S)
        masks = self.masks(self.attention(S)).sigmoid().chunk(self.learners, dim=1)
        return torch.cat([self.linear(self.rest(S * mask)) for mask in masks], dim=1)

    def rest(self, x: Tensor) -> Tensor:
        """G, up to its Linear."""
        for stage in self.trunk.stages[self.cut :]:
            x = stage(x)
        return self.trunk.pool(x)


def places(shapes: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    """How many stages S has, and the end of those that are copied after it."""
    if len(shapes) < 2 or any(len(shape) != 3 for shape in shapes):
        raise ValueError("needs a network of two stages or more whose stages give maps; this backbone's do not")
    sides = [shape[-1] for shape in shapes]
    large = [number for number, side in enumerate(sides) if side >= 3 * sides[-1]]  # 4 times, if sizes were not rounded
    cut = min(large[-1] + 1 if large else 1, len(sides) - 1)
    end = cut + 1
    while end < len(sides) and sides[end] == sides[cut]:
        end += 1
    return cut, end


def unstrided(stage: nn.Module) -> nn.Module:
    """A copy that keeps the size of its map."""
    copied = copy.deepcopy(stage)
    for module in copied.modules():
        if isinstance(module, nn.Conv2d):
            module.stride = (1, 1)
        elif isinstance(module, nn.AvgPool2d | nn.MaxPool2d):
            module.kernel_size = module.stride = 1
            module.padding = 0
    return copied
