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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from harness.files import PART, write_whole
from harness.spec import UserError


class Storage:
    """Files by name, in a folder or an object store."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        try:
            self.files, root = fsspec.core.url_to_fs(uri)
        except (ImportError, ValueError) as error:  # s3:// without s3fs, an unknown scheme
            raise UserError(f"--storage {uri}: {error}") from None
        self.root = root.rstrip("/")

    @property
    def local(self) -> bool:
        return isinstance(self.files, LocalFileSystem)

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def prepare(self) -> None:
        """Raise a UserError now if the storage cannot be written."""
        name = f"probe-{uuid.uuid4().hex}"
        try:
            self.write(name, b"")
            self.remove(name)
        except Exception as error:  # every file system raises its own kind
            raise UserError(f"cannot write to --storage {self.uri}: {error}") from None

    def write(self, name: str, content: bytes, *, sync: bool = True) -> None:
        """Write a file in one step: a reader never sees half of it."""
        if self.local:
            write_whole(Path(self.path(name)), content, sync=sync)
        else:  # an object store replaces an object in one step
            self.files.pipe_file(self.path(name), content)

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is no such file."""
        try:
            content: bytes = self.files.cat_file(self.path(name))
        except FileNotFoundError:
            return None
        return content

    def read_artifact(self, entry: Mapping[str, str]) -> bytes | None:
        """The content of a file that a result refers to; None if it is missing or has changed since."""
        content = self.read(entry["path"]) if entry else None
        return content if content is not None and artifact(entry["path"], content) == dict(entry) else None

    def exists(self, name: str) -> bool:
        return bool(self.files.exists(self.path(name)))

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.files.rm_file(self.path(name))

    def remove_folder(self, name: str) -> None:
        """Remove a folder that is no longer needed.

        A worker that is being stopped may still write to it; the next run removes what then remains.
        """
        with contextlib.suppress(OSError):
            self.files.rm(self.path(name), recursive=True)

    def names(self, folder: str, *, parts: bool = False) -> list[str]:
        """The names of the files in a folder; with `parts`, those of the unfinished files that killed writers left."""
        self.files.invalidate_cache()  # fsspec caches the listings of an object store
        try:
            paths = self.files.ls(self.path(folder), detail=False)
        except FileNotFoundError:
            return []
        names = (str(path).rsplit("/", 1)[-1] for path in paths)
        return sorted(f"{folder}/{name}" for name in names if name.endswith(PART) == parts)

    def write_json(self, name: str, data: Mapping[str, Any]) -> None:
        """Write a heartbeat or a plan. These are written often and may be lost, so they are not synced to disk."""
        self.write(name, json.dumps(data).encode(), sync=False)

    def read_json(self, name: str) -> dict[str, Any] | None:
        """The object in a JSON file; None if the file is missing or holds something else."""
        content = self.read(name)
        try:
            data = json.loads(content) if content else None
        except ValueError:
            return None
        return data if isinstance(data, dict) else None

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Let one process at a time in, if the storage is a folder.

        An object store has no locks: two processes may do the same work there, with the same outcome.
        """
        if not self.local:
            yield
            return
        from filelock import FileLock

        file = Path(self.path(f"{name}.lock"))
        file.parent.mkdir(parents=True, exist_ok=True)
        # The lock is held inside a generator, which another thread than the one that started it may close.
        with FileLock(file, thread_local=False):
            yield


def checkpoint(id: str) -> str:
    return f"checkpoints/{id}.pt"


def embeddings(id: str) -> str:
    return f"embeddings/{id}.safetensors"


def weights(id: str) -> str:
    return f"weights/{id}.safetensors"


def heartbeat(id: str) -> str:
    return f"running/{id}.json"


def artifact(name: str, content: bytes) -> dict[str, str]:
    """How a result refers to a file of the storage."""
    return {"path": name, "sha256": hashlib.sha256(content).hexdigest()}


def alive(process: Mapping[str, Any]) -> bool:
    """Whether a process, given by node and pid, is running. On another node this cannot be checked: assume it is."""
    if process["node"] != platform.node():
        return True
    try:
        os.kill(process["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it runs, as another user
        return True
    return True


def open_storage(uri: str | None, default: Path) -> Storage:
    """What --storage names, or the folder that is the default."""
    if uri is None:
        return Storage(str(default.absolute()))
    return Storage(uri if "://" in uri else str(Path(uri).absolute()))
