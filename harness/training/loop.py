"""One stage of training: epochs of steps, a checkpoint after each epoch, Progress on the way."""

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.backbones.network import Network, floats
from harness.spec import Progress, Trial
from harness.storage import Storage
from harness.training import feeding
from harness.training.checkpoint import Checkpoint, Curve, Seconds, added, unusable
from harness.training.optimizers import make_optimizer, make_scheduler
from harness.training.planning import plan
from harness.training.setup import Stage, TrialSetup, half_precision, seed
from losses.base import Batch, Loss, unit

REPORT_STEPS = 8  # steps between two reports of the loss: each of them makes a GPU wait

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
        setup.model.trunk_frozen = stage.frozen
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

    def resume(self, position: Checkpoint, trial: Trial) -> None:
        """Set every part to its state at the end of an epoch; a DamagedError if one does not fit, with some parts
        set."""
        parts = {part.name for part in dataclasses.fields(self)} if position.epoch else set()
        try:
            if set(position.state) != parts:
                raise ValueError(f"it holds {sorted(position.state)}, not {sorted(parts)}")
            self.load(position.state)
        except (MemoryError, torch.OutOfMemoryError):  # says nothing of the checkpoint
            raise
        except Exception as error:  # load_state_dict raises many kinds
            raise unusable(trial, f"{type(error).__name__}: {error}") from None


def fit(
    setup: TrialSetup, stage: Stage, storage: Storage, resumed: Checkpoint, validate: Validate | None = None
) -> Generator[Progress, None, tuple[Curve, Seconds]]:
    """Train a stage, from its checkpoint if `resumed` is one; a DamagedError if that is damaged. Returns the curve,
    after the rows that `resumed` has of earlier stages, and the seconds of all that was done so far. Each epoch's row
    has the loss, the images seen, the images per second, and the mean cosine of its last batch.

    The metrics that `validate` measures after each epoch are added to the curve; its seconds are counted apart from
    training. They influence only a stage that ends with its best epoch. The seconds in which a loss plans its batches
    count as training.
    """
    learner = Learner.of(setup, stage)
    position = resumed.of(stage.name)
    position.check(setup.trial, stage.last_epoch)
    learner.resume(position, setup.trial)
    curve, best = list(position.curve), position.best
    seconds = added(position.seconds, {stage.name: 0.0, "validate": 0.0})
    for epoch in range(position.epoch + 1, stage.last_epoch + 1):
        if stage.schedule == "reloads" and epoch - 1 in stage.drops and best:
            restore(learner, best)
        begun = time.perf_counter()
        planned = plan(setup, stage, epoch)
        learner.train()
        torch.manual_seed(seed(setup.trial, f"{stage.name}:{epoch}:loss"))
        steps = stage.steps_of(epoch)
        values = torch.zeros(steps, device=setup.device)
        seen = 0
        for number, batch in enumerate(feeding.load(setup, stage, epoch, planned), start=1):
            values[number - 1], embeddings = step(learner, batch)
            seen += len(batch.labels)
            if number % REPORT_STEPS == 0 or number == steps:
                if learner.loss.distance == "euclidean":  # distances do not depend on the origin, cosines do
                    embeddings = embeddings - embeddings.mean(dim=0)
                cosine = mean_cosine(embeddings, batch.labels)
                elapsed = time.perf_counter() - begun
                report = progress(stage, epoch, values[:number], cosine, seen, elapsed, seconds[stage.name])
                if number < steps:
                    yield report
        trained = time.perf_counter()
        metrics = (yield from validate()) if validate else {}
        seconds = added(seconds, {stage.name: trained - begun, "validate": time.perf_counter() - trained})
        curve.append(
            {
                "epoch": epoch,
                "loss": report.loss,
                "cosine": round(report.cosine, 4),
                "images": seen,
                "images_per_second": round(report.images_per_second, 1),
                **metrics,
            }
        )
        if stage.best and (not best or metrics[stage.best] > best["score"]):
            best = {"epoch": epoch, "score": metrics[stage.best], **copy.deepcopy(learner.state("model", "loss"))}
        reached = Checkpoint(stage.name, epoch, seconds, curve, learner.state(), best, [*setup.attempts])
        reached.write(storage, setup.trial, setup.images.contents)
        yield dataclasses.replace(report, metrics=metrics)
    if best:
        restore(learner, best)
    return curve, seconds


def step(learner: Learner, batch: Batch) -> tuple[Tensor, Tensor]:
    """One step of training: embeddings, loss, gradients, optimizer and schedule. Returns the value of the loss and what
    would be compared at test time, without their graph."""
    with torch.autocast(batch.images.device.type, enabled=learner.scaler.is_enabled()):
        z = learner.model(batch.images)
    z = floats(z)
    value = learner.loss.value(z, batch.labels, batch)
    learner.optimizer.zero_grad(set_to_none=True)
    learner.scaler.scale(value).backward()
    learner.scaler.step(learner.optimizer)
    learner.scaler.update()
    learner.scheduler.step()
    with torch.no_grad():
        return value.detach(), learner.loss.represent(z).detach()


def restore(learner: Learner, best: dict[str, Any]) -> None:
    """Model and loss as they were at the end of their best epoch; the optimizer keeps its moments."""
    learner.load({name: best[name] for name in ("model", "loss")})


def mean_cosine(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Of images of different classes: 1 where all embeddings are the same, and so useless; 0 if there is one class.

    Computed from distances, so that the zeros of a dead network count as the same. What is not a number counts as 1.
    """
    points = unit(embeddings.float())
    lengths = points.square().sum(dim=1)
    cosines = 1 - (lengths[:, None] + lengths - 2 * points @ points.T) / 2
    different = labels[:, None] != labels
    return cosines.masked_fill(~different, 0).sum().div(different.sum().clamp(min=1)).nan_to_num(1.0)


def progress(
    stage: Stage, epoch: int, values: Tensor, cosine: Tensor, seen: int, elapsed: float, spent: float
) -> Progress:
    """Report the mean loss of these steps and the last one's mean cosine. The only place where a GPU is waited for and
    where a NaN is noticed."""
    loss, cosine_value = torch.stack([values.mean(), cosine]).tolist()
    if not math.isfinite(loss):
        check_finite(values, epoch)
    number = len(values)
    done = (epoch - 1) * len(stage.batches) + number
    # a warm-up does not tell how long the epochs after it take, which cost several times as much
    left = 0.0 if stage.frozen else (spent + elapsed) / done * (stage.last_step - done)
    speed = seen / max(elapsed, 1e-9)
    steps = stage.steps_of(epoch)
    return Progress(stage.name, epoch, stage.last_epoch, number, steps, loss, speed, left, cosine=cosine_value)


def check_finite(values: Tensor, epoch: int) -> None:
    if not values.isfinite().all():
        step = int((~values.isfinite()).nonzero()[0])
        raise FloatingPointError(f"loss is {values[step].item()} at epoch {epoch}, step {step + 1}")
