"""What trials find on a node: storage, images, weights, packages and GPUs; prepared and checked before they start."""

import os
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

from harness import provenance
from harness.spec import Job, Progress, UserError, first_line, redacted
from harness.storage import Storage

ATTEMPTS = 3  # to read the storage: a request may fail once
PAUSE = 1.0  # seconds between them
STORAGE, IMAGES, WEIGHTS, VERSIONS, GPUS = COLUMNS = ("storage", "images", "weights", "packages", "GPUs")


@dataclass(frozen=True)
class Expected:
    """What the driver expects of every node."""

    storage: str  # its URI
    file: str  # that the driver has written there
    content: bytes
    packages: Mapping[str, str | None]  # versions


@dataclass(frozen=True)
class Findings:
    """What a node has. Without a problem, trials can run there."""

    problems: Mapping[str, str] = field(default_factory=dict)  # column -> what is wrong
    contents: tuple[str, ...] = ()  # digests of the images of its caches
    gpus: int = 0  # that torch can use

    def __str__(self) -> str:
        return "; ".join(f"{column}: {problem}" for column, problem in self.problems.items())


def prepare(expected: Expected, jobs: Sequence[Job], gpus: float) -> Generator[Progress, None, Findings]:
    """Make the image caches that the jobs need, with all CPUs, and check what their trials will find. `gpus`: how many
    Ray counts here for them. Storage and versions come first: without them the rest cannot work."""
    problems = {STORAGE: storage_problem(expected), VERSIONS: version_problem(expected.packages)}
    yield Progress.idle("images")  # a sign of life
    contents: list[str] = []
    visible = 0
    if not any(problems.values()):
        visible = usable_gpus()
        problems[GPUS] = gpu_problem(gpus, visible)
        problems[WEIGHTS] = weights_problem(jobs)
        problems[IMAGES] = yield from images_problem(jobs, contents)
    wrong = {column: problems[column] for column in COLUMNS if problems.get(column)}
    return Findings(wrong, tuple(contents), visible)


def storage_problem(expected: Expected) -> str:
    """Every file system raises its own kind of error."""
    reason = ""
    for attempt in range(ATTEMPTS):
        try:
            content = Storage(expected.storage).read(expected.file)
        except Exception as error:
            reason = redacted(first_line(error))
            if attempt + 1 < ATTEMPTS:
                time.sleep(PAUSE)
        else:
            return "" if content == expected.content else "not seen"
    return f"not seen ({reason})"


def version_problem(expected: Mapping[str, str | None]) -> str:
    here = provenance.versions()
    return ", ".join(
        f"{name} {here[name] or 'is missing'}, the driver has {version}"
        for name, version in expected.items()
        if here[name] != version
    )


def usable_gpus() -> int:
    """How many GPUs torch can use. Ray hides them from tasks that ask for none."""
    import torch

    hidden = os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        return torch.cuda.device_count()
    finally:
        if hidden is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = hidden


def gpu_problem(counted: float, usable: int) -> str:
    """Trials would train on the CPU without a word. A GPU that Ray counts need not exist: people number resources."""
    if counted and not usable and provenance.has_gpu():
        return "torch can use none; its driver and torch do not fit"
    return ""


def weights_problem(jobs: Sequence[Job]) -> str:
    """Files are compared with the trials' hash, and a hub's weights are downloaded now."""
    from harness.backbones import network

    for job in {(job.trial.backbone, job.trial.weights): job for job in jobs}.values():
        try:
            network.check(job.trial.backbone, job.trial.weights)
            if job.trial.weights_kind in ("hub", "file"):
                network.create(job.trial, job.weights_file)
        except (UserError, OSError) as error:
            return first_line(error)
    return ""


def images_problem(jobs: Sequence[Job], contents: list[str]) -> Generator[Progress, None, str]:
    """Once for each size; adds the digests of their contents."""
    from harness.training import trial as training

    for job in {(job.trial.resize, job.trial.aspect): job for job in jobs}.values():
        try:
            images, _ = yield from training.prepare(job)
        except (UserError, OSError) as error:
            return first_line(error)
        contents.append(images.contents)
    return ""
