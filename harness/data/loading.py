"""A dataset's images, from the package or from this node's image cache."""

import contextlib
import hashlib
import io
import os
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from harness.data import cache, listing
from harness.data.folds import Fold, Images, fold, shuffled
from harness.data.images import broken
from harness.spec import Dataset, Trial, UserError

EMBEDDED = Path(__file__).parent / "embedded"


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
