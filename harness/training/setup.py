"""What a stage of training works on: the set-up of a trial, and the settings of one stage."""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import losses
from harness.backbones.network import Embedder, Network, create
from harness.data.folds import Fold, Images
from harness.data.sampler import Balanced, Shuffled
from harness.spec import Job, Trial, UserError
from losses.base import Loss

FEWEST_CLASSES = 2  # that a loss may have


@dataclass(frozen=True)
class TrialSetup:
    """What every stage of a trial shares."""

    trial: Trial
    device: torch.device
    model: Network
    images: Images
    fold: Fold
    teacher: Callable[[Tensor], Tensor] | None = None  # what a second network compares of images
    attempts: tuple[
        Mapping[str, Any], ...
    ] = ()  # the conditions of each attempt so far that differ; the last are now's


@dataclass(frozen=True)
class Stage:
    """A loss trained for some epochs, with all settings of its training: pre-training, warm-up, or the trial itself."""

    name: str
    loss: Loss
    batches: Balanced | Shuffled
    epochs: float  # of a fraction, the last epoch ends early
    optimizer: str
    lr: float
    head_lr: float  # of the embedding layer; the loss's own parameters have this times its lr_factor
    weight_decay: float
    augment: str
    precision: str
    eps: float = 1e-8  # the optimizer's
    schedule: str = "drops"
    drops: tuple[int, ...] = ()
    best: str = ""  # a metric: the stage ends with the network of its best epoch on the held-out classes
    frozen: bool = False  # the trunk does not learn
    stop_after: int = 0  # the epoch after which it ends, with the schedule of all; 0: it does not end early
    plans: bool = True  # the loss may plan its batches

    @property
    def steps(self) -> int:
        """Of the schedule; a fraction of an epoch has at least one."""
        return max(1, round(self.epochs * len(self.batches))) if self.epochs else 0

    @property
    def schedule_epochs(self) -> int:
        """Of the schedule, also if the stage ends before."""
        return math.ceil(self.steps / len(self.batches))

    @property
    def last_epoch(self) -> int:
        return self.stop_after or self.schedule_epochs

    @property
    def last_step(self) -> int:
        return min(self.steps, self.last_epoch * len(self.batches))

    def steps_of(self, epoch: int) -> int:
        """The steps of one epoch, the first of which is 1."""
        return min(len(self.batches), self.steps - (epoch - 1) * len(self.batches))


def main_stage(setup: TrialSetup, loss: Loss) -> Stage:
    """The stage that trains the trial's loss."""
    trial = setup.trial
    return Stage(
        name="train",
        loss=loss,
        batches=Balanced(setup.fold.train_labels, trial.classes_per_batch, trial.samples_per_class),
        epochs=trial.epochs,
        optimizer=trial.optimizer,
        lr=trial.lr,
        head_lr=trial.lr * trial.head_lr_factor,
        weight_decay=trial.weight_decay,
        augment=trial.augment,
        precision=trial.precision,
        schedule=trial.schedule,
        drops=trial.drops,
        best="R@1" if trial.checkpoint == "best-test" else "",
        stop_after=trial.stop_after,
    )


def warmup_stage(main: Stage, epochs: float) -> Stage:
    """What comes before the main stage: the same batches at a constant rate, the trunk held still."""
    return replace(main, name="warmup", epochs=epochs, schedule="drops", drops=(), best="", frozen=True, stop_after=0)


def set_up(job: Job, images: Images, fold: Fold) -> tuple[TrialSetup, Loss | None]:
    """Network and loss of a trial, new parameters drawn from torch's global generator. Baselines and pre-trainings have
    no loss."""
    trial = job.trial
    device = device_of(job)
    model, loss = network_and_loss(trial, job.sources, fold.train_classes, weights_file=job.weights_file)
    model = model.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return TrialSetup(trial, device, model, images, fold), None if loss is None else loss.to(device)


def network_and_loss(
    trial: Trial,
    sources: Mapping[str, str],
    classes: int = FEWEST_CLASSES,
    *,
    weights_file: str = "",
    pretrained: bool = True,
) -> tuple[Network, Loss | None]:
    """Network and loss for so many training classes; the network alone does not depend on them."""
    if trial.is_baseline or trial.is_pretraining:
        return create(trial, weights_file, pretrained=pretrained), None
    kind = losses.get(trial.loss, sources)
    knobs = {**kind.added, **trial.knobs}  # a trial leaves out what means "as before"
    if kind.head_dim:  # the method builds a part of the network, so it comes first
        try:
            loss = kind(classes, trial.dim or kind.head_dim, **knobs)
            model = create(trial, weights_file, pretrained=pretrained, method=loss)
        except ValueError as error:  # a dimension that it cannot divide, a network that it cannot use
            raise UserError(f"{trial.loss}: {error}") from None
    else:
        model = create(trial, weights_file, pretrained=pretrained)
        loss = kind(classes, model.dim, **knobs)
    if isinstance(model, Embedder):
        model.follow(loss)
    return model, loss


def device_of(job: Job) -> torch.device:
    """The job's device; if it names none, a GPU if there is one."""
    return torch.device(job.device or ("cuda" if torch.cuda.is_available() else "cpu"))


def parameters(setup: TrialSetup, loss: Loss | None) -> int:
    """The number of parameters of network and loss."""
    return sum(p.numel() for module in (setup.model, loss) if module is not None for p in module.parameters())


def seed(trial: Trial, purpose: str) -> int:
    """One seed per purpose (weights, batches, augmentation), so that a draw for one does not move the others."""
    return int.from_bytes(hashlib.sha256(f"{trial.seed}:{purpose}".encode()).digest()[:6])


def half_precision(precision: str, device: torch.device) -> bool:
    """Whether forward passes use half precision: amp has an effect on CUDA only."""
    return precision == "amp" and device.type == "cuda"
