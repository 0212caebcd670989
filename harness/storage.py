"""What trials share while they run and after: checkpoints, embeddings, weights, signs of life.

A folder or any fsspec URI (s3://, gs://, file://) that every node sees. Results are not here: they are the store's,
written by the driver alone.
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

from harness.spec import UserError


class Storage:
    def __init__(self, uri: str) -> None:
        self.uri = uri
        try:
            self.files, root = fsspec.core.url_to_fs(uri)
        except (ImportError, ValueError) as error:  # s3:// without s3fs, an unknown scheme
            raise UserError(f"--storage {uri}: {error}") from None
        self.root = root.rstrip("/")

    def prepare(self) -> None:
        """A UserError now where it cannot be written."""
        name = f"probe-{uuid.uuid4().hex}"
        try:
            self.write(name, b"")
            self.remove(name)
        except Exception as error:  # every file system has its own
            raise UserError(f"cannot write to --storage {self.uri}: {error}") from None

    def read_artifact(self, entry: Mapping[str, str]) -> bytes | None:
        """A file a result refers to, if it is there and still the one the result was made with."""
        content = self.read(entry["path"]) if entry else None
        return content if content is not None and artifact(entry["path"], content) == dict(entry) else None

    @property
    def local(self) -> bool:
        return isinstance(self.files, LocalFileSystem)

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def write(self, name: str, content: bytes) -> None:
        """All of it or nothing: a reader never sees half a file."""
        target = self.path(name)
        if not self.local:  # an object store's put is whole by itself
            self.files.pipe_file(target, content)
            return
        part = Path(f"{target}.{uuid.uuid4().hex}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_bytes(content)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)

    def read(self, name: str) -> bytes | None:
        try:
            content: bytes = self.files.cat_file(self.path(name))
        except FileNotFoundError:
            return None
        return content

    def exists(self, name: str) -> bool:
        return bool(self.files.exists(self.path(name)))

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.files.rm_file(self.path(name))

    def remove_folder(self, name: str) -> None:
        """Of what nobody needs any more. A worker that is being stopped may still write there: what stays then is swept
        up by the next run."""
        with contextlib.suppress(OSError):
            self.files.rm(self.path(name), recursive=True)

    def names(self, folder: str, *, parts: bool = False) -> list[str]:
        """Files in a folder, as names under the root; or, with `parts`, what a killed writer left of some."""
        self.files.invalidate_cache()  # an object store's listing is cached
        try:
            found = self.files.ls(self.path(folder), detail=False)
        except FileNotFoundError:
            return []
        names = (str(one).rsplit("/", 1)[-1] for one in found)
        return sorted(f"{folder}/{name}" for name in names if name.endswith(".part") == parts)

    def write_json(self, name: str, data: Mapping[str, Any]) -> None:
        self.write(name, json.dumps(data).encode())

    def read_json(self, name: str) -> dict[str, Any] | None:
        """None also for a file that is being removed or is not JSON: signs of life may be missed, never trusted."""
        content = self.read(name)
        try:
            found = json.loads(content) if content else None
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """One at a time where the storage is a folder. An object store has no locks: work may then be done twice,
        with the same outcome."""
        if not self.local:
            yield
            return
        from filelock import FileLock

        file = Path(self.path(f"{name}.lock"))
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file):
            yield


def checkpoint(id: str) -> str:
    return f"checkpoints/{id}.pt"


def embeddings(id: str) -> str:
    return f"embeddings/{id}.safetensors"


def weights(id: str) -> str:
    return f"weights/{id}.safetensors"


def sign_of_life(id: str) -> str:
    return f"running/{id}.json"


def artifact(name: str, content: bytes) -> dict[str, str]:
    """How a result refers to a file of the storage."""
    return {"path": name, "sha256": hashlib.sha256(content).hexdigest()}


def alive(process: Mapping[str, Any]) -> bool:
    """Whether a process that left its node and pid still runs; of another machine's we cannot tell, and believe it."""
    if process["node"] != platform.node():
        return True
    try:
        os.kill(process["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def open_storage(uri: str | None, default: Path) -> Storage:
    """What --storage names, or the folder that is the default."""
    if uri is None:
        return Storage(str(default.absolute()))
    return Storage(uri if "://" in uri else str(Path(uri).absolute()))
