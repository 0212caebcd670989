"""A dataset's images, from the package or from this node's image cache."""

import contextlib
import hashlib
import io
import os
import shlex
from collections.abc import Generator, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from harness.data import cache, cache_building, cache_parts, contents, listing
from harness.data.cache import Step
from harness.data.folds import Images, fold, shuffled
from harness.data.images import broken
from harness.spec import Dataset, Trial, UserError
from harness.storage import DamagedError, Storage

EMBEDDED = Path(__file__).parent / "embedded"


def load(
    dataset: Dataset, trial: Trial, root: str = "", *, storage: Storage | None = None, skip_bad: bool = False
) -> Generator[Step, None, Images]:
    """The dataset's images at the trial's size, from this node's cache. If it has none yet, its images are decoded into
    one; without images, one is taken from the storage."""
    if dataset.layout == "embedded":  # the trial's transforms resize these
        return embedded(dataset)
    key = cache.Key(dataset.name, dataset.fingerprint, trial.resize, trial.aspect)
    images = yield from mapped(key, dataset, root, storage)
    if images.skipped and not skip_bad:
        name = shlex.quote(dataset.path or dataset.name)
        total = len(images.paths) + len(images.skipped)
        raise UserError(
            f"{dataset.name}: {len(images.skipped)} of {total} images cannot be read, e.g. "
            f"{images.skipped[0]}; list them with harness data check {name}, or continue without them: "
            "--skip-bad-images"
        )
    return images


def mapped(
    key: cache.Key, dataset: Dataset, root: str, storage: Storage | None = None
) -> Generator[Step, None, Images]:
    """The images of the dataset's cache, which is made if there is none, or none of the images as they are now."""
    built = yield from undamaged(key)
    expected = dataset.sha256 or (contents_here(dataset, root) if built is not None else "")
    if built is not None and built.bad and mended(dataset, root, built):
        with contextlib.suppress(UserError):  # another trial has removed it first
            cache.remove([key.folder.name])
        built = yield from undamaged(key)
    if built is None or expected not in ("", built.contents):
        yield from make(key, dataset, root, storage, expected)
        built = yield from as_made(key)
        if expected not in ("", built.contents):  # the files have changed just now
            place = planned_listing(dataset, root).folder
            raise not_as_planned(dataset, place, f"contents {built.contents[:12]}, planned {expected[:12]}")
    readable = built.readable
    return Images(
        pixels=built.pixels,
        offsets=built.offsets[readable],
        heights=built.heights[readable],
        widths=built.widths[readable],
        labels=torch.from_numpy(built.labels[readable]),
        classes=built.classes,
        train_classes=built.train_classes,
        queries=torch.from_numpy(built.queries[readable]) if len(built.queries) else None,
        paths=tuple(path for path in built.paths if path not in built.bad),
        skipped=tuple(built.bad),
        contents=built.contents,
        copies=built.copies,
    )


def make(key: cache.Key, dataset: Dataset, root: str, storage: Storage | None, expected: str) -> Iterator[Step]:
    """Make the cache: of the images on this node, if there are any, else from the storage, if it has one."""
    if storage is not None and not any(listing.exists(dataset, data_root) for data_root in data_roots(root)):
        manifest = cache_parts.find(key, storage)
        if manifest is not None:
            yield from cache_parts.take(manifest, storage, expected)
            return
    yield from cache_building.build(key, planned_listing(dataset, root), expected)


def undamaged(key: cache.Key) -> Generator[Step, None, cache.Built | None]:
    """The cache, if there is one that can be used; building sets a damaged one aside."""
    try:
        return (yield from cache.opened(key))
    except DamagedError:
        return None


def as_made(key: cache.Key) -> Generator[Step, None, cache.Built]:
    """The cache that was made just now. A UserError if it does not hold what was written."""
    try:
        built = yield from cache.opened(key)
    except DamagedError as damage:
        raise UserError(f"{damage}, just after it was made; check the disk of HARNESS_CACHE, {cache.home()}") from None
    if built is None:
        raise UserError(f"the image cache {key.folder} was removed just after it was made; run again")
    return built


