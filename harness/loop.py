"""One stage of training: epochs of batches, a checkpoint after each, Progress on the way."""

import dataclasses
import hashlib
import io
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness import backbones, data, transforms
from harness import storage as store_names
from harness.sampler import Balanced, Shuffled
from harness.spec import Progress, Trial
from harness.storage import Storage
from losses.base import Loss

EVERY = 8  # steps between two looks at the loss: each look makes a GPU wait


@dataclass
class Bench:
    """What every stage of a trial works on."""

    trial: Trial
    device: torch.device
    model: backbones.Embedder | backbones.Pixels
    images: data.Images
    fold: data.Fold

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
    schedule: str
    drops: tuple[int, ...]
    augment: str


def seed(trial: Trial, purpose: str) -> int:
    """A seed of its own for each purpose: weights, batches, augmentation do not disturb each other."""
    return int.from_bytes(hashlib.sha256(f"{trial.seed}:{purpose}".encode()).digest()[:6])


@dataclass
class Checkpoint:
    """A trial at the end of an epoch. What is random in an epoch follows from its number, so no generator's state is
    part of it."""

    stage: str = ""
    epoch: int = 0
    seconds: float = 0.0
    curve: list[dict[str, float]] = dataclasses.field(default_factory=list)
    state: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, storage: Storage, trial: Trial) -> "Checkpoint":
        """The stored one, or a blank one."""
        content = storage.read(store_names.checkpoint(trial.id))
        return cls(**torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)) if content else cls()

    def write(self, storage: Storage, trial: Trial) -> None:
        buffer = io.BytesIO()
        torch.save(vars(self), buffer)
        storage.write(store_names.checkpoint(trial.id), buffer.getvalue())


Validate = Callable[[], dict[str, float]]


def fit(
    bench: Bench, stage: Stage, storage: Storage, resumed: Checkpoint, validate: Validate | None = None
) -> Generator[Progress, None, tuple[list[dict[str, float]], float]]:
    """The loop. Returns the curve, with loss and images per second of each epoch, and the seconds it took."""
    model, loss, device = bench.model, stage.loss, bench.device
    optimizer = torch.optim.Adam(parameter_groups(bench, stage))
    scheduler = make_scheduler(optimizer, stage)
    scaler = torch.amp.GradScaler("cuda", enabled=bench.amp)
    stateful = {"model": model, "loss": loss, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    at = resumed if resumed.stage == stage.name else Checkpoint(stage.name)
    for name, part in stateful.items():
        if name in at.state:
            part.load_state_dict(at.state[name])
    steps, curve, spent = len(stage.batches), list(at.curve), at.seconds
    for epoch in range(at.epoch + 1, stage.epochs + 1):
        model.train()
        loss.train()
        torch.manual_seed(seed(bench.trial, f"{stage.name}:{epoch}:loss"))
        values = torch.zeros(steps, device=device)
        seen, begun = 0, time.perf_counter()
        for step, (batch, labels) in enumerate(load(bench, stage, epoch), start=1):
            with torch.autocast(device.type, enabled=bench.amp):
                embeddings = model(batch)
            value = loss(embeddings.float(), labels)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            values[step - 1] = value.detach()
            seen += len(labels)
            if step % EVERY == 0 and step < steps:
                yield progress(stage, epoch, values[:step], seen, time.perf_counter() - begun, spent)
        last = progress(stage, epoch, values, seen, time.perf_counter() - begun, spent)
        spent += time.perf_counter() - begun
        curve.append({"epoch": epoch, "loss": last.loss, "images_per_second": round(last.images_per_second, 1)})
        state = {name: part.state_dict() for name, part in stateful.items()}
        Checkpoint(stage.name, epoch, spent, curve, state).write(storage, bench.trial)
        yield dataclasses.replace(last, metrics=validate() if validate else {})
    return curve, spent


def progress(stage: Stage, epoch: int, values: Tensor, seen: int, elapsed: float, spent: float) -> Progress:
    """A look at the loss: the one place where a GPU is waited for, and where a NaN is found."""
    check_finite(values, epoch)
    steps, step = len(stage.batches), len(values)
    done = (epoch - 1) * steps + step
    left = (spent + elapsed) / done * (stage.epochs * steps - done)
    return Progress(stage.name, epoch, stage.epochs, step, steps, values.mean().item(), seen / max(elapsed, 1e-9), left)


def load(bench: Bench, stage: Stage, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of one epoch, augmented, on the device."""
    trial, fold = bench.trial, bench.fold
    order = torch.Generator().manual_seed(seed(trial, f"{stage.name}:{epoch}:batches"))
    looks = torch.Generator().manual_seed(seed(trial, f"{stage.name}:{epoch}:augment"))
    for chosen in stage.batches.epoch(order):
        pixels = bench.images.pixels[fold.train[chosen]]
        if stage.augment == "drawings":
            batch = transforms.drawings(pixels, trial.resize, trial.crop, looks)
        else:
            batch = transforms.plain(pixels, trial.resize, trial.crop)
        batch = batch.contiguous(memory_format=torch.channels_last)
        yield batch.to(bench.device), fold.train_labels[chosen].to(bench.device)


def parameter_groups(bench: Bench, stage: Stage) -> list[dict]:
    """The trunk at lr, the embedding layer at lr x head_lr_factor, what the loss owns at that x its own factor."""
    head_lr = stage.lr * bench.trial.head_lr_factor
    model, loss = bench.model, stage.loss
    head = list(model.head.parameters()) if isinstance(model, backbones.Embedder) else []
    trunk = list(model.trunk.parameters()) if isinstance(model, backbones.Embedder) else []
    groups = [(trunk, stage.lr), (head, head_lr), (list(loss.parameters()), head_lr * loss.lr_factor)]
    return [{"params": params, "lr": lr, "weight_decay": stage.weight_decay} for params, lr in groups if params]


def make_scheduler(optimizer: torch.optim.Optimizer, stage: Stage) -> torch.optim.lr_scheduler.LRScheduler:
    """Stepped once a batch."""
    steps = len(stage.batches)
    if stage.schedule == "one-cycle":
        peaks = [group["lr"] for group in optimizer.param_groups]
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, peaks, total_steps=max(1, stage.epochs * steps))
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, [epoch * steps for epoch in stage.drops], gamma=0.1)


def check_finite(values: Tensor, epoch: int) -> None:
    if not values.isfinite().all():
        step = int((~values.isfinite()).nonzero()[0])
        raise FloatingPointError(f"loss is {values[step].item()} at epoch {epoch}, step {step + 1}")
