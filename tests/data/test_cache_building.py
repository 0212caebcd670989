"""An image cache is built once whoever asks, and nothing broken is ever opened."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from harness.data import cache, cache_building, images
from harness.data.listing import Listing
from harness.spec import UserError
from tests.data.factories import ASPECTS, expected, key, left_over, made, picture

# A build in a process of its own: each decode is noted, and from the third on waits for the file `go`.
BUILD = """
import sys, time
from pathlib import Path
from harness.data import cache, cache_building, images
from harness.data.listing import Listing

folder, notes, go, aspect = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4]
paths = tuple(sorted(file.name for file in folder.iterdir()))
read = images.read

def slowly(file, *rest):
    with open(notes, "a") as stream:
        stream.write(f"{file.name}\\n")
    while not go.exists() and file.name not in paths[:2]:
        time.sleep(0.01)
    return read(file, *rest)

images.read = slowly
listing = Listing(folder, paths, tuple(range(len(paths))), paths, 4)
for done in cache_building.build(cache.Key("things", "f1", 16, aspect), listing):
    pass
"""


@pytest.mark.parametrize("aspect", ASPECTS)
def test_each_image_is_decoded_once_and_never_again(things: Listing, decoded: Counter[str], aspect: str) -> None:
    steps = list(cache_building.build(key(aspect), things))
    assert steps[-1] == (len(things.paths), len(things.paths), "")
    assert decoded == dict.fromkeys(things.paths, 1)
    assert not any(step.note for step in cache_building.build(key(aspect), things))
    assert decoded == dict.fromkeys(things.paths, 1)


def test_progress_counts_the_images_that_are_done(things: Listing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "BLOCK", 3)
    assert [step.done for step in cache_building.build(key(), things) if step.done] == [3, 6, 8]


def test_images_are_decoded_in_parallel(things: Listing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    read, two = images.read, threading.Barrier(2)

    def together(*arguments: Any) -> np.ndarray:
        two.wait(timeout=60)  # passes only when two are decoding
        return read(*arguments)

    monkeypatch.setattr(images, "read", together)
    made(key(), things)


def test_two_threads_that_build_at_the_same_time_decode_once(things: Listing, decoded: Counter[str]) -> None:
    start, seen = threading.Barrier(2), []

    def build() -> None:
        start.wait()
        seen.append(made(key(), things).pixels.tobytes())

    threads = [threading.Thread(target=build) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert decoded == dict.fromkeys(things.paths, 1)


class Other:
    """Another process that builds the same cache, and stops in the middle until it is told to go on."""

    def __init__(self, files: Listing, folder: Path, aspect: str) -> None:
        self.notes, self.go = folder / "notes", folder / "go"
        words = [sys.executable, "-c", BUILD, *map(str, (files.folder, self.notes, self.go, aspect))]
        self.process = subprocess.Popen(words, cwd=Path(__file__).parent.parent.parent)
        until(lambda: len(self.decoded) > 2)

    @property
    def decoded(self) -> list[str]:
        return self.notes.read_text().split() if self.notes.exists() else []


@pytest.fixture
def other(things: Listing, tmp_path: Path) -> Iterator[Callable[..., Other]]:
    started: list[Other] = []

    def start(aspect: str = "square") -> Other:
        started.append(Other(things, tmp_path, aspect))
        return started[-1]

    yield start
    for builder in started:
        builder.process.kill()
        builder.process.wait()


def until(true: Callable[[], bool], seconds: float = 30) -> None:
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit, "it never came"
        time.sleep(0.01)


def test_who_comes_second_waits_says_so_with_zeros_and_finds_it_built(
    things: Listing, other: Callable[..., Other], decoded: Counter[str]
) -> None:
    first = other()
    second = cache_building.build(key(), things)
    assert next(second) == (0, 8, "")
    assert cache.open_built(key()) is None
    first.go.touch()
    assert {step.note for step in second} == {""}
    assert first.process.wait(timeout=30) == 0
    assert Counter(first.decoded) == dict.fromkeys(things.paths, 1)
    assert not decoded
    assert cache.open_built(key()) is not None


@pytest.mark.parametrize("aspect", ASPECTS)
def test_a_killed_build_leaves_nothing_that_opens_and_the_next_one_clears_it_away(
    things: Listing, other: Callable[..., Other], home: Path, decoded: Counter[str], aspect: str
) -> None:
    first = other(aspect)
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    (part,) = home.glob("*.part")
    assert (part / "pixels").exists()
    assert cache.open_built(key(aspect)) is None
    assert cache.summaries() == []
    built = made(key(aspect), things)
    assert decoded == dict.fromkeys(things.paths, 1)
    assert left_over(home) == []
    np.testing.assert_array_equal(picture(built, 7), expected(things.folder / things.paths[7], aspect))


def test_a_build_that_is_closed_leaves_nothing_and_frees_its_lock(
    things: Listing, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "BLOCK", 2)
    lock = cache_building.lock_of(key().folder)  # referred to here: new versions of filelock release a lock that is not
    monkeypatch.setattr(cache_building, "lock_of", lambda folder: lock)
    building = cache_building.build(key(), things)
    while not next(building).done:
        pass
    assert len(list(home.glob("*.part"))) == 1
    closing = threading.Thread(target=building.close)  # type: ignore[attr-defined]  # as a worker that is torn down
    closing.start()
    closing.join()
    assert left_over(home) == []
    assert cache.open_built(key()) is None
    with FileLock(f"{key().folder}.lock").acquire(timeout=0):
        pass
    made(key(), things)


def test_a_cache_of_another_version_is_replaced(things: Listing, home: Path, decoded: Counter[str]) -> None:
    made(key(), things)
    file = key().folder / "about.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema": cache.SCHEMA - 1}))
    assert cache.open_built(key()) is None
    assert len(made(key(), things).pixels) == 8 * 16 * 16 * 3
    assert decoded == dict.fromkeys(things.paths, 2)
    assert [folder.name for folder in home.iterdir() if folder.is_dir() and "-" in folder.name] == [key().folder.name]


def test_a_cache_of_other_contents_than_those_expected_is_replaced(things: Listing, decoded: Counter[str]) -> None:
    before = made(key(), things)
    notes = [step.note for step in cache_building.build(key(), things, before.contents) if step.note]
    assert notes == []
    (things.folder / "002.png").write_bytes((things.folder / "001.png").read_bytes())
    notes = [step.note for step in cache_building.build(key(), things, "another digest") if step.note]
    assert notes == [f"the image cache {key().folder} holds other images than the files do now; made again"]
    after = cache.open_built(key())
    assert after is not None
    assert after.contents != before.contents
    assert decoded == dict.fromkeys(things.paths, 2)


def no_room(*_: Any) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("call", "fails"),
    [("pwrite", no_room), ("pwrite", lambda _, content, __: len(content) // 2), ("posix_fallocate", no_room)],
)
def test_a_disk_that_fills_up_is_a_users_error_and_nothing_stays(
    things: Listing, home: Path, monkeypatch: pytest.MonkeyPatch, call: str, fails: Callable[..., int]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        with pytest.raises(UserError, match=r"cannot write the image cache .*things-f1-16x16: No space left on device"):
            list(cache_building.build(key(), things))
    assert left_over(home) == []
    assert cache.open_built(key()) is None
    made(key(), things)


def test_a_place_that_cannot_be_written_is_named_with_its_variable(
    things: Listing, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(FileLock, "acquire", refuse)
        with pytest.raises(UserError, match=r"cannot write .*\.lock, the lock .* \(HARNESS_CACHE\): Permission denied"):
            list(cache_building.build(key(), things))
    shutil.rmtree(home)
    home.write_text("a file where a folder should be")
    with pytest.raises(UserError, match=r"cannot write .* to .*cache \(HARNESS_CACHE\): File exists"):
        list(cache_building.build(key(), things))
