"""The batches that a method plans before an epoch, and what it sees to plan them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from harness.backbones.network import Embedder
from harness.data.sampler import Balanced
from harness.training.feeding import feed, plain
from harness.training.setup import Stage, TrialSetup, half_precision, seed
from losses.hooks import Planned


@dataclass(frozen=True)
class View:
    """The training images before an epoch: see losses/hooks.py."""

    setup: TrialSetup
    stage: Stage
    epoch: int

    @property
    def labels(self) -> Tensor:
        return self.setup.fold.train_labels

    @property
    def steps(self) -> int:
        return self.stage.steps_of(self.epoch)

    @property
    def classes(self) -> int:
        return self.stage.batches.classes if isinstance(self.stage.batches, Balanced) else 1

    @property
    def samples(self) -> int:
        return self.stage.batches.samples if isinstance(self.stage.batches, Balanced) else 1

    @property
    def epochs(self) -> int:
        return self.stage.schedule_epochs

    @property
    def warmup(self) -> bool:
        return self.stage.frozen

    @cached_property
    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(seed(self.setup.trial, f"{self.stage.name}:{self.epoch}:plan"))

    def embed(self) -> Tensor:
        return self.of_each(self.setup.model.embed)

    def features(self) -> Tensor:
        assert isinstance(self.setup.model, Embedder), "raw pixels are not trained"
        return self.of_each(self.setup.model.features)

    def of_each(self, network: Callable[[Tensor], Tensor]) -> Tensor:
        """What the network gives for each training image, as it is evaluated."""
        setup = self.setup
        setup.model.eval()
        amp = half_precision(setup.trial.precision, setup.device)
        # not inference_mode: what a loss computes from it may become a buffer
        with torch.no_grad(), torch.autocast(setup.device.type, enabled=amp):
            parts = [network(images).float() for images, _ in feed(setup.device, plain(setup, setup.fold.train))]
        return torch.cat(parts)


def plan(setup: TrialSetup, stage: Stage, epoch: int) -> Sequence[Planned] | None:
    """The batches that the stage's loss has planned for an epoch; None for the usual ones."""
    view = View(setup, stage, epoch)
    planned = stage.loss.plan(epoch, view) if stage.plans else None
    if planned is not None:
        check(planned, view, type(stage.loss).__name__)
    return planned


def check(planned: Sequence[Planned], view: View, loss: str) -> None:
    """A ValueError for batches that no epoch could be made of, or that are more than the other losses get."""
    if len(planned) != view.steps:
        raise ValueError(f"{loss}.plan: {len(planned)} batches; must be {view.steps}, the steps of epoch {view.epoch}")
    most = view.classes * view.samples
    for number, (indices, _) in enumerate(planned, start=1):
        if not 1 <= len(indices) <= most:
            raise ValueError(f"{loss}.plan: batch {number} has {len(indices)} images; must be 1 to {most}")
        if int(indices.min()) < 0 or int(indices.max()) >= len(view.labels):
            raise ValueError(f"{loss}.plan: batch {number} names an image that is not among the {len(view.labels)}")
