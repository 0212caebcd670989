"""Images ready for batches, and the class-disjoint folds of a dataset."""

import contextlib
import hashlib
import io
import os
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from harness.data import cache, listing
from harness.data.images import broken
from harness.spec import VALIDATION_FOLDS, Dataset, Trial, UserError

EMBEDDED = Path(__file__).parent / "embedded"


@dataclass(frozen=True)
class Images:
    """A whole dataset. Pixels are one flat uint8 array, usually a mapped file: image i begins at offsets[i] and is
    heights[i] x widths[i] x 3."""

    pixels: np.ndarray
    offsets: np.ndarray
    heights: np.ndarray
    widths: np.ndarray
    labels: Tensor  # (n,), index `classes`
    classes: tuple[str, ...]  # the first `train_classes` train
    train_classes: int
    queries: Tensor | None = None  # (n,) bool, where queries and gallery are apart
    paths: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()  # paths of images that could not be read

    @cached_property
    def square(self) -> int | None:
        """The side of every image, where all are squares of one size."""
        side = int(self.heights[0])
        return side if (self.heights == side).all() and (self.widths == side).all() else None

    def crop(self, which: Tensor, size: int, top: Tensor, left: Tensor) -> Tensor:
        """A size x size window of each image, as (n, size, size, 3) uint8: one gather of rows from the file."""
        chosen = which.numpy()
        rows = top.numpy()[:, None] + np.arange(size)  # (n, size)
        starts = self.offsets[chosen, None] + 3 * (rows * self.widths[chosen, None] + left.numpy()[:, None])
        windows = np.lib.stride_tricks.sliding_window_view(self.pixels, 3 * size)  # a view: nothing is copied yet
        return torch.from_numpy(windows[starts]).view(len(chosen), size, size, 3)

    def one(self, number: int) -> Tensor:
        """An image (h, w, 3)."""
        height, width, begin = int(self.heights[number]), int(self.widths[number]), int(self.offsets[number])
        flat = np.array(self.pixels[begin : begin + 3 * height * width])
        return torch.from_numpy(flat).view(height, width, 3)

    def centre(self, which: Tensor, size: int) -> Tensor:
        """The centre window of each image; an odd pixel is rounded as torchvision rounds it."""
        top, left = (torch.from_numpy(np.rint((side[which.numpy()] - size) / 2)).long() for side in self.sides)
        return self.crop(which, size, top, left)

    @property
    def sides(self) -> tuple[np.ndarray, np.ndarray]:
        return self.heights, self.widths


@dataclass(frozen=True)
class Fold:
    """Which images train and which are evaluated. Labels count from 0 on either side; no class is on both."""

    train: Tensor  # indices into Images
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    queries: Tensor | None = None  # which of `test` are queries; None: each is one, and in the gallery of the others

    @property
    def train_classes(self) -> int:
        return int(self.train_labels.max()) + 1


_loaded: dict[cache.Key, Images] = {}


def load(
    dataset: Dataset, trial: Trial, root: str = "", *, skip_bad: bool = False
) -> Generator[tuple[int, int], None, Images]:
    """The dataset at the trial's size; kept, so that a worker pays for it once.

    What is not in the image cache of this node yet is decoded into it: yields (images done, images).
    """
    key = cache.Key(dataset.name, dataset.fingerprint, trial.resize, trial.aspect)
    if dataset.layout == "embedded":
        key = replace(key, resize=0)  # as it is stored, whatever the trial makes of it
    if key not in _loaded:
        _loaded[key] = embedded(dataset) if not key.resize else (yield from mapped(key, dataset, root))
    images = _loaded[key]
    if images.skipped and not skip_bad:
        del _loaded[key]  # the files may be mended before the next trial
        name = f"./{dataset.name}" if Path(dataset.folder).is_absolute() else dataset.name
        raise UserError(
            f"{dataset.name}: {images.skipped[0]} cannot be read, one of {len(images.skipped)}; "
            f"harness data check {name} lists them, --skip-bad-images goes on without"
        )
    return images


def forget() -> None:
    """Drop what is loaded."""
    _loaded.clear()


