"""The teacher of a trial: the frozen network of another trial of the same seed and fold, which was trained first."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from harness.backbones.network import Network
from harness.spec import Job, Trial, UserError
from harness.storage import DamagedError, Storage
from harness.storage import teacher as file_name
from harness.training.setup import device_of, half_precision, network_and_loss

ALIKE = ("dataset", "dataset_version", "fingerprint", "fold", "seed")  # in which a teacher is like its student

Teacher = Callable[[Tensor], Tensor]


def job_of(job: Job) -> Job:
    """The job that trains the teacher of a trial; a UserError if its teacher is not at hand, or is of another fold: it
    would have seen the classes that its student is evaluated on."""
    student = job.trial
    teachers = [need.trial for need in job.needs if need.id == student.teacher]
    if not teachers:
        raise UserError(f"{student.name}: its teacher {student.teacher} has no result")
    (teacher,) = teachers
    for name in ALIKE:
        here, there = getattr(student, name), getattr(teacher, name)
        if here != there:
            raise UserError(f"{student.name}: its teacher {teacher.id} has {name}={there}; must be {here}")
    return replace(job, trial=teacher, sources={}, needs=(), validate=False, select_epochs=False, curves=False)


def file_of(teacher: Trial, images: str) -> tuple[str, str]:
    """The file with the weights of a teacher, and its owner. `images`: the digest of those that it was trained on."""
    return file_name(teacher.id), f"teacher {teacher.id} on images {images[:12]}"


def put(storage: Storage, teacher: Trial, images: str, model: Network) -> None:
    """Store the weights for the students, until all of them have ended."""
    state = {name: value.contiguous().cpu() for name, value in model.state_dict().items()}
    storage.write_sealed(*file_of(teacher, images), safetensors.torch.save(state))


def stored(storage: Storage, teacher: Trial, images: str) -> dict[str, Tensor] | None:
    """The stored weights; None if there are none, a DamagedError if they must not be used."""
    name, owner = file_of(teacher, images)
    content = storage.read_sealed(name, owner)
    if content is None:
        return None
    try:
        return safetensors.torch.load(content)
    except SafetensorError as error:
        raise DamagedError(name, f"is damaged: {error}") from None


def network(job: Job, state: Mapping[str, Tensor]) -> Teacher:
    """What the teacher that this job trains compares of images, in evaluation mode and without a gradient."""
    trial, device = job.trial, device_of(job)
    model, _ = network_and_loss(trial, {}, pretrained=False)
    model.load_state_dict(state)
    model = model.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.eval().requires_grad_(False)
    amp = half_precision(trial.precision, device)

    def embed(images: Tensor) -> Tensor:
        # not inference_mode: the student's gradient passes by what comes of it
        with torch.no_grad(), torch.autocast(device.type, enabled=amp):
            return model.embed(images).float()

    return embed
