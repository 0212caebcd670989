"""Every image of a dataset decoded and resized once, in one memory-mapped file that all trials on a node share.

A cache is a folder named by dataset, fingerprint and size: `pixels` (uint8, image after image), `index.npz` (where each
image begins, its size, label and so on) and `about.json` (classes, paths, images that could not be read). It is built
under another name and moved into place under a lock, so a killed build leaves nothing that looks complete. A complete
cache no longer needs the dataset's files.
"""

import errno
import json
import os
import shutil
import zipfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from filelock import FileLock, Timeout

from harness.data import images
from harness.data.listing import Listing
from harness.files import PART, part_of, writing
from harness.spec import UserError, unknown

SCHEMA = 1
SAMPLE = 64  # images whose headers are read to estimate the size of a cache


@dataclass(frozen=True)
class Key:
    """What a cache is named by."""

    dataset: str
    fingerprint: str
    resize: int
    aspect: str

    @property
    def folder(self) -> Path:
        size = f"{self.resize}x{self.resize}" if self.aspect == "square" else f"short{self.resize}"
        return home() / f"{self.dataset}-{self.fingerprint}-{size}"


@dataclass(frozen=True)
class Built:
    """A cache on disk: image i is `pixels[offsets[i]:]`, heights[i] x widths[i] x 3."""

    pixels: np.ndarray
    offsets: np.ndarray
    heights: np.ndarray
    widths: np.ndarray
    labels: np.ndarray
    queries: np.ndarray
    readable: np.ndarray
    classes: tuple[str, ...]
    train_classes: int
    paths: tuple[str, ...]
    bad: dict[str, str]  # path -> why it could not be read


@dataclass(frozen=True)
class Blueprint:
    """A cache to be built: its images, and the heights and widths they will have."""

    key: Key
    listing: Listing
    shapes: np.ndarray  # (n, 2)

    @cached_property
    def offsets(self) -> np.ndarray:
        """The byte at which each image begins, and the end of the last one: (n + 1,)."""
        return np.concatenate([[0], 3 * self.shapes.prod(axis=1).cumsum()])

    @property
    def bytes(self) -> int:
        return int(self.offsets[-1])


def home() -> Path:
    """The folder of this node's caches."""
    if chosen := os.environ.get("HARNESS_CACHE"):
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "metric-loss-harness"


def open_built(key: Key) -> Built | None:
    """The cache, memory-mapped; None if there is no complete one."""
    folder = key.folder
    try:
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        if about["schema"] != SCHEMA:
            return None
        with np.load(folder / "index.npz", allow_pickle=False) as index:
            arrays = {name: index[name] for name in index.files}
        size = (folder / "pixels").stat().st_size
        # an empty file cannot be mapped; it is empty if no image could be read
        pixels = np.memmap(folder / "pixels", np.uint8, mode="r") if size else np.zeros(0, np.uint8)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):  # a damaged cache is built again
        return None
    if size != 3 * int((arrays["heights"] * arrays["widths"]).sum()):  # cut off, as by a copy to a full disk
        return None
    return Built(
        pixels,
        **arrays,
        classes=tuple(about["classes"]),
        train_classes=about["train_classes"],
        paths=tuple(about["paths"]),
        bad=about["bad"],
    )


