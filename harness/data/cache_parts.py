"""An image cache in the storage, for nodes that have neither the images nor a cache of them.

`harness data push` writes it there in parts that are named by their checksums, and last a manifest that lists them. A
push that was interrupted goes on where it stopped, because parts that are there are not sent again.
"""

import dataclasses
import hashlib
import io
import json
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.data import cache, cache_building
from harness.data.cache import SCHEMA, Key, Step, gigabytes
from harness.data.listing import Listing, miscounts
from harness.spec import Dataset, StorageError, UserError
from harness.storage import DamagedError, Storage

FOLDER = "caches"
MANIFEST = ".manifest"  # how its name ends
FILES = ("about.json", "index.npz", "pixels")
PART_BYTES = 32 * 2**20
AT_ONCE = 4  # parts on their way at the same time


@dataclass(frozen=True)
class Manifest:
    """Which parts make up a cache in the storage."""

    key: Key
    contents: str  # sha256 of the contents of the images' files
    images: int
    parts: Mapping[str, Sequence[str]]  # file -> the sha256 of each of its parts
    sizes: Mapping[str, int]  # file -> bytes

    @property
    def bytes(self) -> int:
        return sum(self.sizes.values())

    @property
    def name(self) -> str:
        return manifest_name(self.key)


class Part(NamedTuple):
    """A piece of a file of a cache."""

    file: str
    begin: int
    size: int


def manifest_name(key: Key) -> str:
    return f"{FOLDER}/{key.folder.name}{MANIFEST}"


def part_name(key: Key, checksum: str) -> str:
    return f"{FOLDER}/{key.folder.name}/{checksum}"


def owner(name: str) -> str:
    """Whose a manifest is: another version of caches is another owner."""
    return f"image cache {name}, version {SCHEMA}"


def pieces(sizes: Mapping[str, int]) -> list[Part]:
    """The parts of all files, in order."""
    return [
        Part(file, begin, min(PART_BYTES, size - begin))
        for file, size in sizes.items()
        for begin in range(0, size, PART_BYTES)
    ]


# --- pushing ---


class Sent(NamedTuple):
    """How far a push is, in bytes."""

    done: int
    total: int


def push(key: Key, storage: Storage) -> Generator[Sent, None, int]:
    """Put this node's cache into the storage, where it replaces one of other images. Returns how many of its bytes an
    earlier push had left there."""
    about = cache.read_about(key)
    assert about is not None, "the cache is built first"
    sizes = {file: (key.folder / file).stat().st_size for file in FILES}
    parts, total = pieces(sizes), sum(sizes.values())
    with sending(storage):
        existing = set(storage.names(f"{FOLDER}/{key.folder.name}"))

    def send(part: Part) -> str:
        with (key.folder / part.file).open("rb") as stream:
            content = os.pread(stream.fileno(), part.size, part.begin)
        name = part_name(key, hashlib.sha256(content).hexdigest())
        if name not in existing:
            storage.write(name, content)
        return name

    checksums: dict[str, list[str]] = {file: [] for file in FILES}
    done = before = 0
    with sending(storage), closing_pool() as pool:
        for part, name in zip(parts, pool.map(send, parts), strict=True):
            checksums[part.file].append(name.rsplit("/", 1)[-1])
            done += part.size
            before += part.size if name in existing else 0
            yield Sent(done, total)
        manifest = Manifest(key, about["contents"], len(about["paths"]), checksums, sizes)
        storage.write_sealed(manifest.name, owner(key.folder.name), json.dumps(dataclasses.asdict(manifest)).encode())
    for name in existing - {part_name(key, checksum) for names in checksums.values() for checksum in names}:
        storage.remove(name)
    return before


@contextmanager
def closing_pool() -> Iterator[ThreadPoolExecutor]:
    """Threads that begin nothing more when the work is given up."""
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def sending(storage: Storage) -> Iterator[None]:
    """A UserError for a folder that cannot be written; an object store's own already is one."""
    try:
        yield
    except StorageError as error:
        raise StorageError(f"{error}; rerun the same command to continue") from None
    except OSError as error:
        reason = error.strerror or error
        raise UserError(
            f"cannot write to --storage {storage.title}: {reason}; rerun the same command to continue"
        ) from None


# --- taking ---


def find(key: Key, storage: Storage) -> Manifest | None:
    """What the storage has of a cache; None if it has none."""
    return read_manifest(storage, manifest_name(key))


def read_manifest(storage: Storage, name: str) -> Manifest | None:
    """A manifest; a UserError if it is damaged or of another version."""
    try:
        with fetching(storage):
            content = storage.read_sealed(name, owner(Path(name).name.removesuffix(MANIFEST)))
    except DamagedError as damage:
        raise UserError(again(storage, damage)) from None
    if content is None:
        return None
    data: dict[str, Any] = json.loads(content)
    return Manifest(**{**data, "key": Key(**data["key"])})


def again(storage: Storage, damage: DamagedError) -> str:
    return f"--storage {storage.title}: {damage}; push it again: harness data push"


