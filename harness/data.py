"""Images, their classes, and the class-disjoint folds of a dataset."""

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from harness.spec import VALIDATION_FOLDS, Dataset, UserError

EMBEDDED = Path(__file__).parent / "embedded"


@dataclass(frozen=True)
class Images:
    """A whole dataset: pixels (n, height, width, 3) uint8, labels (n,) that index `classes`."""

    pixels: Tensor
    labels: Tensor
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Fold:
    """Which images train and which are evaluated. Labels count from 0 on either side; no class is on both."""

    train: Tensor  # indices into Images
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor

    @property
    def train_classes(self) -> int:
        return int(self.train_labels.max()) + 1


@cache
def load(dataset: Dataset) -> Images:
    """The dataset in memory, its checksum and counts asserted; kept, so that a worker pays for it once."""
    file = EMBEDDED / f"{dataset.name}.npz"
    content = read_checked(file, dataset)
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        drawings, classes = archive["images"], tuple(str(name) for name in archive["classes"])
    count, samples = drawings.shape[:2]
    images = Images(
        pixels=torch.from_numpy(drawings.reshape(-1, *drawings.shape[2:])),
        labels=torch.arange(count).repeat_interleave(samples),
        classes=classes,
    )
    test = fold(images, dataset, "test")
    check_counts(dataset, file, test)
    return images


def read_checked(file: Path, dataset: Dataset) -> bytes:
    """The file's bytes; a UserError where it is missing or not the file the configuration was written for."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{dataset.name}: {file} is missing; reinstall the package") from None
    found = hashlib.sha256(content).hexdigest()
    if found != dataset.sha256:
        raise UserError(
            f"{dataset.name}: {file} has sha256 {found[:12]}..., expected {dataset.sha256[:12]}...; "
            "the file is damaged or of another version, reinstall the package"
        )
    return content


def check_counts(dataset: Dataset, where: Path, test: Fold) -> None:
    counted = {
        "training classes": (dataset.train_classes, test.train_classes),
        "test classes": (dataset.test_classes, int(test.test_labels.max()) + 1),
        "training images": (dataset.train_images, len(test.train)),
        "test images": (dataset.test_images, len(test.test)),
    }
    for what, (expected, found) in counted.items():
        if expected != found:
            raise UserError(f"{dataset.name}: expected {expected} {what}, found {found} in {where}")


def fold(images: Images, dataset: Dataset, name: str) -> Fold:
    """`test`: train on the first half of the classes, evaluate on the second.

    `val0`..`val3`: the training half again, a quarter of its classes held out; test classes are on neither side.
    """
    order = shuffled(images.classes, f"{dataset.split_seed}")
    train, test = order[: dataset.train_classes], order[dataset.train_classes :]
    if name != "test":
        held_out = shuffled(train, f"{dataset.split_seed}:val")[int(name.removeprefix("val")) :: VALIDATION_FOLDS]
        train, test = [one for one in train if one not in set(held_out)], held_out
    return Fold(*select(images, train), *select(images, test))


def shuffled(names: Sequence[str], seed: str) -> list[str]:
    """Names ordered by a hash: a shuffle that no library's random generator can change."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())


def select(images: Images, classes: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Indices of the images of these classes, and their labels in 0..len(classes)-1."""
    place = {name: position for position, name in enumerate(classes)}
    relabel = torch.tensor([place.get(name, -1) for name in images.classes])
    labels = relabel[images.labels]
    indices = (labels >= 0).nonzero().squeeze(1)
    return indices, labels[indices]
