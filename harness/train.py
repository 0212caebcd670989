"""The one training loop: a generator of Progress that returns a Result. Knows no Ray, prints nothing."""

import dataclasses
import hashlib
import json
import math
import os
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from filelock import FileLock
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import losses
from harness import backbones, data, evaluate, provenance, transforms
from harness.sampler import Balanced, Shuffled
from harness.spec import Dataset, Job, Progress, Result, Trial
from losses.base import Loss

EVERY = 8  # steps between two looks at the loss: each look makes a GPU wait
KMEANS_SEED = 0  # part of the NMI recipe: the same for every trial
UNTRAINED = "Untrained network"
BASELINES = {backbones.PIXELS: "Raw pixels"}  # what a trial without a loss is called


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


def run(job: Job) -> Generator[Progress, None, Result]:
    """Train and evaluate one trial."""
    started = time.perf_counter()
    trial = job.trial
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    bench, loss = set_up(trial, job.dataset)

    seconds: dict[str, float] = {}
    curve: list[dict[str, float]] = []
    if loss is not None:
        if trial.pretrain_epochs:
            yield from pretrain(bench, loss, Path(job.artifacts))
            seconds["pretrain"] = time.perf_counter() - started
        begun = time.perf_counter()
        curve = yield from fit(bench, main_stage(bench, loss))
        seconds["train"] = time.perf_counter() - begun

    metrics = yield from measure(bench, job.dataset.recall_at)
    seconds["total"] = time.perf_counter() - started
    return Result(
        trial=trial,
        title=loss.title if loss else BASELINES.get(trial.backbone, UNTRAINED),
        cite=loss.cite if loss else "",
        metrics=metrics,
        conventions={"NMI": f"{evaluate.RECIPE}, seed {KMEANS_SEED}", "distance": distance(bench)},
        curve=tuple(curve),
        seconds={name: round(value, 3) for name, value in seconds.items()},
        parameters=parameters(bench, loss),
        provenance=provenance.gather(trial, bench.device),
    )