def mapped(key: cache.Key, dataset: Dataset, root: str) -> Generator[tuple[int, int], None, Images]:
    """The dataset's cache, built if there is none."""
    built = cache.open_built(key)
    if built is not None and built.bad and mended(dataset, root, built):
        with contextlib.suppress(UserError):  # another trial has seen it first
            cache.remove([key.folder.name])
        built = cache.open_built(key)
    if built is None:
        found = find(dataset, root)
        for done in cache.build(key, found):
            yield done, len(found.paths)
        built = cache.open_built(key)
        assert built is not None
    kept = built.readable
    return Images(
        pixels=built.pixels,
        offsets=built.offsets[kept],
        heights=built.heights[kept],
        widths=built.widths[kept],
        labels=torch.from_numpy(built.labels[kept]),
        classes=built.classes,
        train_classes=built.train_classes,
        queries=torch.from_numpy(built.queries[kept]) if len(built.queries) else None,
        paths=tuple(path for path in built.paths if path not in built.bad),
        skipped=tuple(built.bad),
    )


def mended(dataset: Dataset, root: str, built: cache.Built) -> bool:
    """Whether an image that could not be read when the cache was built can be now: the fingerprint knows sizes only."""
    place = next((place for place in places(root) if listing.is_there(dataset, place)), None)
    if place is None:
        return False
    folder = listing.survey(dataset, place).folder
    return len(list(broken(folder, list(built.bad)))) < len(built.bad)


def places(root: str) -> list[Path]:
    """Data roots on this node: where the command found the dataset, and what this node's HARNESS_DATA says."""
    return [Path(root), *(Path(one) for one in [os.environ.get("HARNESS_DATA")] if one)]


def find(dataset: Dataset, root: str) -> listing.Listing:
    """The dataset's files on this node; they have to be the ones the trial was planned with."""
    there = [place for place in places(root) if listing.is_there(dataset, place)]
    found = listing.read(dataset, (there or places(root))[0])
    if (seen := listing.fingerprint(found)) != dataset.fingerprint:
        raise UserError(
            f"{dataset.name}: the files under {found.folder} are not those the run was planned with "
            f"(fingerprint {seen}, planned {dataset.fingerprint}): were they changed, or is this another node's copy?"
        )
    return found


def embedded(dataset: Dataset) -> Images:
    """A dataset that comes with the package, its checksum and counts asserted."""
    file = EMBEDDED / f"{dataset.name}.npz"
    with np.load(io.BytesIO(read_checked(file, dataset)), allow_pickle=False) as archive:
        drawings, names = archive["images"], [str(name) for name in archive["classes"]]
    count, samples, side = drawings.shape[:3]
    order = shuffled(names, f"{dataset.split_seed}")
    place = {name: index for index, name in enumerate(order)}
    n = count * samples
    images = Images(
        pixels=drawings.reshape(-1),
        offsets=np.arange(n) * (3 * side * side),
        heights=np.full(n, side),
        widths=np.full(n, side),
        labels=torch.tensor([place[name] for name in names]).repeat_interleave(samples),
        classes=tuple(order),
        train_classes=dataset.train_classes,
        paths=tuple(f"{name}/{drawing}" for name in names for drawing in range(samples)),
    )
    check_counts(dataset, file, fold(images, dataset, "test"))
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
    counts = images.labels.bincount(minlength=len(images.classes)).tolist()
    there = [one for one, count in zip(images.classes, counts, strict=True) if count]  # skipping may empty a class
    training = set(images.classes[: images.train_classes])
    train, test = [one for one in there if one in training], [one for one in there if one not in training]
    if name != "test":
        quarter = shuffled(train, f"{dataset.split_seed}:val")[int(name.removeprefix("val")) :: VALIDATION_FOLDS]
        train, test = [one for one in train if one not in set(quarter)], quarter
    for side, classes in (("training", train), ("held-out", test)):
        if len(classes) < 2:
            raise UserError(f"{dataset.name}: fold {name} has {len(classes)} {side} classes; it needs 2")
    held_out, labels = select(images, test)
    queries = images.queries[held_out] if images.queries is not None and name == "test" else None
    if queries is not None and (not queries.any() or queries.all()):
        raise UserError(f"{dataset.name}: no readable query or no gallery image is left")
    return Fold(*select(images, train), held_out, labels, queries)


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
