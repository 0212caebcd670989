"""What every stage of a trial works on: network, loss, images and settings."""

import hashlib
from dataclasses import dataclass

import torch

import losses
from harness.backbones import network
from harness.data import loading
from harness.data.sampler import Balanced, Shuffled
from harness.spec import Job, Trial
from harness.training import allocator
from losses.base import Loss


@dataclass
class Bench:
    """What every stage of a trial works on."""

    trial: Trial
    device: torch.device
    model: network.Embedder | network.Pixels
    images: loading.Images
    fold: loading.Fold

    @property
    def amp(self) -> bool:
        return self.trial.precision == "amp" and self.device.type == "cuda"


@dataclass(frozen=True)
class Stage:
    """A loss trained for some epochs: pre-training, or the trial itself."""

    name: str
    loss: Loss
    batches: Balanced | Shuffled
    epochs: int
    lr: float
    weight_decay: float
    augment: str
    eps: float = 1e-8  # the optimizer's
    schedule: str = "drops"
    drops: tuple[int, ...] = ()
    best: str = ""  # a metric: keep the epoch that has the best of it on the held-out classes


def seed(trial: Trial, purpose: str) -> int:
    """A seed of its own for each purpose: weights, batches, augmentation do not disturb each other."""
    return int.from_bytes(hashlib.sha256(f"{trial.seed}:{purpose}".encode()).digest()[:6])


def set_up(job: Job, images: loading.Images, fold: loading.Fold) -> tuple[Bench, Loss | None]:
    """Network and loss of a trial; a baseline has no loss."""
    trial = job.trial
    device = torch.device(job.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cpu":
        allocator.keep_freed()
    torch.manual_seed(seed(trial, "weights"))
    model = network.create(trial, job.weights_file)
    model = model.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    loss = None
    if trial.loss != "none":
        loss = losses.get(trial.loss, job.source)(fold.train_classes, model.dim, **trial.knobs).to(device)
    return Bench(trial, device, model, images, fold), loss


def parameters(bench: Bench, loss: Loss | None) -> int:
    return sum(p.numel() for module in (bench.model, loss) if module is not None for p in module.parameters())


def main_stage(bench: Bench, loss: Loss) -> Stage:
    trial = bench.trial
    return Stage(
        name="train",
        loss=loss,
        batches=Balanced(bench.fold.train_labels, trial.classes_per_batch, trial.samples_per_class),
        epochs=trial.epochs,
        lr=trial.lr,
        weight_decay=trial.weight_decay,
        augment=trial.augment,
        schedule=trial.schedule,
        drops=trial.drops,
        best="R@1" if trial.checkpoint == "best-test" else "",
    )
