"""Writing files whole or not at all, and whether there is room for them."""

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.spec import UserError

PART = ".part"  # how the name of an unfinished file or folder ends
PROBE = 64 * 1024  # bytes that are written to find out whether a disk has room: a full disk takes an empty file


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
        discard(part)
        raise
    return part


def write_whole(target: Path, content: bytes, *, sync: bool = True) -> None:
    """Write a file in one step: a reader sees the old content or the new one, never half of it.

    With `sync` this also holds after a power failure. A link stays a link. A device or a pipe, such as /dev/stdout, is
    written to as it is.
    """
    target = Path(os.path.realpath(target))
    if target.exists() and not target.is_file():
        target.write_bytes(content)
        return
    part = write_part(target, content, sync=sync)
    try:
        part.replace(target)
    finally:
        discard(part)


def discard(part: Path) -> None:
    """Remove an unfinished file. That this fails, on a disk that has turned read-only, hides no other error."""
    with contextlib.suppress(OSError):
        part.unlink(missing_ok=True)


def check_room(folder: Path, needed: int = PROBE) -> None:
    """An OSError unless the folder can be written and its disk has room for so many bytes. Writes real bytes."""
    try:
        write_part(folder / "probe", os.urandom(PROBE)).unlink()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise no_room(folder, needed) from None
    if shutil.disk_usage(folder).free < needed:
        raise no_room(folder, needed)


def cache_home() -> Path:
    """The folder of what can be made or downloaded again, on this machine."""
    if chosen := os.environ.get("HARNESS_CACHE"):
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "metric-loss-harness"


def no_room(folder: Path, needed: int) -> OSError:
    """Says what is needed and what is there."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    disk = os.statvfs(existing)
    free = f"{megabytes(disk.f_bavail * disk.f_frsize)} free"
    if disk.f_files and not disk.f_favail:
        free += ", but no inode for another file"
    return OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} (needed: about {megabytes(needed)}; {free})")


def megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
