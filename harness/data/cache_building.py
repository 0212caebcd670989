"""Making an image cache: under another name, then moved into place under a lock, so that a killed process leaves
nothing that looks complete."""

import dataclasses
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
from filelock import FileLock, Timeout

from harness.data import contents, images
from harness.data.cache import (
    SCHEMA,
    Key,
    Step,
    checksum,
    discard,
    gigabytes,
    home,
    opened,
    set_aside,
)
from harness.data.listing import Listing
from harness.files import PART, part_of, writing
from harness.spec import UserError
from harness.storage import DamagedError, digest

SAMPLE = 64  # images whose headers are read to estimate the size of a cache


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


@dataclass
class Decoded:
    """What is known of the images once they are decoded; in the order of their listing."""

    files: list[bytes] = field(default_factory=list)  # the sha256 of each file
    pixels: list[bytes] = field(default_factory=list)  # the sha256 of each image's pixels; empty for a bad one
    bad: dict[str, str] = field(default_factory=dict)  # path -> why it could not be read


Fill = Callable[[Path], Iterator[Step]]  # makes a folder with the files of a cache


def build(key: Key, listing: Listing, expected: str = "") -> Iterator[Step]:
    """Make the cache from the files of its images."""
    return make(key, partial(decode_all, key, listing), len(listing.paths), expected)


def make(key: Key, fill: Fill, total: int, expected: str = "") -> Iterator[Step]:
    """Make the cache of so many images, unless there is one of the expected contents; of any contents if none are
    expected. A damaged one is set aside."""
    folder = key.folder
    lock = lock_of(folder)
    with writing(f"the image cache to {folder.parent} (HARNESS_CACHE)"):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with writing(f"{lock.lock_file}, the lock of the image cache (HARNESS_CACHE)"):
        while not acquired(lock):
            yield Step(0, total)
    try:
        if not (yield from is_built(key, expected)):
            for part in folder.parent.glob(f"{folder.name}.*{PART}"):  # a killed process left it
                shutil.rmtree(part, ignore_errors=True)
            yield from fill_part(key, fill, part_of(folder))
    finally:
        lock.release()


def fill_part(key: Key, fill: Fill, part: Path) -> Iterator[Step]:
    """Make the cache in the folder `part`, then move it into place."""
    folder = key.folder
    try:
        with writing(f"the image cache {folder}"):
            yield from fill(part)
            for file in part.iterdir():
                with file.open("rb") as written:
                    os.fsync(written.fileno())
            discard(folder)  # of an earlier version, or of other images
            part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def is_built(key: Key, expected: str) -> Generator[Step, None, bool]:
    """Whether there is a whole cache of the expected contents."""
    try:
        built = yield from opened(key)
    except DamagedError as damage:
        with writing(f"the image cache to {key.folder.parent} (HARNESS_CACHE)"):
            note = set_aside(key, damage)
        yield Step(0, 1, note)
        return False
    if built is not None and expected not in ("", built.contents):
        yield Step(0, 1, f"the image cache {key.folder} holds other images than the files do now; made again")
        return False
    return built is not None


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


def look_up_shapes(key: Key, listing: Listing) -> Generator[Step, None, np.ndarray]:
    """(n, 2): the heights and widths the images will have."""
    shapes = np.zeros((len(listing.paths), 2), dtype=np.int64)
    with images.workers() as pool:
        for begin in range(0, len(shapes), images.BLOCK):
            block = listing.paths[begin : begin + images.BLOCK]
            shapes[begin : begin + len(block)] = list(pool.map(partial(shape, key, listing.folder), block))
            yield Step(0, len(shapes))
    return shapes


def decode_all(key: Key, listing: Listing, part: Path) -> Iterator[Step]:
    """Decode every image into the folder `part`."""
    blueprint = Blueprint(key, listing, (yield from look_up_shapes(key, listing)))
    check_disk(key, blueprint.bytes)
    part.mkdir()
    with (part / "pixels").open("wb") as stream:
        decoded = yield from decode(blueprint, stream)
    save_index(blueprint, decoded, part)
    contents.remember(key.dataset, listing, decoded.files)


def decode(blueprint: Blueprint, stream: BinaryIO) -> Generator[Step, None, Decoded]:
    """Write the pixels of every image."""
    key, listing = blueprint.key, blueprint.listing
    paths, total = listing.paths, blueprint.bytes
    stream.truncate(total)
    if total and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(stream.fileno(), 0, total)  # a full disk is noticed now, not after hours

    def write_pixels(number: int) -> bytes:
        """Decode an image into its place; returns the checksum of its pixels."""
        pixels = images.read(listing.folder / paths[number], key.resize, key.aspect)
        if pixels.shape[:2] != tuple(blueprint.shapes[number]):
            raise images.BadImageError(f"its size differs from the one in its header: {pixels.shape[:2]}")
        content = pixels.tobytes()
        if os.pwrite(stream.fileno(), content, int(blueprint.offsets[number])) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return hashlib.sha256(content).digest()

    def take(number: int) -> tuple[bytes, bytes, str]:
        """The checksums of a file and of its pixels; and why it cannot be used, if it cannot."""
        file = contents.of(listing.folder / paths[number])  # decoding then finds it in memory
        try:
            return file, write_pixels(number), ""
        except images.BadImageError as error:
            return file, bytes(32), str(error)

    decoded = Decoded()
    with images.workers() as pool:
        for begin in range(0, len(paths), images.BLOCK):
            numbers = range(begin, min(begin + images.BLOCK, len(paths)))
            for number, (file, pixels, why) in zip(numbers, pool.map(take, numbers), strict=True):
                decoded.files.append(file)
                decoded.pixels.append(pixels)
                if why:
                    decoded.bad[paths[number]] = why
            yield Step(numbers.stop, len(paths))
    return decoded


def save_index(blueprint: Blueprint, decoded: Decoded, part: Path) -> None:
    key, listing = blueprint.key, blueprint.listing
    np.savez(
        part / "index.npz",
        offsets=blueprint.offsets[:-1],
        heights=blueprint.shapes[:, 0],
        widths=blueprint.shapes[:, 1],
        labels=np.array(listing.labels),
        queries=np.array(listing.queries, dtype=bool),
        readable=np.array([path not in decoded.bad for path in listing.paths]),
        checksums=np.frombuffer(b"".join(decoded.pixels), dtype=np.uint8).reshape(-1, 32),
    )
    about = {
        "schema": SCHEMA,
        **dataclasses.asdict(key),
        "classes": listing.classes,
        "train_classes": listing.train_classes,
        "paths": listing.paths,
        "bad": decoded.bad,
        "contents": contents.sha256(decoded.files),
        "copies": len(list(contents.copies(listing, decoded.files))),
        "index": digest((part / "index.npz").read_bytes()),
    }
    text = json.dumps({**about, "sha256": checksum(about)})
    (part / "about.json").write_text(text, encoding="utf-8")


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
