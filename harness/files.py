"""Writing files whole or not at all."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.spec import UserError

PART = ".part"  # how the name of an unfinished file or folder ends


@contextmanager
def writing(what: object) -> Iterator[None]:
    """Turn an OSError into a UserError: a full disk or a missing permission is for the user to solve."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {what}: {error.strerror or error}") from None


def part_of(target: Path) -> Path:
    """A new name beside the target for what is not finished yet; every writer gets its own."""
    return target.with_name(f"{target.name}.{uuid.uuid4().hex[:8]}{PART}")


def write_part(target: Path, content: bytes, *, sync: bool = True) -> Path:
    """Write the content to a temporary file beside the target and return that file; its folder is made if needed."""
    part = part_of(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as stream:
            stream.write(content)
            if sync:
                stream.flush()
                os.fsync(stream.fileno())
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return part


def write_whole(target: Path, content: bytes, *, sync: bool = True) -> None:
    """Write a file in one step: a reader sees the old content or the new one, never half of it.

    With `sync` this also holds after a power failure.
    """
    part = write_part(target, content, sync=sync)
    try:
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
