"""Files: whole or not at all, and whether there is room for them."""

import os
from pathlib import Path

import pytest

from harness.files import PROBE, check_room, write_whole


def test_a_link_stays_a_link_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_whole(tmp_path / "link", b"content")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"content"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """As /dev/stdout and /dev/null are."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, b"content")
    assert os.read(reader, 100) == b"content"
    assert pipe.is_fifo()
    os.close(reader)


def test_an_error_of_the_write_is_told_also_where_nothing_can_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "unlink", read_only)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "file", b"content")


def test_room_is_looked_for_with_real_bytes_and_nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda number: written.append(os.fstat(number).st_size))
    check_room(tmp_path / "below")
    assert written == [PROBE]
    assert list((tmp_path / "below").iterdir()) == []
    with pytest.raises(
        OSError, match=r"No space left on device \(needed: about 1,000,000,000,000.0 MB; [0-9,.]+ MB free"
    ):
        check_room(tmp_path, 10**18)
