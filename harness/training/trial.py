"""One trial, from its description to its Result: a generator of Progress that knows no Ray and prints nothing."""

import math
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from harness import provenance
from harness.backbones.network import DISTANCES
from harness.data import loading
from harness.data.folds import Images, fold
from harness.evaluation.metrics import STORED_DEPTH, mean_cosine, values_of
from harness.spec import (
    COLLAPSED,
    PIXELS,
    Event,
    Failure,
    Job,
    Metrics,
    Progress,
    Result,
    Work,
    bounded,
    disk_error,
    first_line,
    has_curves,
    has_epochs,
    redacted,
)
from harness.spec.recipes import LLOYD
from harness.storage import DamagedError, Storage
from harness.storage import checkpoint as checkpoint_file
from harness.training import allocator, teaching
from harness.training.checkpoint import Checkpoint, Curve, Seconds, added
from harness.training.loop import fit
from harness.training.measuring import embed_images, measure_stored, score, validation
from harness.training.optimizers import parameter_groups
from harness.training.pretraining import State, entered, intact, pretrain, share
from harness.training.setup import Stage, TrialSetup, device_of, main_stage, parameters, seed, set_up, warmup_stage
from losses import torch_state
from losses.base import Loss

UNTRAINED = "Untrained network"
PRETRAINED = "Pre-training"
BASELINES = {PIXELS: "Raw pixels"}  # titles of trials without a loss, by backbone
LONGEST_TRACEBACK = 100_000  # characters
NOT_WORK = ("images", "wait", "teacher")  # seconds that are not in the total: they depend on which trial comes first


@dataclass(frozen=True)
class Trained:
    """Network and loss at the end of their training; a baseline has no loss and no curve."""

    setup: TrialSetup
    loss: Loss | None
    curve: Curve
    seconds: Seconds


def run(job: Job) -> Generator[Progress, None, Result]:
    """Train and evaluate one trial, from its checkpoint if it has one; or measure what is stored of others.

    torch's global settings are the usual ones, whatever an earlier trial has made of them, and what they were before
    when the trial ends. Its global generator, and how memory is freed on a CPU, stay set.
    """
    with torch_state.usual(job.threads):
        result = yield from steps_of(job)
    Result.from_json(result.to_json())  # what could not be read again is a failure of this trial alone
    return result


def steps_of(job: Job) -> Generator[Progress, None, Result]:
    if job.measurement:
        return measure_stored(job, job.measurement)
    return pretrain_alone(job) if job.trial.is_pretraining else train_and_evaluate(job)


def train_and_evaluate(job: Job) -> Generator[Progress, None, Result]:
    trial, storage = job.trial, Storage(job.storage)
    if device_of(job).type == "cpu":
        allocator.keep_freed()
    images, preparing = yield from prepare(job)
    trained = yield from train(job, images, storage, preparing)
    setup, loss = trained.setup, trained.loss
    if job.teaches:
        teaching.put(storage, trial, images.contents, setup.model)
    begun = time.perf_counter()
    embeddings = yield from embed_images(setup, setup.fold.test)
    depth = STORED_DEPTH if trial.on_test else 1
    measured = yield from score(setup, embeddings, job.dataset.recall_at, nmi=job.nmi, depth=depth)
    seconds = {**trained.seconds, "evaluate": time.perf_counter() - begun}
    artifacts = {}
    if loss is not None and trial.on_test:
        artifacts = write_artifacts(job, setup, embeddings, storage)
    values = values_of([measured.scores], setup.fold.names)
    file = values.to_bytes() if trial.on_test else b""
    return Result(
        trial=trial,
        title=loss.title if loss is not None else BASELINES.get(trial.backbone, UNTRAINED),
        cite=loss.cite if loss is not None else "",
        metrics=measured.metrics,
        conventions=conventions(setup, loss, embeddings, measured.metrics),
        curve=tuple(trained.curve),
        seconds=rounded(seconds),
        parameters=parameters(setup, loss),
        artifacts=artifacts,
        provenance=provenance_of(job, setup),
        queries=values.summary(file),
        per_query=file,
    )


def pretrain_alone(job: Job) -> Generator[Progress, None, Result]:
    """Train the network that other trials start from. Nothing is measured."""
    storage = Storage(job.storage)
    if device_of(job).type == "cpu":
        allocator.keep_freed()
    images, preparing = yield from prepare(job)
    part = fold(images, job.dataset, job.trial.fold)
    while True:
        torch.manual_seed(seed(job.trial, "weights"))
        setup, _ = set_up(job, images, part)
        try:
            setup, checkpoint = resumed(job, setup, storage)
            file, curve, seconds = yield from share(setup, storage, checkpoint.after(**preparing))
            break
        except DamagedError as damage:
            yield Progress.idle("pretrain", note=storage.set_aside(damage))
    return Result(
        trial=job.trial,
        title=PRETRAINED,
        cite="",
        metrics={},
        conventions={},
        curve=tuple(curve),
        seconds=rounded(seconds),
        parameters=parameters(setup, None),
        artifacts={"pretrained": file},
        provenance=provenance_of(job, setup),
    )


