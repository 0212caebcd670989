"""The files trials share: checkpoints, embeddings, weights, heartbeats.

A storage is a folder or an fsspec URI (s3://, gs://, file://) that every node sees. Results are not here: they are in
the store, which only the driver writes.
"""

import contextlib
import hashlib
import json
import os
import platform
import uuid
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from harness.files import PART, PROBE, check_room, write_whole
from harness.spec import StorageError, UserError, bounded, redacted

SEAL = b"harness sealed file 1"  # the first line of a file that names its owner and its checksum
DAMAGED = "damaged"  # the folder of files that were set aside
TEACHERS = "teachers"  # the folder of weights that students learn from
NO_BUCKET = "bucket does not exist"  # in what S3 and Google Cloud Storage say, where a missing file is no error
LONGEST_REASON = 300  # characters of what a library says
DAMAGED_KEPT = 5  # older ones are removed: they may be large


class DamagedError(Exception):
    """A stored file that must not be used: cut off, changed, or made for something else."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} {reason}")
        self.name = name


class Storage:
    """Files by name, in a folder or an object store."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.title = redacted(uri)  # for people to read: the URI may hold a password
        try:
            self.files, root = fsspec.core.url_to_fs(uri)
        except Exception as error:  # s3:// without s3fs, an unknown scheme; each library has its own kinds
            reason = redacted(" ".join(str(error).split()), uri=uri) or type(error).__name__
            raise UserError(f"--storage {self.title}: {bounded(reason, LONGEST_REASON)}") from None
        self.files.dircache.use_listings_cache = False  # or what other processes write would not be seen
        self.root = root.rstrip("/")

    @property
    def local(self) -> bool:
        return isinstance(self.files, LocalFileSystem)

    def path(self, name: str) -> str:
        if ".." in name.split("/"):  # a record from somewhere else may name any file
            raise UserError(f"{name!r} is not the name of a file in a storage: it must not contain ..")
        return f"{self.root}/{name}"

    @contextlib.contextmanager
    def asked(self, to: str) -> Iterator[None]:
        """Turn what an object store's library raises, after its own attempts to repeat a request, into a StorageError:
        each library has its own kinds. That a file is missing stays a FileNotFoundError."""
        try:
            yield
        except Exception as error:
            if self.local or (isinstance(error, FileNotFoundError) and NO_BUCKET not in str(error)):
                raise
            words = getattr(error, "strerror", None) or str(error) or type(error).__name__
            reason = redacted(" ".join(words.split()), uri=self.uri)
            raise StorageError(f"cannot {to} --storage {self.title}: {bounded(reason, LONGEST_REASON)}") from None

    def prepare(self, needed: int = PROBE) -> None:
        """Raise a UserError now if the storage cannot be written, or is a folder without room for so many bytes."""
        if not self.local:
            name = f"probe-{uuid.uuid4().hex}"
            self.write(name, os.urandom(PROBE))
            self.remove(name)
            return
        try:
            check_room(Path(self.root), needed)
        except OSError as error:
            reason = "it is a file" if Path(self.root).is_file() else error.strerror or error
            raise UserError(f"cannot write to --storage {self.title}: {reason}") from None

    def write(self, name: str, content: bytes, *, sync: bool = True) -> None:
        """Write a file in one step: a reader never sees half of it."""
        if self.local:
            write_whole(Path(self.path(name)), content, sync=sync)
            return
        with self.asked("write to"):  # an object store replaces an object in one step
            self.files.pipe_file(self.path(name), content)

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is no such file. A DamagedError if something else has its name."""
        path = self.path(name)
        if self.local and os.path.exists(path) and not os.path.isfile(path):  # a pipe would be waited for
            raise DamagedError(name, "is a folder" if os.path.isdir(path) else "is not a file")
        try:
            with self.asked("read from"):
                content: bytes = self.files.cat_file(path)
        except FileNotFoundError:
            return None
        return content

    def write_sealed(self, name: str, owner: str, content: bytes) -> dict[str, str]:
        """Write a file that is read back by `read_sealed`: with its owner and its checksum. Returns the reference to it
        for a record."""
        sealed = b"\n".join((SEAL, owner.encode(), digest(content).encode(), content))
        self.write(name, sealed)
        return {"path": name, "sha256": digest(sealed)}

    def read_sealed(self, name: str, owner: str, *older: str) -> bytes | None:
        """The content of a sealed file; None if there is no such file. A DamagedError if the content is not the one
        that was written for this owner. `older`: what earlier versions called it."""
        sealed = self.read(name)
        if sealed is None:
            return None
        seal, found, checksum, content = (*sealed.split(b"\n", 3), b"", b"", b"")[:4]
        if seal != SEAL:
            raise DamagedError(name, "is damaged, or of another version")
        if found not in [words.encode() for words in (owner, *older)]:
            raise DamagedError(name, f"belongs to {found[:80].decode(errors='replace')!a}, not to {owner!r}")
        if checksum != digest(content).encode():
            raise DamagedError(name, "is damaged: its content does not match its checksum")
        return content

    def write_artifact(self, kind: str, id: str, content: bytes) -> dict[str, str]:
        """Write a file that the result with this id refers to. Returns the reference.

        The checksum is part of the name: where two drivers train one trial and their bits differ, as on GPUs, neither
        overwrites the file that the other's record refers to.
        """
        checksum = digest(content)
        entry = {"path": f"{kind}/{id}-{checksum[:12]}.safetensors", "sha256": checksum}
        try:
            stored = self.read_artifact(entry)
        except DamagedError as damage:
            self.set_aside(damage)
            stored = None
        if stored is None:
            self.write(entry["path"], content)
        return entry

    def read_artifact(self, entry: Mapping[str, str]) -> bytes | None:
        """The content of a file that a result refers to; None if it is missing, a DamagedError if it has changed."""
        content = self.read(entry["path"]) if entry else None
        if content is not None and digest(content) != entry["sha256"]:
            raise DamagedError(entry["path"], "is damaged: its content does not match the checksum in the record")
        return content

    def set_aside(self, damage: DamagedError) -> str:
        """Move a damaged file away, to make it again. Returns the line that says so."""
        return f"{damage}; moved to {self.move_aside(damage)}, and made again"

    def move_aside(self, damage: DamagedError) -> str:
        """Move a damaged file to where a person can look at it. Returns its name there."""
        moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")  # sorts by age
        target = f"{DAMAGED}/{moment}-{damage.name.replace('/', '-')}"
        if self.local:  # an object store has no folders to make
            self.files.makedirs(self.path(DAMAGED), exist_ok=True)
        with (
            contextlib.suppress(FileNotFoundError),
            self.asked("write to"),
        ):  # another process has set it aside just now
            self.files.mv(self.path(damage.name), self.path(target))
        for name in self.names(DAMAGED)[:-DAMAGED_KEPT]:
            self.remove_folder(name)  # it may be one
        return target

    def exists(self, name: str) -> bool:
        try:
            with self.asked("read from"):
                self.files.info(self.path(name))  # `exists` of fsspec takes any error for a file that is missing
        except FileNotFoundError:
            return False
        return True

    def remove(self, name: str) -> None:
        """Remove a file that is no longer needed. On a storage that has turned read-only it stays: no error, because
        what is written there says so."""
        with contextlib.suppress(OSError, StorageError), self.asked("write to"):
            self.files.rm_file(self.path(name))

    def remove_all(self, names: Collection[str]) -> None:
        """Remove files that are no longer needed; an object store takes a thousand in a request."""
        if self.local:
            for name in names:
                self.remove(name)
        elif names:
            with contextlib.suppress(OSError, StorageError), self.asked("write to"):
                self.files.rm([self.path(name) for name in names])

    def remove_folder(self, name: str) -> None:
        """Remove a folder that is no longer needed.

        A worker that is being stopped may still write to it; the next run removes what then remains.
        """
        with contextlib.suppress(OSError, StorageError), self.asked("write to"):
            self.files.rm(self.path(name), recursive=True)

    def names(self, folder: str, *, parts: bool = False) -> list[str]:
        """The names of the files in a folder; with `parts`, those of the unfinished files that killed writers left."""
        names = (name_in(folder, path) for path in self._entries(folder, detail=False))
        return sorted(name for name in names if name.endswith(PART) == parts)

    def sizes(self, folder: str) -> dict[str, int]:
        """The bytes of the files in a folder, by the names of the files."""
        sizes = {
            name_in(folder, entry["name"]): int(entry["size"] or 0) for entry in self._entries(folder, detail=True)
        }
        return {name: sizes[name] for name in sorted(sizes) if not name.endswith(PART)}

    def _entries(self, folder: str, *, detail: bool) -> list[Any]:
        try:
            with self.asked("read from"):
                return list(self.files.ls(self.path(folder), detail=detail))
        except FileNotFoundError:
            return []

    def write_json(self, name: str, data: Mapping[str, Any]) -> None:
        """Write a heartbeat or a plan. These are written often and may be lost, so they are not synced to disk."""
        self.write(name, json.dumps(data).encode(), sync=False)

    def read_json(self, name: str) -> dict[str, Any] | None:
        """The object in a JSON file; None if the file is missing, cannot be read or holds something else."""
        try:
            content = self.read(name)
            data = json.loads(content) if content else None
        except (DamagedError, OSError, StorageError, ValueError, RecursionError):
            return None
        return data if isinstance(data, dict) else None

    @contextlib.contextmanager
    def lock(self, name: str, timeout: float = -1) -> Iterator[None]:
        """Let one process at a time in, if the storage is a folder. A filelock.Timeout after so many seconds.

        An object store has no locks: two processes may do the same work there, with the same outcome.
        """
        if not self.local:
            yield
            return
        from filelock import FileLock

        file = Path(self.path(f"{name}.lock"))
        file.parent.mkdir(parents=True, exist_ok=True)
        # The lock is held inside a generator, which another thread than the one that started it may close.
        with FileLock(file, timeout=timeout, thread_local=False):
            yield


def name_in(folder: str, path: str) -> str:
    """The name in the storage of what a listing of a folder calls by its path."""
    return f"{folder}/{path.rsplit('/', 1)[-1]}"


def checkpoint(id: str) -> str:
    return f"checkpoints/{id}.pt"


def teacher(id: str) -> str:
    """The weights of a trial that others learn from."""
    return f"{TEACHERS}/{id}.safetensors"


def heartbeat(id: str) -> str:
    return f"running/{id}.json"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def alive(node: str, pid: int) -> bool:
    """Whether a process is running. On another node this cannot be checked: assume it is."""
    if node != platform.node():
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it runs, as another user
        return True
    return True


def open_storage(uri: str | None, default: Path) -> Storage:
    """What --storage names, or the folder that is the default."""
    if uri is None:
        return Storage(str(default.absolute()))
    return Storage(uri if "://" in uri else str(Path(uri).absolute()))
