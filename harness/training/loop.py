"""One stage of training: epochs of steps, a checkpoint after each epoch, Progress on the way."""

import copy
import dataclasses
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.backbones.network import Network
from harness.spec import Progress
from harness.storage import Storage
from harness.training import feeding
from harness.training.checkpoint import Checkpoint
from harness.training.optimizers import make_optimizer, make_scheduler
from harness.training.setup import Stage, TrialSetup, half_precision, seed
from losses.base import Loss

REPORT_STEPS = 8  # steps between two reports of the loss: each of them makes a GPU wait

Curve = list[dict[str, float]]
Validate = Callable[[], Generator[Progress, None, dict[str, float]]]


@dataclass(frozen=True)
class Learner:
    """What a step changes, and so what a checkpoint holds."""

    model: Network
    loss: Loss
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    scaler: torch.amp.GradScaler

    @classmethod
    def of(cls, setup: TrialSetup, stage: Stage) -> "Learner":
        optimizer = make_optimizer(setup.model, stage)
        scaler = torch.amp.GradScaler("cuda", enabled=half_precision(stage.precision, setup.device))
        return cls(setup.model, stage.loss, optimizer, make_scheduler(optimizer, stage), scaler)

    def train(self) -> None:
        self.model.train()
        self.loss.train()

    def state(self, *names: str) -> dict[str, Any]:
        """The states of these parts, or of all of them."""
        return {name: getattr(self, name).state_dict() for name in names or [x.name for x in dataclasses.fields(self)]}

    def load(self, state: dict[str, Any]) -> None:
        """Set the parts that `state` has."""
        for name in state:
            getattr(self, name).load_state_dict(state[name])


def fit(
    setup: TrialSetup, stage: Stage, storage: Storage, resumed: Checkpoint, validate: Validate | None = None
) -> Generator[Progress, None, tuple[Curve, float]]:
    """Train a stage, from its checkpoint if `resumed` is one. Returns the curve, which has the loss, the images seen
    and the images per second of each epoch, and the seconds that training took.

    The metrics that `validate` measures after each epoch are added to the curve; their time is not counted. They
    influence only a stage that ends with its best epoch.
    """
    learner = Learner.of(setup, stage)
    position = resumed if resumed.stage == stage.name else Checkpoint(stage.name)
    learner.load(position.state)
    steps, curve, spent, best = len(stage.batches), list(position.curve), position.seconds, position.best
    for epoch in range(position.epoch + 1, stage.epochs + 1):
        if stage.schedule == "reloads" and epoch - 1 in stage.drops and best:
            restore(learner, best)
        learner.train()
        torch.manual_seed(seed(setup.trial, f"{stage.name}:{epoch}:loss"))
        values = torch.zeros(steps, device=setup.device)
        seen, begun = 0, time.perf_counter()
        for number, (images, labels) in enumerate(feeding.load(setup, stage, epoch), start=1):
            values[number - 1] = step(learner, images, labels)
            seen += len(labels)
            if number % REPORT_STEPS == 0 and number < steps:
                yield progress(stage, epoch, values[:number], seen, time.perf_counter() - begun, spent)
        last = progress(stage, epoch, values, seen, time.perf_counter() - begun, spent)
        spent += time.perf_counter() - begun
        metrics = (yield from validate()) if validate else {}
        speed = round(last.images_per_second, 1)
        curve.append({"epoch": epoch, "loss": last.loss, "images": seen, "images_per_second": speed, **metrics})
        if stage.best and (not best or metrics[stage.best] > best["score"]):
            best = {"epoch": epoch, "score": metrics[stage.best], **copy.deepcopy(learner.state("model", "loss"))}
        Checkpoint(stage.name, epoch, spent, curve, learner.state(), best).write(storage, setup.trial)
        yield dataclasses.replace(last, metrics=metrics)
    if best:
        restore(learner, best)
    return curve, spent


def step(learner: Learner, images: Tensor, labels: Tensor) -> Tensor:
    """One step of training: embeddings, loss, gradients, optimizer and schedule. Returns the value of the loss, without
    its graph."""
    with torch.autocast(images.device.type, enabled=learner.scaler.is_enabled()):
        embeddings = learner.model(images)
    value = learner.loss(embeddings.float(), labels)
    learner.optimizer.zero_grad(set_to_none=True)
    learner.scaler.scale(value).backward()
    learner.scaler.step(learner.optimizer)
    learner.scaler.update()
    learner.scheduler.step()
    return value.detach()


def restore(learner: Learner, best: dict[str, Any]) -> None:
    """Model and loss as they were at the end of their best epoch; the optimizer keeps its moments."""
    learner.load({name: best[name] for name in ("model", "loss")})


def progress(stage: Stage, epoch: int, values: Tensor, seen: int, elapsed: float, spent: float) -> Progress:
    """Report the mean loss of these steps. The only place where a GPU is waited for and where a NaN is noticed."""
    check_finite(values, epoch)
    steps, number = len(stage.batches), len(values)
    done = (epoch - 1) * steps + number
    left = (spent + elapsed) / done * (stage.epochs * steps - done)
    speed = seen / max(elapsed, 1e-9)
    return Progress(stage.name, epoch, stage.epochs, number, steps, values.mean().item(), speed, left)


def check_finite(values: Tensor, epoch: int) -> None:
    if not values.isfinite().all():
        step = int((~values.isfinite()).nonzero()[0])
        raise FloatingPointError(f"loss is {values[step].item()} at epoch {epoch}, step {step + 1}")