def provenance_of(job: Job, setup: TrialSetup) -> dict[str, Any]:
    """Of the attempts only what differs: a trial that was never interrupted has one."""
    attempts = {"attempts": [*setup.attempts]} if len(setup.attempts) > 1 else {}
    return provenance.gather(job, setup.device, setup.model.weights_sha256, {**setup.images.origin, **attempts})


def rounded(seconds: Seconds) -> Seconds:
    """With their total, which is the work."""
    total = sum(value for name, value in seconds.items() if name not in NOT_WORK)
    return {name: round(value, 3) for name, value in {**seconds, "total": total}.items()}


def conventions(setup: TrialSetup, loss: Loss | None, embeddings: Tensor, metrics: Metrics) -> dict[str, str]:
    """How the metrics were computed; and that they say little, where the network has collapsed."""
    stated = {"distance": setup.model.distance}
    if loss is not None and (loss.head_dim or type(loss).represent is not Loss.represent):
        stated["embedding"] = f"built by {setup.trial.loss}, of dimension {embeddings.shape[1]}"
    if "NMI" in metrics:
        stated["NMI"] = str(LLOYD)
    if setup.model.distance == DISTANCES["euclidean"]:  # distances do not depend on the origin, cosines do
        embeddings = embeddings - embeddings.mean(dim=0)
    cosine = mean_cosine(embeddings)
    if cosine > COLLAPSED and not setup.trial.is_pixels:
        stated["collapsed"] = f"mean cosine of two images {cosine:.6f}"
    return stated


def events(job: Job, interrupted: Callable[[], bool] = lambda: False) -> Iterator[Event]:
    """Everything that happens to a trial: its Progress, then its Result or the Failure it ended in.

    A user's own loss may raise anything, KeyboardInterrupt included. `interrupted` tells whether it was the user who
    raised that, with Ctrl-C: it then ends the run, not the trial alone.
    """
    with closing(run(job)) as steps:
        while True:
            event: Event
            try:
                event = next(steps)
            except StopIteration as end:
                event = end.value
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt) and interrupted():
                    raise
                event = failure(job.work, error)
            yield event
            if not isinstance(event, Progress):
                return


def failure(work: Work, error: BaseException) -> Failure:
    """The record of what ended in this error, which is being handled."""
    message = redacted(first_line(error))
    if isinstance(error, torch.cuda.OutOfMemoryError):
        message += (
            "; give each trial more of the GPU (--gpus-per-trial), use a smaller batch "
            "(--set classes_per_batch=...) or half precision (--set precision=amp)"
        )
    story = bounded(redacted(traceback.format_exc()), LONGEST_TRACEBACK)
    return Failure(work, message, story, disk_error=disk_error(error))


def train(job: Job, images: Images, storage: Storage, spent: Seconds) -> Generator[Progress, None, Trained]:
    """Set up network and loss, and train them. `spent`: the seconds of this attempt so far.

    A damaged checkpoint is set aside, and the trial begins again: set up anew, because a part of the checkpoint may
    have been loaded. The result is then the same to the bit as without it.
    """
    part = fold(images, job.dataset, job.trial.fold)
    teacher = None
    if job.trial.teacher:
        begun = time.perf_counter()
        teacher = yield from taught_by(job, images, storage)
        spent = added(spent, {"teacher": time.perf_counter() - begun})
    while True:
        torch.manual_seed(seed(job.trial, "weights"))
        setup, loss = set_up(job, images, part)
        setup = replace(setup, teacher=teacher)
        if loss is None:
            return Trained(setup, None, [], spent)
        try:
            setup, checkpoint = resumed(job, setup, storage)
            curve, seconds = yield from train_stages(job, setup, loss, storage, checkpoint.after(**spent))
        except DamagedError as damage:
            yield Progress.idle("train", note=storage.set_aside(damage))
        else:
            return Trained(setup, loss, curve, seconds)


def taught_by(job: Job, images: Images, storage: Storage) -> Generator[Progress, None, teaching.Teacher]:
    """The network of the trial's teacher. Weights that are gone or damaged are made again."""
    need = teaching.job_of(job)
    name, _ = teaching.file_of(need.trial, images.contents)
    state = intact(lambda: teaching.stored(storage, need.trial, images.contents))
    if state is None:
        with (yield from entered(storage, name, "teacher")):
            state = yield from train_teacher(need, images, storage)
    return teaching.network(need, state)


