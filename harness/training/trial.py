"""One trial from its description to its Result: a generator of Progress. Knows no Ray, prints nothing."""

import dataclasses
import hashlib
import json
import math
import time
import traceback
from collections.abc import Generator, Iterator

import safetensors.torch
import torch
from safetensors.torch import save
from torch import Tensor, nn

import losses
from harness import provenance
from harness import storage as store_names
from harness.backbones import network
from harness.data import loading, transforms
from harness.data.sampler import Balanced, Shuffled
from harness.evaluation import metrics as evaluate
from harness.spec import Event, Failure, Job, Progress, Result, Trial, has_curves, is_disk_full
from harness.storage import Storage, artifact
from harness.training import allocator
from harness.training.loop import Bench, Checkpoint, Stage, Validate, feed, fit, seed
from losses.base import Loss

EMBED_BATCH = 256
KMEANS_SEED = 0  # part of the NMI recipe: the same for every trial
UNTRAINED = "Untrained network"
BASELINES = {network.PIXELS: "Raw pixels"}  # what a trial without a loss is called


def run(job: Job) -> Generator[Progress, None, Result]:
    """Train and evaluate one trial; go on from its checkpoint where there is one."""
    trial, storage = job.trial, Storage(job.storage)
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    started = time.perf_counter()
    images = yield from prepare(job)
    bench, loss = set_up(job, images, loading.fold(images, job.dataset, trial.fold))
    curve: list[dict[str, float]] = []
    seconds: dict[str, float] = {}
    if loss is not None:
        checkpoint = Checkpoint.read(storage, trial)
        if job.curves and checkpoint.stage == "train" and not has_curves(checkpoint.curve):
            checkpoint = Checkpoint()  # epochs that nobody measured cannot be measured any more
        if trial.pretrain_epochs and checkpoint.stage != "train":
            seconds["pretrain"] = yield from pretrain(bench, loss, storage, checkpoint)
        stage = main_stage(bench, loss)
        curve, seconds["train"] = yield from fit(bench, stage, storage, checkpoint, validation(job, bench, stage))

    begun = time.perf_counter()
    embedded = yield from embed_images(bench, bench.fold.test)
    metrics = score(bench, embedded, job.dataset.recall_at)
    seconds["evaluate"] = time.perf_counter() - begun
    seconds["total"] = time.perf_counter() - started if loss is None else sum(seconds.values())
    return Result(
        trial=trial,
        title=loss.title if loss else BASELINES.get(trial.backbone, UNTRAINED),
        cite=loss.cite if loss else "",
        metrics=metrics,
        conventions={"NMI": f"{evaluate.OURS}, seed {KMEANS_SEED}", "distance": distance(bench)},
        curve=tuple(curve),
        seconds={name: round(value, 3) for name, value in seconds.items()},
        parameters=parameters(bench, loss),
        artifacts=keep(job, bench, embedded, storage) if loss is not None and trial.fold == "test" else {},
        provenance=provenance.gather(job, bench.device, bench.model.weights_sha256, len(images.skipped)),
    )


def events(job: Job) -> Iterator[Event]:
    """All that happens to a trial: its Progress, then its Result or the Failure it ended in."""
    running = run(job)
    try:
        while True:
            yield next(running)
    except StopIteration as end:
        yield end.value
    except (Exception, SystemExit) as error:  # a user's own loss may raise anything
        story = f"{type(error).__name__}: {error}".splitlines()[0]
        if isinstance(error, torch.cuda.OutOfMemoryError):
            story += (
                "; give a trial more of the GPU (--gpus-per-trial), a smaller batch (--set classes_per_batch=...) "
                "or half precision (--set precision=amp)"
            )
        yield Failure(job.trial, story, traceback.format_exc(), disk_full=is_disk_full(error))


def keep(job: Job, bench: Bench, embedded: Tensor, storage: Storage) -> dict[str, dict[str, str]]:
    """Write what a final run leaves behind: its test embeddings, which ensembles join, and its weights if asked."""
    id = job.trial.id
    tensors = {"embeddings": embedded, "labels": bench.fold.test_labels}
    if bench.fold.queries is not None:
        tensors["queries"] = bench.fold.queries
    files = {"embeddings": (store_names.embeddings(id), tensors)}
    if job.keep_weights:
        files["weights"] = (store_names.weights(id), bench.model.state_dict())
    kept = {}
    for what, (name, tensors) in files.items():
        content = save({key: tensor.contiguous().cpu() for key, tensor in tensors.items()})
        storage.write(name, content)
        kept[what] = artifact(name, content)
    return kept


def prepare(job: Job) -> Generator[Progress, None, loading.Images]:
    """The trial's images; where this node has no cache of them yet, it is built."""
    progress = loading.load(job.dataset, job.trial, job.data_root, skip_bad=job.skip_bad_images)
    begun = time.perf_counter()
    while True:
        try:
            done, total = next(progress)
        except StopIteration as end:
            return end.value
        elapsed = time.perf_counter() - begun
        left = elapsed / done * (total - done) if done else 0.0
        yield Progress("images", 1, 1, done, total, math.nan, done / elapsed, left)


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


def validation(job: Job, bench: Bench, stage: Stage) -> Validate | None:
    """What is measured after each epoch, if anybody wants it."""
    if job.curves:
        return lambda: point(bench)
    if job.validate or stage.best:
        return lambda: measure(bench, job.dataset.recall_at)
    return None