def set_up(trial: Trial, dataset: Dataset) -> tuple[Bench, Loss | None]:
    """Data, network and loss of a trial; a baseline has no loss."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = data.load(dataset)
    fold = data.fold(images, dataset, trial.fold)
    torch.manual_seed(seed(trial, "weights"))
    model = backbones.create(trial).to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    loss = None
    if trial.loss != "none":
        loss = losses.get(trial.loss)(fold.train_classes, model.dim, **trial.knobs).to(device)
    return Bench(trial, device, model, images, fold), loss


def parameters(bench: Bench, loss: Loss | None) -> int:
    return sum(p.numel() for module in (bench.model, loss) if module is not None for p in module.parameters())


@dataclass(frozen=True)
class Cost:
    """Seconds an image takes, and how large the model is."""

    train: float
    evaluate: float
    parameters: int


def probe(trial: Trial, dataset: Dataset) -> Cost:
    """Time a few batches of a trial, without changing anything."""
    bench, loss = set_up(trial, dataset)
    training = 0.0
    if loss is not None:
        stage = dataclasses.replace(main_stage(bench, loss), epochs=1)
        *_, last = islice(fit(bench, stage), 2)
        training = 1 / last.images_per_second
    pixels = bench.images.pixels[bench.fold.test[:128]]
    bench.model.eval()
    embed(bench, pixels)
    begun = time.perf_counter()
    embed(bench, pixels)
    return Cost(training, (time.perf_counter() - begun) / len(pixels), parameters(bench, loss))


def seed(trial: Trial, purpose: str) -> int:
    """A seed of its own for each purpose: weights, batches, augmentation do not disturb each other."""
    return int.from_bytes(hashlib.sha256(f"{trial.seed}:{purpose}".encode()).digest()[:6])


def main_stage(bench: Bench, loss: Loss) -> Stage:
    trial = bench.trial
    batches = Balanced(bench.fold.train_labels, trial.classes_per_batch, trial.samples_per_class)
    return Stage(
        "train", loss, batches, trial.epochs, trial.lr, trial.weight_decay, trial.schedule, trial.drops, trial.augment
    )


def fit(bench: Bench, stage: Stage) -> Generator[Progress, None, list[dict[str, float]]]:
    """The loop. Returns the curve: loss and images per second of each epoch."""
    model, loss, device = bench.model, stage.loss, bench.device
    optimizer = torch.optim.Adam(parameter_groups(bench, stage))
    scheduler = make_scheduler(optimizer, stage)
    scaler = torch.amp.GradScaler("cuda", enabled=bench.amp)
    steps, curve, spent, done = len(stage.batches), [], 0.0, 0
    for epoch in range(1, stage.epochs + 1):
        model.train()
        loss.train()
        # Everything random in an epoch follows from its number, so that an epoch can be repeated by itself.
        torch.manual_seed(seed(bench.trial, f"{stage.name}:{epoch}:loss"))
        values = torch.zeros(steps, device=device)
        seen, begun = 0, time.perf_counter()
        for step, (batch, labels) in enumerate(load(bench, stage, epoch)):
            with torch.autocast(device.type, enabled=bench.amp):
                embeddings = model(batch)
            value = loss(embeddings.float(), labels)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            values[step] = value.detach()
            seen, done = seen + len(labels), done + 1
            if (step + 1) % EVERY == 0 or step + 1 == steps:
                check_finite(values[: step + 1], epoch)
                elapsed = time.perf_counter() - begun
                left = (spent + elapsed) / done * (stage.epochs * steps - done)
                yield Progress(
                    stage.name,
                    epoch,
                    stage.epochs,
                    step + 1,
                    steps,
                    values[: step + 1].mean().item(),
                    seen / elapsed,
                    left,
                )
        elapsed = time.perf_counter() - begun
        spent += elapsed
        curve.append({"epoch": epoch, "loss": values.mean().item(), "images_per_second": round(seen / elapsed, 1)})
    return curve


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


def pretrain(bench: Bench, loss: Loss, artifacts: Path) -> Generator[Progress, None, None]:
    """Classification before the loss: once for a backbone, data and seed, then shared by every loss.

    The classifier's weights are handed on where the loss has one of the same shape. No augmentation, a constant
    learning rate and no weight decay: a search over weight decay must not retrain it.
    """
    trial, model = bench.trial, bench.model
    file = artifacts / "pretrained" / f"{pretraining_key(trial)}.safetensors"
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{file}.lock"):
        if not file.exists():
            torch.manual_seed(seed(trial, "pretrain"))  # whatever the loss has drawn before
            softmax = losses.get("softmax")(bench.fold.train_classes, model.dim).to(bench.device)
            batches = Shuffled(len(bench.fold.train), trial.pretrain_batch)
            yield from fit(
                bench,
                Stage("pretrain", softmax, batches, trial.pretrain_epochs, trial.pretrain_lr, 0.0, "drops", (), "none"),
            )
            state = nn.ModuleDict({"model": model, "loss": softmax}).state_dict()
            save_file({name: value.contiguous().cpu() for name, value in state.items()}, f"{file}.part")
            os.replace(f"{file}.part", file)
        state = load_file(file)
    model.load_state_dict({name[6:]: value for name, value in state.items() if name.startswith("model.")})
    own = loss.state_dict()
    handed = {name[5:]: value for name, value in state.items() if name.startswith("loss.classifier.")}
    handed = {name: value for name, value in handed.items() if name in own and own[name].shape == value.shape}
    loss.load_state_dict({**own, **handed})


def pretraining_key(trial: Trial) -> str:
    """A hash of all that pre-training depends on, and of nothing else."""
    shared = (
        *("dataset", "dataset_version", "fingerprint", "fold", "seed", "backbone", "weights", "dim", "pooling"),
        *("layer_norm", "freeze_bn", "resize", "crop", "head_lr_factor", "precision"),
        *("pretrain_epochs", "pretrain_lr", "pretrain_batch"),
    )
    values = {name: value for name, value in dataclasses.asdict(trial).items() if name in shared}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def measure(bench: Bench, ks: tuple[int, ...]) -> Generator[Progress, None, dict[str, float]]:
    """Embed the held-out classes and compute every metric."""
    fold, batch = bench.fold, 256
    parts: list[Tensor] = []
    chunks = fold.test.split(batch)
    bench.model.eval()
    begun = time.perf_counter()
    for number, chosen in enumerate(chunks, start=1):
        parts.append(embed(bench, bench.images.pixels[chosen]))
        elapsed = time.perf_counter() - begun
        speed = min(number * batch, len(fold.test)) / elapsed
        yield Progress(
            "evaluate", 1, 1, number, len(chunks), math.nan, speed, elapsed / number * (len(chunks) - number)
        )
    return evaluate.metrics(torch.cat(parts), fold.test_labels.to(bench.device), ks, KMEANS_SEED)


def embed(bench: Bench, pixels: Tensor) -> Tensor:
    """What is compared at test time: unit-length embeddings, as in the paper; raw pixels stay raw."""
    batch = transforms.plain(pixels, bench.trial.resize, bench.trial.crop)
    batch = batch.contiguous(memory_format=torch.channels_last).to(bench.device)
    with torch.inference_mode(), torch.autocast(bench.device.type, enabled=bench.amp):
        embeddings = bench.model(batch).float()
    return embeddings if isinstance(bench.model, backbones.Pixels) else nn.functional.normalize(embeddings)


def distance(bench: Bench) -> str:
    raw = isinstance(bench.model, backbones.Pixels)
    return "Euclidean on raw pixels" if raw else "Euclidean on unit-length embeddings"