def train_teacher(job: Job, images: Images, storage: Storage) -> Generator[Progress, None, State]:
    """Train and store a teacher, unless another of its students has done it meanwhile."""
    state = None
    try:
        state = teaching.stored(storage, job.trial, images.contents)
    except DamagedError as damage:
        yield Progress.idle("teacher", note=storage.set_aside(damage))
    if state is not None:
        return state
    steps = train(job, images, storage, {})
    while True:
        try:
            yield replace(next(steps), stage="teacher", metrics={})  # its epochs are not its student's
        except StopIteration as end:
            teaching.put(storage, job.trial, images.contents, end.value.setup.model)
            storage.remove(checkpoint_file(job.trial.id))
            return end.value.setup.model.state_dict()


def resumed(job: Job, setup: TrialSetup, storage: Storage) -> tuple[TrialSetup, Checkpoint]:
    """The trial's checkpoint, or an empty one; and the set-up with the conditions of the attempts that led to it and of
    this one. A trial that was interrupted may go on with other threads, or on another kind of device."""
    checkpoint = Checkpoint.read(storage, setup.trial, setup.images.contents)
    if checkpoint.stage == "train" and lacks_metrics(job, checkpoint.curve):
        checkpoint = Checkpoint(seconds=checkpoint.seconds)  # earlier epochs were not measured, so start over
    now = provenance.conditions(setup.device)
    before = [attempt for attempt in checkpoint.attempts if attempt != now]
    return replace(setup, attempts=(*before, now)), checkpoint


def train_stages(
    job: Job, setup: TrialSetup, loss: Loss, storage: Storage, checkpoint: Checkpoint
) -> Generator[Progress, None, tuple[Curve, Seconds]]:
    """Pre-training and warm-up, where the trial has them, and the trial's own stage. Returns its curve, and the seconds
    of this attempt and of those before it, as far as the checkpoint knows them."""
    trial = setup.trial
    if trial.pretrain_epochs and checkpoint.stage not in ("warmup", "train"):
        checkpoint = Checkpoint(seconds=(yield from pretrain(setup, loss, storage, checkpoint)))
    stage = main_stage(setup, loss)
    if trial.warmup_epochs and checkpoint.stage != "train":
        checkpoint = yield from warm_up(setup, warmup_stage(stage, trial.warmup_epochs), storage, checkpoint)
    return (yield from fit(setup, stage, storage, checkpoint, validation(job, setup, stage)))


def lacks_metrics(job: Job, curve: Curve) -> bool:
    """Whether an epoch was not measured that the job wants measured."""
    return (job.curves and not has_curves(curve)) or (job.select_epochs and not has_epochs(curve, "R@1"))


def warm_up(
    setup: TrialSetup, stage: Stage, storage: Storage, checkpoint: Checkpoint
) -> Generator[Progress, None, Checkpoint]:
    """Train what is not the trunk, if there is anything. Returns where the main stage begins: the warm-up is one row of
    its curve, as epoch 0."""
    if not parameter_groups(setup.model, stage):
        return checkpoint
    rows, seconds = yield from fit(setup, stage, storage, checkpoint)
    images = sum(row["images"] for row in rows)
    row = {**rows[-1], "epoch": 0, "images": images, "images_per_second": round(images / seconds[stage.name], 1)}
    return Checkpoint(seconds=seconds, curve=[row])


def prepare(job: Job) -> Generator[Progress, None, tuple[Images, Seconds]]:
    """The trial's images, and the seconds that they took: to prepare, or to wait until another trial had prepared them.
    Makes this node's image cache if it has none yet."""
    storage = Storage(job.storage)
    images = loading.load(job.dataset, job.trial, job.data_root, storage=storage, skip_bad=job.skip_bad_images)
    begun, doing = time.perf_counter(), "images"
    while True:
        try:
            done, total, note = next(images)
        except StopIteration as end:
            return end.value, added({"images": 0.0, "wait": 0.0}, {doing: time.perf_counter() - begun})
        if note:
            yield Progress.idle("images", note=note)
            continue
        doing = "images" if done else "wait"  # no image is done until another trial has done them all
        elapsed = time.perf_counter() - begun
        left = elapsed / done * (total - done) if done else 0.0
        yield Progress("images", 1, 1, done, total, math.nan, done / elapsed, left)


def write_artifacts(job: Job, setup: TrialSetup, embeddings: Tensor, storage: Storage) -> dict[str, dict[str, str]]:
    """Store the files of a final run: its test embeddings, which ensembles join, and its weights if the job keeps
    them."""
    arrays = {"embeddings": embeddings, "labels": setup.fold.test_labels}
    if setup.fold.queries is not None:
        arrays["queries"] = setup.fold.queries
    files = {"embeddings": arrays}
    if job.keep_weights:
        files["weights"] = setup.model.state_dict()
    artifacts = {}
    for kind, tensors in files.items():
        content = safetensors.torch.save({key: tensor.contiguous().cpu() for key, tensor in tensors.items()})
        artifacts[kind] = storage.write_artifact(kind, job.trial.id, content)
    return artifacts
