"""One trial from its description to its Result: a generator of Progress. Knows no Ray, prints nothing."""

import math
import time
import traceback
from collections.abc import Generator, Iterator

import torch
from safetensors.torch import save
from torch import Tensor

from harness import provenance
from harness import storage as store_names
from harness.backbones import network
from harness.data import loading
from harness.evaluation import metrics as evaluate
from harness.evaluation.clustering import KMEANS_SEED
from harness.spec import Event, Failure, Job, Progress, Result, has_curves
from harness.storage import Storage, artifact
from harness.training.checkpoint import Checkpoint
from harness.training.loop import fit
from harness.training.measuring import distance, embed_images, score, validation
from harness.training.pretraining import pretrain
from harness.training.setup import Bench, main_stage, parameters, set_up

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
        yield Failure(job.trial, story, traceback.format_exc())


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
