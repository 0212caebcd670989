"""What the disk says of a dataset's files, without opening them: sizes, time stamps, and which are one file."""

import os
import stat
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from harness.spec import UserError

THREADS = 16  # look-ups at once: on a network drive each one waits
CHUNK = 1024  # files per task: a task for each file would cost more than its look-up
SETTLED = 2 * 10**9  # ns after which another change gets another time stamp, however coarse those of the disk are


class Stamp(NamedTuple):
    """A regular file; links are followed."""

    size: int
    modified: int  # ns
    changed: int  # ns; also set when somebody sets `modified` back
    device: int
    inode: int
    links: int


def look_up(folder: Path, paths: Sequence[str]) -> Iterator[Stamp | None]:
    """The stamp of each file; None if it is missing. A UserError for a pipe, a folder and the like."""
    chunks = [paths[begin : begin + CHUNK] for begin in range(0, len(paths), CHUNK)]
    with ThreadPoolExecutor(THREADS) as pool:
        for chunk in pool.map(lambda names: [stamp(os.path.join(folder, name)) for name in names], chunks):
            yield from chunk


def stamp(file: str | Path) -> Stamp | None:
    try:
        found = os.stat(file)
    except (OSError, ValueError):  # ValueError: no path, as if it held a NUL byte
        return None
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{file}: is {kind(found.st_mode)}, not a file; remove it, or take it off the list")
    return Stamp(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_dev, found.st_ino, found.st_nlink)


def is_settled(found: Stamp | None) -> bool:
    """Whether the stamp would tell of any further change of the file."""
    return found is not None and time.time_ns() - max(found.modified, found.changed) > SETTLED


def kind(mode: int) -> str:
    names = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return names.get(stat.S_IFMT(mode), "a device")


def same_files(folder: Path, paths: Sequence[str], stamps: Sequence[Stamp | None]) -> Iterator[tuple[str, str]]:
    """Pairs of paths that lead to one file: spelled differently, or through a link."""
    first: dict[tuple[int, int], int] = {}
    for number, found in enumerate(stamps):
        if found is None:
            continue
        before = first.setdefault((found.device, found.inode), number)
        if before != number and is_one(folder / paths[before], folder / paths[number], found.links):
            yield paths[before], paths[number]


def is_one(file: Path, other: Path, links: int) -> bool:
    """Whether files of equal inodes are one. Some network drives give different files the same inode."""
    return links > 1 or os.path.realpath(file) == os.path.realpath(other)
