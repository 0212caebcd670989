"""A small network and small data, on which any loss can be checked: also a method that is more than a loss."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from losses.base import Batch, Loss, Z

CLASSES, DIM = 6, 5
HEAD_DIM = 16  # of a method that builds its own head
SEED = 7


def make(loss: type[Loss], dtype: torch.dtype = torch.float32, **knobs: Any) -> "Loss | Method | Student":
    """The loss; a method that builds its own head stands behind a small network, so that it too takes (n, DIM), and one
    that has a teacher gets one."""
    torch.manual_seed(0)
    return new(loss, **knobs).to(dtype)


def new(loss: type[Loss], classes: int = CLASSES, dim: int = DIM, **knobs: Any) -> "Loss | Method | Student":
    if loss.head_dim:
        return Method(loss(classes, HEAD_DIM if dim == DIM else loss.head_dim, **knobs), dim)
    made = loss(classes, dim, **knobs)
    return Student(made) if has_teacher(loss) else made


def has_teacher(loss: type[Loss]) -> bool:
    return "teacher" in inspect.signature(loss.__init__).parameters


def teacher_of(labels: Tensor) -> Callable[[Tensor], Tensor]:
    """A teacher that sees nothing but the classes: each image at its class's own point."""
    points = torch.randn(int(labels.max()) + 1, DIM, generator=torch.Generator().manual_seed(0))
    return lambda images: points[labels]


class Student(nn.Module):
    """A loss that has a teacher, with one."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss = loss
        self.dim_below_batch, self.lr_factor = loss.dim_below_batch, loss.lr_factor

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss.value(x, y, Batch(x.detach(), y, teacher=teacher_of(y)))


class Spread(nn.Module):
    """(n, c) as a map (n, c, 8, 8)."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, None, None].expand(*x.shape, 8, 8)


@dataclass(frozen=True)
class SmallTrunk:
    """A linear network of three stages, from points to maps; see losses/hooks.py."""

    stages: Sequence[nn.Module]
    width: int

    @classmethod
    def of(cls, width: int) -> "SmallTrunk":
        convolutions = [nn.Conv2d(width, width, 1, stride, bias=False) for stride in (1, 2, 2)]
        for convolution in convolutions:
            nn.init.orthogonal_(convolution.weight)
        return cls((nn.Sequential(Spread(), convolutions[0]), *convolutions[1:]), width)

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        return [(self.width, side, side) for side in (8, 4, 2)]

    def pool(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))

    def __call__(self, images: Tensor) -> Tensor:
        for stage in self.stages:
            images = stage(images)
        return self.pool(images)


class Method(nn.Module):
    """A method with a head of its own, on a small network: from points (n, width), as from images."""

    def __init__(self, loss: Loss, width: int) -> None:
        super().__init__()
        self.loss = loss
        self.trunk = SmallTrunk.of(width)
        self.stages = nn.ModuleList(self.trunk.stages)
        self.head = loss.head(self.trunk).eval()  # without dropout
        self.dim_below_batch, self.lr_factor = loss.dim_below_batch, loss.lr_factor

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss.value(self.z(x), y, Batch(x.detach(), y, teacher=teacher_of(y)))

    def z(self, x: Tensor) -> Z:
        """What the head gives, for training."""
        self.head.training = True  # of the head alone: not of its dropout
        return self.head(x)


def loss_of(instance: "Loss | Method | Student") -> Loss:
    return instance if isinstance(instance, Loss) else instance.loss


def compared(instance: "Loss | Method | Student", x: Tensor) -> Tensor:
    """What is compared at test time."""
    return loss_of(instance).represent(instance.z(x) if isinstance(instance, Method) else x)


def value_of(loss: "Loss | Method | Student", x: Tensor, y: Tensor, seed: int = SEED) -> Tensor:
    torch.manual_seed(seed)
    return loss.value(x, y, Batch(x.detach(), y)) if isinstance(loss, Loss) else loss(x, y)


def usual(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Four classes of two images."""
    x = torch.randn(8, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    return x, torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])


@dataclass(frozen=True)
class SmallView:
    """The training images of a small dataset before an epoch; see losses/hooks.py."""

    epoch: int
    generator: torch.Generator
    steps: int = 7
    classes: int = 3
    samples: int = 2
    epochs: int = 4
    warmup: bool = False

    @classmethod
    def before(cls, epoch: int) -> "SmallView":
        return cls(epoch, torch.Generator().manual_seed(epoch))

    @property
    def labels(self) -> Tensor:
        return torch.arange(CLASSES).repeat_interleave(5)

    def embed(self) -> Tensor:
        """Classes at places of their own, and images that move from epoch to epoch."""
        fixed, moving = torch.Generator().manual_seed(0), torch.Generator().manual_seed(self.epoch)
        centres = torch.randn(CLASSES, DIM, generator=fixed)
        return centres[self.labels] + 0.5 * torch.randn(len(self.labels), DIM, generator=moving)

    features = embed
