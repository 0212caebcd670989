"""Every image of a dataset decoded and resized once, in one memory-mapped file that all trials on a node share.

A cache is a folder named by dataset, fingerprint and size: `pixels` (uint8, image after image), `index.npz` (where each
lies) and `about.json` (classes, paths, what could not be read). It is built under another name and moved into place
under a lock, so a killed build leaves nothing that looks whole. It needs the dataset's files no more.
"""

import errno
import json
import os
import shutil
import uuid
import zipfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from harness.data import images
from harness.data.listing import Listing
from harness.spec import UserError

SCHEMA = 1
SAMPLE = 64  # images whose heads tell how large the rest will be


@dataclass(frozen=True)
class Key:
    """What a cache is made of."""

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
    """A cache as it lies on disk: image i is `pixels[offsets[i]:]`, heights[i] x widths[i] x 3."""

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
    bad: dict[str, str]  # path -> why


def home() -> Path:
    """Where caches lie on this node."""
    if chosen := os.environ.get("HARNESS_CACHE"):
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "metric-loss-harness"


def open_built(key: Key) -> Built | None:
    """The cache if there is a whole one, mapped, not read."""
    folder = key.folder
    try:
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        if about["schema"] != SCHEMA:
            return None
        with np.load(folder / "index.npz", allow_pickle=False) as index:
            arrays = {name: index[name] for name in index.files}
        size = (folder / "pixels").stat().st_size
        # nothing at all can be mapped where no image can be read
        pixels = np.memmap(folder / "pixels", np.uint8, mode="r") if size else np.zeros(0, np.uint8)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):  # damaged is as good as none
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
    """Make the cache unless there is one: yields how many images are done; 0 while another process builds it, or
    while sizes are looked up."""
    folder = key.folder
    lock = lock_of(folder)
    while True:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=1)
            break
        except Timeout:
            yield 0
        except OSError as error:
            where = f"{folder.parent} (HARNESS_CACHE)"
            raise UserError(f"cannot write the image cache to {where}: {error.strerror or error}") from None
    try:
        if open_built(key) is None:
            for left in folder.parent.glob(f"{folder.name}.*.part"):  # of a build that was killed
                shutil.rmtree(left, ignore_errors=True)
            shapes = yield from measure(key, listing)
            yield from write(key, listing, shapes, part_of(folder))
    finally:
        lock.release()


def lock_of(folder: Path) -> FileLock:
    """A generator may be closed by another thread than the one that ran it, so the lock belongs to no thread."""
    return FileLock(folder.with_name(f"{folder.name}.lock"), thread_local=False)


def part_of(folder: Path) -> Path:
    """A new name for what is not whole yet, or no more."""
    return folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:8]}.part")


def measure(key: Key, listing: Listing) -> Generator[int, None, np.ndarray]:
    """(n, 2): heights and widths the images will have."""
    shapes = np.zeros((len(listing.paths), 2), dtype=np.int64)
    with images.workers() as pool:
        for begin in range(0, len(shapes), images.BLOCK):
            some = listing.paths[begin : begin + images.BLOCK]
            shapes[begin : begin + len(some)] = list(pool.map(partial(shape, key, listing.folder), some))
            yield 0
    return shapes


