"""What every loss of this package promises (losses/contract.py), and that each check finds a loss that breaks it."""

import random

import pytest
import torch
from torch import Tensor, nn

import losses
from harness import config
from losses import contract
from losses.base import Loss, Range, cosines, unit
from losses.contract import CHECKS


@pytest.mark.parametrize("promise", CHECKS)
@pytest.mark.parametrize("name", losses.shipped())
def test_keeps_the_contract(name: str, promise: str) -> None:
    CHECKS[promise](losses.get(name))


@pytest.mark.parametrize("name", losses.shipped())
def test_what_search_draws_is_allowed(name: str) -> None:
    spec = config.loss(name)
    assert set(spec.space) <= set(spec.knobs)
    for knob, space in spec.space.items():
        drawn = [space.sample(random.Random(seed)) for seed in range(20)]
        assert all(spec.knobs[knob].check(value) == value for value in drawn)


# --- the checks find what they look for: a loss that keeps its promises, and what each broken one breaks ---


class Sound(Loss):
    """Mean squared distance to the class's own point, which is learned, less a margin to the others."""

    title, cite, family = "Sound", "tests", "proxy"
    space = {"margin": Range(0.1, 1.0)}

    def __init__(self, num_classes: int, dim: int, *, margin: float = 0.5) -> None:
        super().__init__(num_classes, dim)
        self.margin = margin
        self.points = nn.Parameter(torch.randn(num_classes, dim))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        s = cosines(embeddings, self.points)
        own = s.gather(1, labels[:, None])
        return (s - own + self.margin).relu().square().mean()


class Infinite(Sound):
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return super().forward(embeddings, labels) / embeddings.abs().sum()


class PerImage(Sound):
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return unit(embeddings).sum(dim=1)


class Negative(Sound):
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return super().forward(embeddings, labels) - 100


class Blind(Sound):
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return super().forward(embeddings.nan_to_num(0), labels)


class Steep(Sound):
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return super().forward(embeddings, labels) + 1e4 * embeddings.square().mean()


class WrongGradient(Sound):
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return super().forward(embeddings, labels) * super().forward(embeddings, labels).detach()


class Ordered(Sound):
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return super().forward(embeddings[: len(labels) // 2 + 1], labels[: len(labels) // 2 + 1])


class Imprecise(Sound):
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return super().forward(embeddings, labels) + (1e-3 if embeddings.dtype == torch.float32 else 0.0)


class Forgetful(Sound):
    def __init__(self, num_classes: int, dim: int) -> None:
        super().__init__(num_classes, dim)
        self.offset = torch.rand(())

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return super().forward(embeddings, labels) + self.offset


class Idle(Sound):
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return super().forward(embeddings.detach(), labels) + 0 * embeddings.sum()


class Meddling(Sound):
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        torch.autograd.set_detect_anomaly(True)
        return super().forward(embeddings, labels)


class Huge(Sound):
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        self.points.new_empty(2, self.num_classes, self.num_classes)  # all pairs of classes, and their gradient
        return super().forward(embeddings, labels)


class Mislabelled(Sound):
    """The distance of pairs alone, called a proxy loss."""

    family = "proxy"

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return losses.get("triplet")(self.num_classes, self.dim)(embeddings, labels)


class Nameless(Sound):
    title = None  # type: ignore[assignment]


class Unsearchable(Sound):
    space = {"margin": Range(1e38, 1e39)}


BROKEN = {
    "says what it is": Nameless,
    "is finite with anything search may draw": Unsearchable,
    "gives a finite scalar and finite gradients on any batch": Infinite,
    "learns from what its family needs": Mislabelled,
    "is not negative": Negative,
    "shows a network that diverged": Blind,
    "keeps gradients in bounds on degenerate batches": Steep,
    "has the gradient of its value": WrongGradient,
    "does not depend on the order of the batch": Ordered,
    "agrees in float32 and float64": Imprecise,
    "survives copying, pickling and its state dict": Forgetful,
    "leaves torch's settings as they are": Meddling,
    "brings a class together": Idle,
    "stays small with 11,318 classes": Huge,
}


@pytest.mark.parametrize("promise", CHECKS)
def test_a_sound_loss_passes_and_a_broken_one_is_found(promise: str) -> None:
    CHECKS[promise](Sound)
    with pytest.raises((AssertionError, RuntimeError)):
        CHECKS[promise](BROKEN[promise])


def test_a_loss_that_is_no_scalar_is_found() -> None:
    with pytest.raises(RuntimeError):
        contract.gives_a_finite_scalar(PerImage)


def test_a_family_that_does_not_exist_is_found() -> None:
    class Strange(Sound):
        """Sound, of no known family."""

        family = "triplets"  # type: ignore[assignment]

    with pytest.raises(AssertionError, match="its family is 'triplets'; it must be one of classification, proxy, pair"):
        contract.says_what_it_is(Strange)


def test_a_value_for_a_knob_that_does_not_exist_is_found() -> None:
    class Outdated(Sound):
        """Sound, once with a power."""

        added = {"power": 2.0}

    with pytest.raises(AssertionError, match="`added` names power, which is no knob"):
        contract.says_what_it_is(Outdated)
