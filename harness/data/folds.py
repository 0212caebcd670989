"""The images of a dataset, and its class-disjoint folds."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.spec import VALIDATION_FOLDS, Dataset, UserError


@dataclass(frozen=True)
class Images:
    """All images of a dataset. The pixels are one flat uint8 array, usually a memory-mapped file: image i begins at
    offsets[i] and is heights[i] x widths[i] x 3."""

    pixels: np.ndarray
    offsets: np.ndarray
    heights: np.ndarray
    widths: np.ndarray
    labels: Tensor  # (n,), indices into `classes`
    classes: tuple[str, ...]  # the first `train_classes` train
    train_classes: int
    queries: Tensor | None = None  # (n,) bool; None: every test image is query and gallery
    paths: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()  # paths of images that could not be read
    contents: str = ""  # sha256 of the contents of all files
    copies: int = 0  # test images whose file is identical to another one's

    @property
    def origin(self) -> dict[str, Any]:
        """What a record says of them."""
        return {"bad_images_skipped": len(self.skipped), "data_sha256": self.contents, "copies": self.copies}

    @cached_property
    def square(self) -> int | None:
        """The side of the images if all are squares of one size, else None."""
        side = int(self.heights[0])
        return side if (self.heights == side).all() and (self.widths == side).all() else None

    def crop(self, which: Tensor, size: int, top: Tensor, left: Tensor) -> Tensor:
        """A size x size window of each image, as (n, size, size, 3) uint8: one gather of rows from the file."""
        chosen = which.numpy()
        rows = top.numpy()[:, None] + np.arange(size)  # (n, size)
        starts = self.offsets[chosen, None] + 3 * (rows * self.widths[chosen, None] + left.numpy()[:, None])
        windows = np.lib.stride_tricks.sliding_window_view(self.pixels, 3 * size)  # a view: nothing is copied yet
        return torch.from_numpy(windows[starts]).view(len(chosen), size, size, 3)

    def image(self, number: int) -> Tensor:
        """One whole image, (h, w, 3) uint8."""
        height, width, begin = int(self.heights[number]), int(self.widths[number]), int(self.offsets[number])
        flat = np.array(self.pixels[begin : begin + 3 * height * width])
        return torch.from_numpy(flat).view(height, width, 3)

    def centre(self, which: Tensor, size: int) -> Tensor:
        """The centre window of each image, with torchvision's rounding of an odd margin."""
        top, left = (torch.from_numpy(np.rint((side[which.numpy()] - size) / 2)).long() for side in self.sides)
        return self.crop(which, size, top, left)

    @property
    def sides(self) -> tuple[np.ndarray, np.ndarray]:
        return self.heights, self.widths


@dataclass(frozen=True)
class Fold:
    """Which images train and which are evaluated. Labels count from 0 on each side; no class is on both sides."""

    train: Tensor  # indices into Images
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    queries: Tensor | None = None  # which of `test` are queries; None: each is a query, with the others as its gallery
    names: tuple[str, ...] = ()  # of the classes that are evaluated, as test_labels number them

    @property
    def train_classes(self) -> int:
        return int(self.train_labels.max()) + 1


def fold(images: Images, dataset: Dataset, name: str) -> Fold:
    """`test`: train on the first half of the classes, evaluate on the second.

    `val0`..`val3`: the training half alone, with a quarter of its classes held out; no test class is on either side.
    """
    counts = images.labels.bincount(minlength=len(images.classes)).tolist()
    train, test = split(dict(zip(images.classes, counts, strict=True)), images.train_classes, dataset, name)
    indices, test_labels = select(images, test)
    queries = images.queries[indices] if images.queries is not None and name == "test" else None
    if queries is not None and (not queries.any() or queries.all()):
        raise UserError(f"{dataset.name}: no readable query image or no readable gallery image; it needs both")
    return Fold(*select(images, train), indices, test_labels, queries, tuple(test))


def split(sizes: Mapping[str, int], train_classes: int, dataset: Dataset, name: str) -> tuple[list[str], list[str]]:
    """The classes of a fold that train, and those that are held out. `sizes`: the images of each class, in the order of
    the classes, the first `train_classes` of which train."""
    classes = list(sizes.items())  # a class may be empty where bad images are skipped
    train = [label for label, count in classes[:train_classes] if count]
    test = [label for label, count in classes[train_classes:] if count]
    if name != "test":
        number = int(name.removeprefix("val"))
        test = shuffled(train, f"{dataset.split_seed}:val")[number::VALIDATION_FOLDS]
        held_out = set(test)
        train = [label for label in train if label not in held_out]
    for side, labels in (("training", train), ("held-out", test)):
        if len(labels) < 2:
            count = f"{len(labels)} {side} class{'' if len(labels) == 1 else 'es'}"
            advice = "" if name == "test" else "; search needs more training classes"
            raise UserError(f"{dataset.name}: fold {name} has {count}; it needs at least 2{advice}")
    return train, test


def shuffled(names: Sequence[str], seed: str) -> list[str]:
    """Names ordered by a hash: a shuffle that does not depend on any library's random generator."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())


def select(images: Images, classes: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Indices of the images of these classes, and their labels in 0..len(classes)-1."""
    index = {name: number for number, name in enumerate(classes)}
    relabel = torch.tensor([index.get(name, -1) for name in images.classes])
    labels = relabel[images.labels]
    indices = (labels >= 0).nonzero().squeeze(1)
    return indices, labels[indices]