def build(key: Key, listing: Listing) -> Iterator[int]:
    """Build the cache unless it exists. Yields the number of images done: 0 while another process builds it, and while
    the sizes of the images are looked up."""
    folder = key.folder
    lock = lock_of(folder)
    with writing(f"the image cache to {folder.parent} (HARNESS_CACHE)"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        while not acquired(lock):
            yield 0
    try:
        if open_built(key) is None:
            for part in folder.parent.glob(f"{folder.name}.*{PART}"):  # a killed build left it
                shutil.rmtree(part, ignore_errors=True)
            shapes = yield from look_up_shapes(key, listing)
            yield from write(Blueprint(key, listing, shapes), part_of(folder))
    finally:
        lock.release()


def lock_of(folder: Path) -> FileLock:
    """The lock of a cache. Another thread than the one that runs a generator may close it, so the lock belongs to the
    process, not to a thread."""
    return FileLock(folder.with_name(f"{folder.name}.lock"), thread_local=False)


def acquired(lock: FileLock) -> bool:
    """Whether the lock could be had within a second."""
    try:
        lock.acquire(timeout=1)
    except Timeout:
        return False
    return True


def look_up_shapes(key: Key, listing: Listing) -> Generator[int, None, np.ndarray]:
    """(n, 2): the heights and widths the images will have."""
    shapes = np.zeros((len(listing.paths), 2), dtype=np.int64)
    with images.workers() as pool:
        for begin in range(0, len(shapes), images.BLOCK):
            block = listing.paths[begin : begin + images.BLOCK]
            shapes[begin : begin + len(block)] = list(pool.map(partial(shape, key, listing.folder), block))
            yield 0
    return shapes


def write(blueprint: Blueprint, part: Path) -> Iterator[int]:
    """Decode every image into the folder `part`, then move it into place. Yields the number of images done."""
    folder = blueprint.key.folder
    check_disk(blueprint.key, blueprint.bytes)
    try:
        with writing(f"the image cache {folder}"):
            part.mkdir()
            with (part / "pixels").open("wb") as stream:
                bad = yield from decode(blueprint, stream)
            save_index(blueprint, bad, part)
            for file in part.iterdir():
                with file.open("rb") as written:
                    os.fsync(written.fileno())
            if folder.exists():  # of an earlier version, or damaged
                shutil.rmtree(folder)
            part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def decode(blueprint: Blueprint, stream: BinaryIO) -> Generator[int, None, dict[str, str]]:
    """Write the pixels of every image; path -> why, for those that cannot be read."""
    key, listing = blueprint.key, blueprint.listing
    paths, total = listing.paths, blueprint.bytes
    stream.truncate(total)
    if total and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(stream.fileno(), 0, total)  # a full disk is noticed now, not after hours

    def why_not(number: int) -> str | None:
        """Why an image cannot be used, or None once its pixels are written."""
        try:
            pixels = images.read(listing.folder / paths[number], key.resize, key.aspect)
        except images.BadImageError as error:
            return str(error)
        if pixels.shape[:2] != tuple(blueprint.shapes[number]):
            return f"its size differs from the one in its header: {pixels.shape[:2]}"
        if os.pwrite(stream.fileno(), pixels.tobytes(), int(blueprint.offsets[number])) != pixels.size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return None

    bad: dict[str, str] = {}
    with images.workers() as pool:
        for begin in range(0, len(paths), images.BLOCK):
            numbers = range(begin, min(begin + images.BLOCK, len(paths)))
            for number, why in zip(numbers, pool.map(why_not, numbers), strict=True):
                if why:
                    bad[paths[number]] = why
            yield numbers.stop
    return bad


def save_index(blueprint: Blueprint, bad: dict[str, str], part: Path) -> None:
    key, listing = blueprint.key, blueprint.listing
    np.savez(
        part / "index.npz",
        offsets=blueprint.offsets[:-1],
        heights=blueprint.shapes[:, 0],
        widths=blueprint.shapes[:, 1],
        labels=np.array(listing.labels),
        queries=np.array(listing.queries, dtype=bool),
        readable=np.array([path not in bad for path in listing.paths]),
    )
    about = {
        "schema": SCHEMA,
        "dataset": key.dataset,
        "fingerprint": key.fingerprint,
        "resize": key.resize,
        "aspect": key.aspect,
        "classes": listing.classes,
        "train_classes": listing.train_classes,
        "paths": listing.paths,
        "bad": bad,
    }
    (part / "about.json").write_text(json.dumps(about), encoding="utf-8")


def shape(key: Key, folder: Path, path: str) -> tuple[int, int]:
    """The height and width an image will have; (0, 0) if it cannot be read."""
    if key.aspect == "square":
        return key.resize, key.resize
    try:
        height, width = images.size(folder / path)
    except images.BadImageError:
        return 0, 0
    return images.resized(width, height, key.resize, key.aspect)


def estimate(key: Key, listing: Listing) -> int:
    """Bytes the cache will need, from the headers of a few images spread over the dataset."""
    step = max(1, len(listing.paths) // SAMPLE)
    shapes = [shape(key, listing.folder, path) for path in listing.paths[::step]]
    return round(sum(3 * height * width for height, width in shapes) / len(shapes) * len(listing.paths))


def check_disk(key: Key, needed: int) -> None:
    """A UserError if the disk has too little room, after the parts that killed builds left are removed."""
    sweep()
    folder = home()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"{key.dataset}: the image cache needs {gigabytes(needed)}, {home()} has {gigabytes(free)} free; "
            "choose another folder with HARNESS_CACHE, or remove old caches: harness data cache ls"
        )


def sweep() -> None:
    """Remove the parts of caches that no process builds any more; no command lists them."""
    for part in home().glob(f"*{PART}"):
        cache_name = part.name.rsplit(".", 2)[0]
        with suppress(Timeout, OSError), lock_of(part.with_name(cache_name)).acquire(timeout=0):
            shutil.rmtree(part, ignore_errors=True)


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


@dataclass(frozen=True)
class Summary:
    """A cache as `harness data cache ls` lists it."""

    name: str
    images: int
    bad: int
    bytes: int

    @property
    def prefixes(self) -> tuple[str, str, str]:
        """The names by which it can be removed: its own, dataset-fingerprint, and dataset."""
        return self.name, self.name.rsplit("-", 1)[0], self.name.rsplit("-", 2)[0]


def summaries() -> list[Summary]:
    """The caches on this node."""
    caches = []
    for file in sorted(home().glob("*/about.json")):
        folder = file.parent
        if folder.name.endswith(PART):
            continue
        try:
            about: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except json.JSONDecodeError:
            about = {}
        size = sum(inside.stat().st_size for inside in folder.iterdir())
        caches.append(Summary(folder.name, len(about.get("paths", ())), len(about.get("bad", ())), size))
    return caches


def remove(names: Sequence[str]) -> list[Summary]:
    """Remove caches by name, by dataset or by dataset-fingerprint; a UserError, before any is removed, if a name fits
    none. Lock files stay: another process may wait for one."""
    caches = summaries()
    removed: dict[str, Summary] = {}
    for name in names:
        chosen = [summary for summary in caches if name in summary.prefixes]
        if not chosen:
            raise unknown(f"image cache in {home()}", name, [summary.name for summary in caches])
        removed |= {summary.name: summary for summary in chosen}
    for name in removed:
        part = part_of(home() / name)
        try:
            (home() / name).rename(part)  # in one step: a half-removed cache must not look complete
            shutil.rmtree(part)
        except OSError as error:
            raise UserError(f"cannot remove the image cache {home() / name}: {error.strerror or error}") from None
    return list(removed.values())
