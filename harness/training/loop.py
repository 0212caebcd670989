"""One stage of training: epochs of batches, a checkpoint after each, Progress on the way."""

import copy
import dataclasses
import hashlib
import io
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from harness import storage as store_names
from harness.backbones import network
from harness.data import folds, transforms
from harness.data.sampler import Balanced, Shuffled
from harness.spec import Progress, Trial
from harness.storage import Storage
from losses.base import Loss

Item = TypeVar("Item")

EVERY = 8  # steps between two looks at the loss: each look makes a GPU wait


@dataclass
class Bench:
    """What every stage of a trial works on."""

    trial: Trial
    device: torch.device
    model: network.Embedder | network.Pixels
    images: folds.Images
    fold: folds.Fold

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


@dataclass
class Checkpoint:
    """A trial at the end of an epoch. What is random in an epoch follows from its number, so no generator's state is
    part of it."""

    stage: str = ""
    epoch: int = 0
    seconds: float = 0.0
    curve: list[dict[str, float]] = dataclasses.field(default_factory=list)
    state: dict[str, Any] = dataclasses.field(default_factory=dict)
    best: dict[str, Any] = dataclasses.field(default_factory=dict)  # epoch, score, and the state of model and loss

    @classmethod
    def read(cls, storage: Storage, trial: Trial) -> "Checkpoint":
        """The stored one, or a blank one."""
        content = storage.read(store_names.checkpoint(trial.id))
        return cls(**torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)) if content else cls()

    def write(self, storage: Storage, trial: Trial) -> None:
        buffer = io.BytesIO()
        torch.save(vars(self), buffer)
        storage.write(store_names.checkpoint(trial.id), buffer.getvalue())


Validate = Callable[[], Generator[Progress, None, dict[str, float]]]


def fit(
    bench: Bench, stage: Stage, storage: Storage, resumed: Checkpoint, validate: Validate | None = None
) -> Generator[Progress, None, tuple[list[dict[str, float]], float]]:
    """The loop. Returns the curve, with loss, images seen and images per second of each epoch, and the seconds it took.

    What `validate` measures after each epoch stands in the curve too, and its time is not counted. Only a stage that
    keeps its best epoch listens to it.
    """
    model, loss, device = bench.model, stage.loss, bench.device
    optimizer = make_optimizer(bench, stage)
    scheduler = make_scheduler(optimizer, stage)
    scaler = torch.amp.GradScaler("cuda", enabled=bench.amp)
    stateful = {"model": model, "loss": loss, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    at = resumed if resumed.stage == stage.name else Checkpoint(stage.name)
    for name, part in stateful.items():
        if name in at.state:
            part.load_state_dict(at.state[name])
    steps, curve, spent, best = len(stage.batches), list(at.curve), at.seconds, at.best
    for epoch in range(at.epoch + 1, stage.epochs + 1):
        if stage.schedule == "reloads" and epoch - 1 in stage.drops and best:
            restore(bench, stage, best)
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
        metrics = (yield from validate()) if validate else {}
        speed = round(last.images_per_second, 1)
        curve.append({"epoch": epoch, "loss": last.loss, "images": seen, "images_per_second": speed, **metrics})
        if stage.best and (not best or metrics[stage.best] > best["score"]):
            kept = {name: copy.deepcopy(stateful[name].state_dict()) for name in ("model", "loss")}
            best = {"epoch": epoch, "score": metrics[stage.best], **kept}
        state = {name: part.state_dict() for name, part in stateful.items()}
        Checkpoint(stage.name, epoch, spent, curve, state, best).write(storage, bench.trial)
        yield dataclasses.replace(last, metrics=metrics)
    if best:
        restore(bench, stage, best)
    return curve, spent


def restore(bench: Bench, stage: Stage, best: dict[str, Any]) -> None:
    """Model and loss as they were at the end of their best epoch; the optimizer keeps its moments."""
    bench.model.load_state_dict(best["model"])
    stage.loss.load_state_dict(best["loss"])


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
    return feed(
        bench.device,
        (
            (
                transforms.augmented(bench.images, fold.train[chosen], trial, stage.augment, looks),
                fold.train_labels[chosen],
            )
            for chosen in stage.batches.epoch(order)
        ),
    )


def feed(device: torch.device, batches: Iterator[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches on the device, images as floats in 0..1, channels last. For a GPU they are prepared in pinned memory by a
    thread of their own, while it computes; a CPU has better things to do."""
    if device.type == "cuda":
        batches = prefetch((images.pin_memory(), labels.pin_memory()) for images, labels in batches)
    for images, labels in batches:
        images = transforms.to_float(images.to(device, non_blocking=True))
        yield images.contiguous(memory_format=torch.channels_last), labels.to(device, non_blocking=True)


def prefetch(items: Iterator[Item], depth: int = 2) -> Iterator[Item]:
    """The same items, made by a thread: `depth` wait while one more is made. What it raises is raised here."""
    ready: queue.Queue[tuple[Item | None, BaseException | None]] = queue.Queue(depth)
    over = threading.Event()

    def put(item: Item | None, error: BaseException | None) -> None:
        while not over.is_set():
            try:
                return ready.put((item, error), timeout=0.1)
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                put(item, None)
                if over.is_set():
                    return
            put(None, StopIteration())
        except BaseException as error:
            put(None, error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        over.set()
        thread.join()


def make_optimizer(bench: Bench, stage: Stage) -> torch.optim.Optimizer:
    groups = parameter_groups(bench, stage)
    match bench.trial.optimizer:
        case "radam":
            return torch.optim.RAdam(groups, eps=stage.eps, decoupled_weight_decay=True)
        case "rmsprop":
            return torch.optim.RMSprop(groups, eps=stage.eps, momentum=0.9)
        case _:
            return torch.optim.Adam(groups, eps=stage.eps)


def parameter_groups(bench: Bench, stage: Stage) -> list[dict]:
    """The trunk at lr, the embedding layer at lr x head_lr_factor, what the loss owns at that x its own factor."""
    head_lr = stage.lr * bench.trial.head_lr_factor
    model, loss = bench.model, stage.loss
    head = list(model.head.parameters()) if isinstance(model, network.Embedder) else []
    trunk = list(model.trunk.parameters()) if isinstance(model, network.Embedder) else []
    decay = stage.weight_decay
    groups = [
        (trunk, stage.lr, decay),
        (head, head_lr, decay),
        (list(loss.parameters()), head_lr * loss.lr_factor, decay if loss.decay else 0.0),
    ]
    return [{"params": params, "lr": lr, "weight_decay": decay} for params, lr, decay in groups if params]


def make_scheduler(optimizer: torch.optim.Optimizer, stage: Stage) -> torch.optim.lr_scheduler.LRScheduler:
    """Stepped once a batch."""
    steps = len(stage.batches)
    if stage.schedule == "one-cycle":
        peaks = [group["lr"] for group in optimizer.param_groups]
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, peaks, total_steps=max(1, stage.epochs * steps))
    milestones = [epoch * steps for epoch in stage.drops]
    if stage.schedule == "reloads":  # at every drop the rate is set to a tenth of the first one, not of the last
        milestones = milestones[:1]
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)


def check_finite(values: Tensor, epoch: int) -> None:
    if not values.isfinite().all():
        step = int((~values.isfinite()).nonzero()[0])
        raise FloatingPointError(f"loss is {values[step].item()} at epoch {epoch}, step {step + 1}")
