"""One stage of training: epochs of batches, a checkpoint after each, Progress on the way."""

import copy
import dataclasses
import time
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch import Tensor

from harness.spec import Progress
from harness.storage import Storage
from harness.training.checkpoint import Checkpoint
from harness.training.feeding import load
from harness.training.optimizers import make_optimizer, make_scheduler
from harness.training.setup import Bench, Stage, seed

EVERY = 8  # steps between two looks at the loss: each look makes a GPU wait

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


def check_finite(values: Tensor, epoch: int) -> None:
    if not values.isfinite().all():
        step = int((~values.isfinite()).nonzero()[0])
        raise FloatingPointError(f"loss is {values[step].item()} at epoch {epoch}, step {step + 1}")
