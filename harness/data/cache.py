"""Every image of a dataset decoded and resized once, in one memory-mapped file that all trials on a node share.

A cache is a folder named by dataset, fingerprint and size: `pixels` (uint8, image after image), `index.npz` (where each
image begins, its size, label, checksum and so on), `about.json` (whose cache it is, classes, paths, images that could
not be read, the digest of the files' contents) and `verified.json` (which `pixels` have been compared with their
checksums). A complete cache no longer needs the dataset's files. `cache_building.py` makes it.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import re
import shutil
import zipfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.data import images
from harness.data.stamps import is_settled, stamp
from harness.files import cache_home, part_of, write_whole
from harness.spec import UserError, finish, unknown
from harness.storage import DamagedError, digest

SCHEMA = 2
DAMAGED = ".damaged"  # how the name of a cache that was set aside ends
NAME = rf"-(\d+x\d+|short\d+)({re.escape(DAMAGED)})?$"  # how the names of caches end
# What is raised when a file is not what it should be. Other OSErrors, such as too many open files, damage nothing.
MALFORMED = (
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    EOFError,
    RecursionError,
    OverflowError,
    zipfile.BadZipFile,
)


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


class Step(NamedTuple):
    """How far a cache is: images built or verified. 0 while another process builds it, or sizes are looked up."""

    done: int
    total: int
    note: str = ""  # a line for the user


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
    checksums: np.ndarray  # (n, 32): the sha256 of each image's pixels
    classes: tuple[str, ...]
    train_classes: int
    paths: tuple[str, ...]
    bad: Mapping[str, str]  # path -> why it could not be read
    contents: str  # sha256 of the contents of all files
    copies: int  # test images whose file is identical to another one's


def home() -> Path:
    """The folder of this node's caches."""
    return cache_home()


def open_built(key: Key) -> Built | None:
    """The cache, memory-mapped; None if there is none. A DamagedError if it is not as it was built for this key."""
    return finish(opened(key))


def opened(key: Key) -> Generator[Step, None, Built | None]:
    """The same, step by step: comparing many pixels with their checksums takes a while, the first time."""
    about = read_about(key)
    if about is None:
        return None
    with reading(key):
        built = mapped(key, about)
    if not is_verified(key, about):
        yield from verify(key, built)
        note_verified(key, about)
    return built


def read_about(key: Key) -> dict[str, Any] | None:
    """What about.json says; None if there is no cache, or one of another version."""
    if not os.path.lexists(key.folder):
        return None
    with reading(key):
        about: dict[str, Any] = json.loads(content(key.folder / "about.json"))
        if about["schema"] != SCHEMA:
            return None
        if about["sha256"] != checksum(about):
            raise ValueError("about.json does not match its checksum")
        owner = {name: about[name] for name in dataclasses.asdict(key)}
    if owner != dataclasses.asdict(key):
        raise damaged(key, f"belongs to another dataset or size: {owner}")
    return about


def looks_whole(key: Key, contents: str = "") -> bool:
    """Whether there is a cache of these contents, or of any, whose pixels may still have to be verified."""
    try:
        about = read_about(key)
    except DamagedError:
        return False
    return about is not None and contents in ("", about["contents"])


def content(file: Path) -> bytes:
    if not file.is_file():  # a folder, or a pipe that would never end
        raise ValueError(f"{file.name} is missing or no file")
    return file.read_bytes()


def checksum(about: Mapping[str, Any]) -> str:
    """Of everything in about.json but the checksum itself."""
    rest = {name: value for name, value in about.items() if name != "sha256"}
    return digest(json.dumps(rest, sort_keys=True).encode())


def damaged(key: Key, reason: str) -> DamagedError:
    return DamagedError(f"the image cache {key.folder}", reason)


@contextlib.contextmanager
def reading(key: Key) -> Iterator[None]:
    """A DamagedError for files that are not what they should be; a UserError for those that cannot be read at all."""
    try:
        yield
    except MALFORMED as error:  # the text of an error may quote the file
        raise damaged(key, f"is damaged: {type(error).__name__}: {images.reason(error):.200}") from None
    except OSError as error:
        raise UserError(f"cannot read the image cache {key.folder}: {error.strerror or error}") from None