@contextmanager
def fetching(storage: Storage) -> Iterator[None]:
    """A UserError for a folder that cannot be read; an object store's own already is one."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot read --storage {storage.title}: {error.strerror or error}") from None


def take(manifest: Manifest, storage: Storage, expected: str = "") -> Iterator[Step]:
    """Copy a cache from the storage to this node, unless there is one of the expected contents."""
    key = manifest.key
    if expected not in ("", manifest.contents):
        raise UserError(
            f"{key.dataset}: --storage {storage.title} has other images (contents {manifest.contents[:12]}, planned "
            f"{expected[:12]}); push them again: harness data push"
        )
    yield Step(0, 1, f"{key.dataset}: takes its images from the storage, {gigabytes(manifest.bytes)}")
    yield from cache_building.make(key, partial(copy, manifest, storage), manifest.images, expected)


def copy(manifest: Manifest, storage: Storage, folder: Path) -> Iterator[Step]:
    """Copy all files into a folder, each part verified."""
    cache_building.check_disk(manifest.key, manifest.bytes)
    folder.mkdir()
    checksums = [checksum for file in manifest.sizes for checksum in manifest.parts[file]]
    parts = pieces(manifest.sizes)
    for file in FILES:
        with (folder / file).open("wb") as stream:
            stream.truncate(manifest.sizes[file])

    def fetch(part: Part, checksum: str) -> int:
        content = read_part(manifest.key, storage, checksum)
        with (folder / part.file).open("r+b") as stream:
            stream.seek(part.begin)
            stream.write(content)
        return part.size

    done = 0
    with closing_pool() as pool:
        for size in pool.map(fetch, parts, checksums):
            done += size
            yield Step(max(1, manifest.images * done // manifest.bytes), manifest.images)


def read_part(key: Key, storage: Storage, checksum: str) -> bytes:
    """A part; a damaged one is moved aside, so that the next push sends it again."""
    name = part_name(key, checksum)
    with fetching(storage):
        content = storage.read(name)
    if content is None:
        raise UserError(again(storage, DamagedError(name, "is missing")))
    if hashlib.sha256(content).hexdigest() != checksum:
        damage = DamagedError(name, "is damaged: its content does not match its checksum")
        storage.move_aside(damage)
        raise UserError(again(storage, damage))
    return content


# --- what a dataset is, told by its cache ---


def identify(dataset: Dataset, storage: Storage) -> Dataset | None:
    """The dataset with fingerprint, counts and contents of its cache in the storage; None if there is none."""
    manifest = manifest_of(dataset, storage)
    if manifest is None:
        return None
    files = listing(manifest, storage)
    counts: dict[str, Any] = {name: count for name, count in files.counts().items() if not getattr(dataset, name)}
    for problem in miscounts(dataset, files):
        raise UserError(problem)
    return dataclasses.replace(dataset, fingerprint=manifest.key.fingerprint, sha256=manifest.contents, **counts)


def read_listing(dataset: Dataset, storage: Storage) -> Listing:
    """The images of a dataset whose cache is in the storage."""
    manifest = manifest_of(dataset, storage)
    if manifest is None:
        raise UserError(f"{dataset.name}: its images are neither here nor any more in --storage {storage.title}")
    return listing(manifest, storage)


def manifest_of(dataset: Dataset, storage: Storage) -> Manifest | None:
    """Of any of its sizes; a UserError if there are caches of different images."""
    manifests = manifests_of(dataset, storage)
    identities = {(manifest.key.fingerprint, manifest.contents) for manifest in manifests}
    if len(identities) > 1:
        listed = ", ".join(sorted({fingerprint for fingerprint, _ in identities}))
        raise UserError(
            f"{dataset.name}: --storage {storage.title} has caches of different images (fingerprints {listed}); "
            "name one set of them with --data-root"
        )
    return manifests[0] if manifests else None


def manifests_of(dataset: Dataset, storage: Storage) -> list[Manifest]:
    """Of all its sizes."""
    with fetching(storage):
        names = [name for name in storage.names(FOLDER) if name.startswith(f"{FOLDER}/{dataset.name}-")]
    found = [read_manifest(storage, name) for name in names if name.endswith(MANIFEST)]
    return [manifest for manifest in found if manifest and manifest.key.dataset == dataset.name]


def listing(manifest: Manifest, storage: Storage) -> Listing:
    """The images of a cache in the storage, without their pixels."""
    about, index = (
        b"".join(read_part(manifest.key, storage, checksum) for checksum in manifest.parts[file])
        for file in ("about.json", "index.npz")
    )
    described = json.loads(about)
    with np.load(io.BytesIO(index), allow_pickle=False) as archive:
        labels, queries = archive["labels"].tolist(), archive["queries"].tolist()
    return Listing(
        Path(manifest.key.folder.name),
        tuple(described["paths"]),
        tuple(labels),
        tuple(described["classes"]),
        described["train_classes"],
        tuple(queries),
    )
