"""What every loss of this package promises (losses/contract.py), and that each check finds a loss that breaks it."""

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

import losses
from harness import config
from losses import contract
from losses.base import Loss, Planned, Range, Trunk, View, Z, cosines, unit
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


class Headless(Sound):
    """Sound, with a dimension of a head that it has not."""

    head_dim = 8


class Unplanned(Sound):
    """Sound, with batches that nobody can make again."""

    def plan(self, epoch: int, view: View) -> Sequence[Planned]:
        return [Planned(torch.randperm(4)) for _ in range(view.steps)]


class Wasteful(Sound):
    """Sound, with fewer batches than an epoch has steps."""

    def plan(self, epoch: int, view: View) -> Sequence[Planned]:
        return [Planned(torch.arange(4))]


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
    "builds a head that compares any classes": Headless,
    "plans the same batches again, also resumed": Unplanned,
    "plans what an epoch needs": Wasteful,
}


@pytest.mark.parametrize("promise", CHECKS)
def test_a_sound_loss_passes_and_a_broken_one_is_found(promise: str) -> None:
    CHECKS[promise](Sound)
    with pytest.raises((AssertionError, RuntimeError)):  # NotImplementedError is one
        CHECKS[promise](BROKEN[promise])


def test_a_wrong_gradient_is_told_without_the_matrices_of_torch() -> None:
    with pytest.raises(AssertionError, match="finite differences of its value give another gradient"):
        contract.has_the_gradient_of_its_value(WrongGradient)


def test_a_loss_that_is_no_scalar_is_found() -> None:
    with pytest.raises(TypeError, match=r"forward returned shape \(\d+,\); it must return one number"):
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


# --- the hooks ---


class Projected(Sound):
    """Sound on an embedding of its own, which the number of classes does not change, and with batches of its own."""

    head_dim = 8
    seen: Tensor

    def __init__(self, num_classes: int, dim: int, *, margin: float = 0.5) -> None:
        super().__init__(num_classes, dim, margin=margin)
        self.register_buffer("seen", torch.empty(0, dtype=torch.long))

    def head(self, trunk: Trunk) -> nn.Module:
        return Projection(trunk, self.dim)

    def plan(self, epoch: int, view: View) -> Sequence[Planned]:
        """Batches of the first classes; each image of the last one is remembered."""
        self.seen = torch.cat([self.seen, view.labels[-1:]])
        return [Planned(torch.tensor([0, 1, 5, 6]) + step % 3, len(self.seen)) for step in range(view.steps)]


class Projection(nn.Module):
    def __init__(self, trunk: Trunk, dim: int) -> None:
        super().__init__()
        self.trunk, self.linear = trunk, nn.Linear(trunk.width, dim)

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(self.trunk(images))


@pytest.mark.parametrize("promise", CHECKS)
def test_a_sound_method_passes(promise: str) -> None:
    CHECKS[promise](Projected)


def test_a_head_of_so_many_training_classes_is_found() -> None:
    class Classes(Projected):
        def head(self, trunk: Trunk) -> nn.Module:
            return Projection(trunk, self.num_classes)

    with pytest.raises(AssertionError, match="its head depends on the number of training classes"):
        CHECKS["builds a head that compares any classes"](Classes)


def test_a_head_that_owns_the_trunk_is_found() -> None:
    class Owning(Projected):
        def head(self, trunk: Trunk) -> nn.Module:
            head = Projection(trunk, self.dim)
            head.stages = nn.ModuleList(trunk.stages)
            return head

    with pytest.raises(AssertionError, match="its head owns the trunk"):
        CHECKS["builds a head that compares any classes"](Owning)


def test_what_is_compared_must_not_be_learned() -> None:
    class Turned(Projected):
        def __init__(self, num_classes: int, dim: int) -> None:
            super().__init__(num_classes, dim)
            self.turn = nn.Parameter(torch.randn(dim, dim))

        def represent(self, z: Z) -> Tensor:
            return super().represent(z) @ self.turn

    with pytest.raises(AssertionError, match="depends on more than its knobs and its head"):
        CHECKS["builds a head that compares any classes"](Turned)


def test_a_plan_that_is_remembered_outside_of_buffers_is_found() -> None:
    class Forgetting(Projected):
        count = 0

        def plan(self, epoch: int, view: View) -> Sequence[Planned]:
            self.count += 1
            return [Planned(torch.tensor([0, 1, 5, 6]), self.count) for _ in range(view.steps)]

    with pytest.raises(AssertionError, match="epoch 3: it plans otherwise when it is resumed"):
        CHECKS["plans the same batches again, also resumed"](Forgetting)


@pytest.mark.parametrize(
    ("indices", "error"),
    [
        ([0, 0, 5], "an image twice in a batch"),
        ([0, 5, 99], "an image that does not exist"),
        ([0, 1, 5, 6, 10, 11, 15], "a batch of 7 images"),
        ([0, 1], "a batch of one class, for a pair loss"),
        ([0, 5], "a batch without a pair, for a pair loss"),
    ],
)
def test_a_batch_that_no_loss_could_use_is_found(indices: list[int], error: str) -> None:
    class Odd(Sound):
        """Sound, called a pair loss."""

        family = "pair"

        def plan(self, epoch: int, view: View) -> Sequence[Planned]:
            return [Planned(torch.tensor(indices)) for _ in range(view.steps)]

    with pytest.raises(AssertionError, match=error):
        CHECKS["plans what an epoch needs"](Odd)