def mended(dataset: Dataset, root: str, built: cache.Built) -> bool:
    """Whether an image that could not be read when the cache was built can be read now: this node has a format more."""
    files = listing_here(dataset, root)
    return files is not None and len(list(broken(files.folder, list(built.bad)))) < len(built.bad)


def contents_here(dataset: Dataset, root: str) -> str:
    """The digest of the dataset's files on this node; empty if they are not here. Only changed files are read."""
    files = listing_here(dataset, root)
    if files is None or listing.fingerprint(files) != dataset.fingerprint:
        return ""
    return contents.sha256(contents.read(dataset.name, files))


def listing_here(dataset: Dataset, root: str) -> listing.Listing | None:
    """The dataset's files on this node, if there are any."""
    for data_root in data_roots(root):
        if listing.exists(dataset, data_root):
            return listing.survey(dataset, data_root)
    return None


def data_roots(root: str) -> list[Path]:
    """The data roots of this node: the one the command was given, then this node's HARNESS_DATA."""
    here = os.environ.get("HARNESS_DATA")
    return [Path(root), Path(here)] if here else [Path(root)]


def planned_listing(dataset: Dataset, root: str) -> listing.Listing:
    """The dataset's files on this node; a UserError if they are not those the trial was planned with."""
    roots = data_roots(root)
    existing = [data_root for data_root in roots if listing.exists(dataset, data_root)]
    files = listing.read(dataset, existing[0] if existing else roots[0])
    fingerprint = listing.fingerprint(files)
    if fingerprint != dataset.fingerprint:
        raise not_as_planned(dataset, files.folder, f"fingerprint {fingerprint}, planned {dataset.fingerprint}")
    if dataset.sha256:
        found = contents.sha256(contents.read(dataset.name, files))
        if found != dataset.sha256:
            raise not_as_planned(dataset, files.folder, f"contents {found[:12]}, planned {dataset.sha256[:12]}")
    return files


def not_as_planned(dataset: Dataset, folder: Path, difference: str) -> UserError:
    return UserError(
        f"{dataset.name}: the files under {folder} are not those the run was planned with ({difference}); "
        "use the same files on every node and do not change them during a run"
    )


def embedded(dataset: Dataset) -> Images:
    """A dataset that ships with the package; a UserError if its checksum or its counts are wrong."""
    file = EMBEDDED / f"{dataset.name}.npz"
    drawings, names = decoded(dataset.name, file, dataset.sha256)
    count, samples, side = drawings.shape[:3]
    order = shuffled(names, f"{dataset.split_seed}")
    index = {name: number for number, name in enumerate(order)}
    n = count * samples
    images = Images(
        pixels=drawings.reshape(-1),
        offsets=np.arange(n) * (3 * side * side),
        heights=np.full(n, side),
        widths=np.full(n, side),
        labels=torch.tensor([index[name] for name in names]).repeat_interleave(samples),
        classes=tuple(order),
        train_classes=dataset.train_classes,
        paths=tuple(f"{name}/{drawing}" for name in names for drawing in range(samples)),
        contents=dataset.sha256,
    )
    check_counts(dataset, file, images)
    return images


@lru_cache(maxsize=1)  # the trials of one process share the pixels
def decoded(name: str, file: Path, sha256: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Images (classes, samples, side, side, 3) and class names of an embedded dataset, its checksum verified."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{name}: {file} is missing; reinstall the package") from None
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise UserError(
            f"{name}: {file} has sha256 {digest[:12]}..., expected {sha256[:12]}...; "
            "the file is damaged or of another version, reinstall the package"
        )
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return archive["images"], tuple(str(class_name) for class_name in archive["classes"])


def check_counts(dataset: Dataset, file: Path, images: Images) -> None:
    test = fold(images, dataset, "test")
    counts = {
        "training classes": (dataset.train_classes, test.train_classes),
        "test classes": (dataset.test_classes, int(test.test_labels.max()) + 1),
        "training images": (dataset.train_images, len(test.train)),
        "test images": (dataset.test_images, len(test.test)),
    }
    for noun, (expected, count) in counts.items():
        if expected != count:
            raise UserError(f"{dataset.name}: expected {expected} {noun}, found {count} in {file}")