def write(key: Key, listing: Listing, shapes: np.ndarray, part: Path) -> Iterator[int]:
    """Decode every image into `part` and move it into place."""
    paths = listing.paths
    offsets = np.concatenate([[0], 3 * shapes.prod(axis=1).cumsum()])
    total = int(offsets[-1])
    check_disk(key, total)
    bad: dict[str, str] = {}
    try:
        part.mkdir()
        with (part / "pixels").open("wb") as stream, images.workers() as pool:
            stream.truncate(total)
            if total and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(stream.fileno(), 0, total)  # no disk left is told now, not later

            def work(number: int) -> str | None:
                """Why the image cannot be used, or None once its pixels are written."""
                try:
                    pixels = images.read(listing.folder / paths[number], key.resize, key.aspect)
                except images.BadImageError as error:
                    return str(error)
                if pixels.shape[:2] != tuple(shapes[number]):
                    return f"its size is not what its head says: {pixels.shape[:2]}"
                if os.pwrite(stream.fileno(), pixels.tobytes(), int(offsets[number])) != pixels.size:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return None

            for begin in range(0, len(paths), images.BLOCK):
                numbers = range(begin, min(begin + images.BLOCK, len(paths)))
                found = zip(numbers, pool.map(work, numbers), strict=True)
                bad |= {paths[number]: why for number, why in found if why}
                yield numbers.stop
        save_index(part, key, listing, offsets[:-1], shapes, bad)
        for file in part.iterdir():
            with file.open("rb") as written:
                os.fsync(written.fileno())
        if key.folder.exists():  # of an earlier version, or not whole
            shutil.rmtree(key.folder)
        part.rename(key.folder)
    except OSError as error:
        raise UserError(f"cannot write the image cache {key.folder}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def save_index(
    part: Path, key: Key, listing: Listing, offsets: np.ndarray, shapes: np.ndarray, bad: dict[str, str]
) -> None:
    queries = np.array(listing.queries, dtype=bool)
    readable = np.array([path not in bad for path in listing.paths])
    np.savez(
        part / "index.npz",
        offsets=offsets,
        heights=shapes[:, 0],
        widths=shapes[:, 1],
        labels=np.array(listing.labels),
        queries=queries,
        readable=readable,
    )
    about = {
        **{"schema": SCHEMA, "dataset": key.dataset, "fingerprint": key.fingerprint, "resize": key.resize},
        **{"aspect": key.aspect, "classes": listing.classes, "train_classes": listing.train_classes},
        **{"paths": listing.paths, "bad": bad},
    }
    (part / "about.json").write_text(json.dumps(about), encoding="utf-8")


def shape(key: Key, folder: Path, path: str) -> tuple[int, int]:
    """Height and width an image will have; (0, 0) where it cannot be read."""
    if key.aspect == "square":
        return key.resize, key.resize
    try:
        height, width = images.size(folder / path)
    except images.BadImageError:
        return 0, 0
    return images.resized(width, height, key.resize, key.aspect)


def estimate(key: Key, listing: Listing) -> int:
    """Bytes the cache will need, from the heads of a few images spread over the dataset."""
    step = max(1, len(listing.paths) // SAMPLE)
    few = [shape(key, listing.folder, path) for path in listing.paths[::step]]
    return round(sum(3 * height * width for height, width in few) / len(few) * len(listing.paths))


def check_disk(key: Key, needed: int) -> None:
    """A UserError where the disk cannot hold it, even without what killed builds left behind."""
    sweep()
    place = home()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed > free:
        raise UserError(
            f"{key.dataset}: the image cache needs {gigabytes(needed)}, {home()} has {gigabytes(free)} free; "
            "name another place with HARNESS_CACHE, or remove old ones: harness data cache ls"
        )


def sweep() -> None:
    """Remove the parts of caches that nobody builds any more; without this, no command would show them."""
    for part in home().glob("*.part"):
        with suppress(Timeout, OSError), lock_of(part.with_name(part.name.rsplit(".", 2)[0])).acquire(timeout=0):
            shutil.rmtree(part, ignore_errors=True)


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


@dataclass(frozen=True)
class Entry:
    """A line of `harness data cache ls`."""

    name: str
    images: int
    bad: int
    bytes: int


def entries() -> list[Entry]:
    """The caches on this node."""
    found = []
    for file in sorted(home().glob("*/about.json")):
        if not file.parent.name.endswith(".part"):
            try:
                about: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            except json.JSONDecodeError:
                about = {}
            size = sum(one.stat().st_size for one in file.parent.iterdir())
            found.append(Entry(file.parent.name, len(about.get("paths", ())), len(about.get("bad", ())), size))
    return found


def remove(names: Sequence[str]) -> list[Entry]:
    """Remove caches by name or by the beginning of one: dataset, or dataset-fingerprint. A UserError where there is
    none. Locks stay: another process may wait for one."""
    there = entries()
    gone: dict[str, Entry] = {}
    for name in names:
        chosen = [one for one in there if name in (one.name, *(one.name.rsplit("-", cut)[0] for cut in (1, 2)))]
        if not chosen:
            known = ", ".join(one.name for one in there) or "none"
            raise UserError(f"no image cache named {name!r} in {home()}; there are: {known}")
        gone |= {one.name: one for one in chosen}
    for name in gone:
        part = part_of(home() / name)
        try:
            (home() / name).rename(part)  # in one step: what is half removed must not look whole
            shutil.rmtree(part)
        except OSError as error:
            raise UserError(f"cannot remove the image cache {home() / name}: {error.strerror or error}") from None
    return list(gone.values())