def mapped(key: Key, about: Mapping[str, Any]) -> Built:
    """The cache with its pixels memory-mapped; an error of any kind if its parts do not fit each other."""
    index = content(key.folder / "index.npz")
    if digest(index) != about["index"]:
        raise ValueError("index.npz does not match its checksum")
    with np.load(io.BytesIO(index), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    file = key.folder / "pixels"
    if not file.is_file():
        raise ValueError("pixels is missing or no file")
    size = file.stat().st_size
    # an empty file cannot be mapped; it is empty if no image could be read
    pixels = np.memmap(file, np.uint8, mode="r") if size else np.zeros(0, np.uint8)
    names = ("train_classes", "bad", "contents", "copies")
    built = Built(
        pixels,
        **arrays,
        classes=tuple(about["classes"]),
        paths=tuple(about["paths"]),
        **{name: about[name] for name in names},
    )
    check(built)
    return built


def check(built: Built) -> None:
    """A ValueError if the parts of a cache do not fit each other."""
    n = len(built.paths)
    arrays = (built.offsets, built.heights, built.widths, built.labels, built.readable, built.checksums)
    sizes = 3 * built.heights * built.widths
    fits = {
        "arrays": {len(array) for array in arrays} == {n} and len(built.queries) in (0, n),
        "labels": bool(((built.labels >= 0) & (built.labels < len(built.classes))).all()),
        "classes": 0 < built.train_classes < len(built.classes),
        "pixels": np.array_equal(built.offsets, sizes.cumsum() - sizes) and len(built.pixels) == sizes.sum(),
    }
    for part, fit in fits.items():
        if not fit:
            raise ValueError(f"its {part} do not fit the rest")


def verify(key: Key, built: Built) -> Generator[Step, None, None]:
    """A DamagedError unless the pixels of every image match their checksum."""
    sizes = 3 * built.heights * built.widths

    def matches(number: int) -> bool:
        begin = int(built.offsets[number])
        found = hashlib.sha256(built.pixels[begin : begin + int(sizes[number])].data).digest()
        return found == built.checksums[number].tobytes()

    numbers = built.readable.nonzero()[0].tolist()
    with images.workers() as pool:
        for begin in range(0, len(numbers), images.BLOCK):
            block = numbers[begin : begin + images.BLOCK]
            for number, match in zip(block, pool.map(matches, block), strict=True):
                if not match:
                    raise damaged(key, f"is damaged: the pixels of {built.paths[number]} do not match their checksum")
            yield Step(begin + len(block), len(built.paths))


def is_verified(key: Key, about: Mapping[str, Any]) -> bool:
    """Whether these very pixels have been compared with their checksums before."""
    try:
        return bool(json.loads(content(key.folder / "verified.json")) == verification(key, about))
    except (OSError, *MALFORMED):
        return False


def note_verified(key: Key, about: Mapping[str, Any]) -> None:
    """Note it, so that the next trial need not read all pixels; a folder that cannot be written gets no note."""
    if is_settled(stamp(key.folder / "pixels")):
        with contextlib.suppress(OSError):
            write_whole(key.folder / "verified.json", json.dumps(verification(key, about)).encode(), sync=False)


def verification(key: Key, about: Mapping[str, Any]) -> dict[str, Any]:
    """What the note on verified pixels says: which ones, and by whose checksums."""
    return {"about": about["sha256"], "pixels": list(stamp(key.folder / "pixels") or ())}


def set_aside(key: Key, damage: DamagedError) -> str:
    """Move a damaged cache away: the dataset's files may be gone. Returns the line that says so."""
    target = key.folder.with_name(key.folder.name + DAMAGED)
    discard(target)
    key.folder.rename(target)
    return f"{damage}; moved to {target.name}, and made again"


def discard(folder: Path) -> None:
    """Remove what is there, a folder or a file."""
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)
    else:
        folder.unlink(missing_ok=True)


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
    def prefixes(self) -> tuple[str, str, str, str]:
        """The names by which it can be removed: its own, also without .damaged, dataset-fingerprint, and dataset."""
        whole = self.name.removesuffix(DAMAGED)
        return self.name, whole, whole.rsplit("-", 1)[0], whole.rsplit("-", 2)[0]


def summaries() -> list[Summary]:
    """The caches on this node, damaged or not."""
    return [summary(folder) for folder in sorted(home().glob("*-*-*")) if is_cache(folder)]


def is_cache(folder: Path) -> bool:
    """Whether a folder has the name and at least one of the files of a cache. Others in this place are not ours."""
    files = ("about.json", "index.npz", "pixels")
    return re.search(NAME, folder.name) is not None and any((folder / file).exists() for file in files)


def summary(folder: Path) -> Summary:
    """What can be said of a cache without knowing whose it is; a damaged one has no images."""
    try:
        about = json.loads(content(folder / "about.json"))
        counts = len(about["paths"]), len(about["bad"])
    except (OSError, *MALFORMED):
        counts = 0, 0
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return Summary(folder.name, *counts, size)


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
            discard(part)
        except OSError as error:
            raise UserError(f"cannot remove the image cache {home() / name}: {error.strerror or error}") from None
    return list(removed.values())
