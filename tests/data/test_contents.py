"""Digests of files: of every file once, and again after it has changed."""

import os
from hashlib import sha256
from pathlib import Path

import pytest

from harness.data import contents, stamps
from harness.data.listing import Listing
from tests.data.factories import noise, write_text

SIZES = ((4, 4),) * 8


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read."""
    names: list[str] = []
    real = contents.of
    monkeypatch.setattr(contents, "of", lambda file: names.append(file.name) or real(file))
    monkeypatch.setattr(stamps, "SETTLED", 0)
    return names


def again(files: Listing) -> Listing:
    """The same files, looked up anew."""
    return Listing(files.folder, files.paths, files.labels, files.classes, files.train_classes)


def test_the_digest_is_that_of_all_digests_in_the_order_of_the_list(things: Listing) -> None:
    (things.folder / "003.png").unlink()
    digests = contents.read("things", things)
    files = [things.folder / path for path in things.paths]
    assert list(digests) == [sha256(file.read_bytes()).digest() if file.exists() else bytes(32) for file in files]
    assert contents.sha256(digests) == sha256(b"".join(digests)).hexdigest()


def test_only_files_that_changed_are_read_again(things: Listing, read: list[str]) -> None:
    assert contents.known("things", things) is None
    before = contents.read("things", things)
    assert sorted(read) == sorted(things.paths)
    read.clear()
    assert contents.read("things", again(things)) == before == contents.known("things", again(things))
    assert read == []
    os.utime(things.folder / "001.png")
    write_text(things.folder / "002.png", "something else")
    assert contents.known("things", again(things)) is None
    after = contents.read("things", again(things))
    assert sorted(read) == ["001.png", "002.png"]
    assert [number for number in range(8) if before[number] != after[number]] == [2]


def test_a_copy_in_another_place_is_read_once(tmp_path: Path, read: list[str]) -> None:
    one, two = noise(tmp_path / "one", SIZES), noise(tmp_path / "two", SIZES)
    for _ in range(2):
        assert contents.read("things", again(one)) == contents.read("things", again(two))
    assert len(read) == 16


def test_what_could_not_be_read_is_tried_again(things: Listing, read: list[str]) -> None:
    (things.folder / "003.png").unlink()
    contents.read("things", things)
    read.clear()
    contents.read("things", again(things))
    assert read == ["003.png"]


def test_a_file_that_changed_a_moment_ago_is_read_again(
    things: Listing, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may change once more within the resolution of the disk's time stamps."""
    monkeypatch.setattr(stamps, "SETTLED", 10**12)
    contents.read("things", things)
    read.clear()
    contents.read("things", again(things))
    assert len(read) == 8


def test_whoever_waits_for_much_to_be_read_is_told(
    things: Listing, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    contents.read("things", things, said.append)
    assert said == []
    monkeypatch.setattr(contents, "MUCH", 1)
    os.utime(things.folder / "001.png")
    contents.read("things", again(things), said.append)
    (line,) = said
    assert line.startswith("things: 1 images are read once, ")


def test_digests_that_cannot_be_noted_are_read_again(
    things: Listing, read: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_text(tmp_path / "file", "no folder")
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "file"))
    assert contents.read("things", things) == contents.read("things", again(things))
    assert len(read) == 16
