"""What a method that is more than a loss gets from a harness: the network's stages, the training images, the batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

Z = Tensor | dict[str, Tensor]  # what a head gives: embeddings (n, dim), or those and more


class Trunk(Protocol):
    """A network without classifier. Calling it runs the stages one after another, then `pool`."""

    @property
    def stages(self) -> Sequence[nn.Module]: ...

    @property
    def pool(self) -> Callable[[Tensor], Tensor]:
        """What the last stage gives, to (n, width)."""

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        """Of what each stage gives, without the batch: (c, h, w), of a vision transformer (tokens, c)."""

    @property
    def width(self) -> int: ...

    def __call__(self, images: Tensor) -> Tensor:
        """Normalised images to the pooled output (n, width)."""


class Planned(NamedTuple):
    """A batch that a method has planned, and what the method wants to know of it when it comes."""

    indices: Tensor  # of training images
    tag: int = 0


class View(Protocol):
    """The training images before an epoch, as `plan` sees them."""

    @property
    def labels(self) -> Tensor:
        """(N,) of the training images, 0..num_classes-1."""

    @property
    def steps(self) -> int:
        """How many batches the epoch has. A plan has as many: every method gets the same number of steps."""

    @property
    def classes(self) -> int:
        """Classes in a batch."""

    @property
    def samples(self) -> int:
        """Images of a class in a batch. No batch has more than classes x samples images."""

    @property
    def epochs(self) -> int:
        """How many epochs the schedule of the stage has. A trial with `stop_after` ends before."""

    @property
    def warmup(self) -> bool:
        """Whether the stage is a warm-up, in which the trunk does not learn. Its epochs are numbered from 1 too."""

    @property
    def generator(self) -> torch.Generator:
        """For the plan's draws: its seed follows from the trial and the epoch."""

    def embed(self) -> Tensor:
        """(N, dim) what is compared at test time of each training image, without augmentation, in evaluation mode."""

    def features(self) -> Tensor:
        """(N, width) the trunk's pooled output, likewise."""


@dataclass(frozen=True)
class Batch:
    """One step's images, on the device."""

    images: Tensor  # (n, 3, h, w) as the network gets them: augmented, RGB in 0..1
    labels: Tensor  # (n,)
    indices: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))  # of the training images
    tag: int = 0  # of the plan; 0 without one
    epoch: int = 1  # of its stage
    epochs: int = 1  # of the schedule of its stage
    warmup: bool = False
    # what the trial's teacher compares of images, without a gradient: (n, d); None unless the loss has a teacher
    teacher: Callable[[Tensor], Tensor] | None = None