def pretrain(bench: Bench, loss: Loss, storage: Storage, resumed: Checkpoint) -> Generator[Progress, None, float]:
    """Classification before the loss: once for a backbone, data and seed, then shared by every loss. Returns seconds.

    The classifier's weights are handed on where the loss has one of the same shape. No augmentation, a constant
    learning rate and no weight decay: a search over weight decay must not retrain it.
    """
    trial, model = bench.trial, bench.model
    begun = time.perf_counter()
    name = f"pretrained/{pretraining_key(trial)}.safetensors"
    with storage.lock(name):
        content = storage.read(name)
        if content is None:
            torch.manual_seed(seed(trial, "pretrain"))  # whatever the loss has drawn before
            softmax = losses.get("softmax")(bench.fold.train_classes, model.dim).to(bench.device)
            stage = Stage(
                name="pretrain",
                loss=softmax,
                batches=Shuffled(len(bench.fold.train), trial.pretrain_batch),
                epochs=trial.pretrain_epochs,
                lr=trial.pretrain_lr,
                weight_decay=0.0,
                augment="none",
                eps=trial.pretrain_eps,
            )
            yield from fit(bench, stage, storage, resumed)
            state = nn.ModuleDict({"model": model, "loss": softmax}).state_dict()
            content = save({key: value.contiguous().cpu() for key, value in state.items()})
            storage.write(name, content)
    state = safetensors.torch.load(content)
    model.load_state_dict({key[6:]: value for key, value in state.items() if key.startswith("model.")})
    own = loss.state_dict()
    handed = {key[5:]: value for key, value in state.items() if key.startswith("loss.classifier.")}
    handed = {key: value for key, value in handed.items() if key in own and own[key].shape == value.shape}
    loss.load_state_dict({**own, **handed})
    return time.perf_counter() - begun


def pretraining_key(trial: Trial) -> str:
    """A hash of all that pre-training depends on, and of nothing else."""
    shared = (
        *("dataset", "dataset_version", "fingerprint", "fold", "seed", "backbone", "weights", "dim", "pooling"),
        *("layer_norm", "freeze_bn", "resize", "aspect", "crop", "head_lr_factor", "optimizer", "precision"),
        *("pretrain_epochs", "pretrain_lr", "pretrain_eps", "pretrain_batch"),
    )
    values = {name: value for name, value in dataclasses.asdict(trial).items() if name in shared}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def embed_images(bench: Bench, which: Tensor) -> Generator[Progress, None, Tensor]:
    """The embeddings of these images, on the device."""
    parts: list[Tensor] = []
    count = len(which)
    chunks = -(-count // EMBED_BATCH)
    bench.model.eval()
    begun = time.perf_counter()
    for number, (batch, _) in enumerate(feed(bench.device, batches(bench, which)), start=1):
        parts.append(embed(bench, batch))
        elapsed = time.perf_counter() - begun
        speed = min(number * EMBED_BATCH, count) / elapsed
        yield Progress("evaluate", 1, 1, number, chunks, math.nan, speed, elapsed / number * (chunks - number))
    return torch.cat(parts)


def batches(bench: Bench, which: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """These images as they are evaluated, with their indices."""
    for chosen in which.split(EMBED_BATCH):
        yield transforms.plain(bench.images, chosen, bench.trial), chosen


def measure(bench: Bench, ks: tuple[int, ...]) -> Generator[Progress, None, dict[str, float]]:
    """Every metric on the held-out classes."""
    embedded = yield from embed_images(bench, bench.fold.test)
    return score(bench, embedded, ks)


def point(bench: Bench) -> Generator[Progress, None, dict[str, float]]:
    """Of a curve: retrieval on the held-out classes as in the end, and of each training image among the training
    images. Without NMI: k-means may take longer than the epoch did."""
    labels, queries = held_out(bench)
    train_labels = bench.fold.train_labels.to(bench.device)
    embedded = yield from embed_images(bench, bench.fold.test)
    found = evaluate.retrieval(embedded, labels, (1,), queries)
    embedded = yield from embed_images(bench, bench.fold.train)
    seen = evaluate.retrieval(embedded, train_labels, (1,))
    return found | {f"train {name}": value for name, value in seen.items()}


def held_out(bench: Bench) -> tuple[Tensor, Tensor | None]:
    """Labels of the held-out images and which of them are queries, on the device."""
    labels, queries = bench.fold.test_labels, bench.fold.queries
    return labels.to(bench.device), None if queries is None else queries.to(bench.device)


def score(bench: Bench, embedded: Tensor, ks: tuple[int, ...]) -> dict[str, float]:
    labels, queries = held_out(bench)
    gallery = len(labels) - 1 if queries is None else int((~queries).sum())
    ks = tuple(k for k in ks if k <= gallery)  # of a small dataset some are not to be had
    return evaluate.metrics(embedded, labels, ks, KMEANS_SEED, queries)


def embed(bench: Bench, batch: Tensor) -> Tensor:
    """What is compared at test time: unit-length embeddings, as in the paper; raw pixels stay raw."""
    with torch.inference_mode(), torch.autocast(bench.device.type, enabled=bench.amp):
        embeddings = bench.model(batch).float()
    return embeddings if isinstance(bench.model, network.Pixels) else nn.functional.normalize(embeddings)


def distance(bench: Bench) -> str:
    raw = isinstance(bench.model, network.Pixels)
    return "Euclidean on raw pixels" if raw else "Euclidean on unit-length embeddings"
