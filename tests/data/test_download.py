"""Downloads from a local server that misbehaves in the ways servers do."""

import hashlib
import shutil
import socket
import struct
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from harness.data import download
from harness.data.download import Archive, fetch
from harness.spec import UserError

CONTENT = bytes(range(256)) * 40


class Site(ThreadingHTTPServer):
    """Serves CONTENT at every path, with ranges, and does wrong what it is told to."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.etag: str | None = '"1"'
        self.ranges = True
        self.length = True  # whether it says Content-Length
        self.statuses: list[int] = []  # of the next answers
        self.fault = ""  # how a connection ends early: short, reset, stall, chunked
        self.faults = 0  # how many connections do
        self.piece = 3000  # bytes such a connection gives
        self.requested: list[str | None] = []  # the Range of each request
        self.released = threading.Event()  # ends what stalls

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/files/birds.tgz?download=1"

    def archive(self, kind: str = "sha256") -> Archive:
        return Archive(self.url, f"{kind}:{hashlib.new(kind, CONTENT).hexdigest()}" if kind else "")


class Handler(BaseHTTPRequestHandler):
    server: Site
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        site, requested = self.server, self.headers["Range"]
        site.requested.append(requested)
        if site.statuses:
            self.send_response(site.statuses.pop(0))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start, total = 0, len(site.content)
        if requested and site.ranges and self.headers["If-Range"] in (None, site.etag):
            start = int(requested.removeprefix("bytes=").removesuffix("-"))
            self.send_response(206 if start < total else 416)
            self.send_header(
                "Content-Range", f"bytes {start}-{total - 1}/{total}" if start < total else f"bytes */{total}"
            )
        else:
            self.send_response(200)
        body, failing = site.content[start:], site.faults > 0
        chunked = failing and site.fault == "chunked"
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
        elif site.length:
            self.send_header("Content-Length", str(len(body)))
        if site.etag:
            self.send_header("ETag", site.etag)
        self.end_headers()
        self.close_connection = True
        if not failing:
            self.wfile.write(body)
            return
        site.faults -= 1
        body = body[: site.piece]
        self.wfile.write(f"{len(body):x}\r\n".encode() + body + b"\r\n" if chunked else body)
        if site.fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        elif site.fault == "stall":
            site.released.wait()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(download, "PAUSES", (0.0, 0.0, 0.0))
    server = Site()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()
    thread.join()


def quiet(so_far: int, total: int | None) -> None:
    pass


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def begun(site: Site, folder: Path, size: int, archive: Archive | None = None) -> None:
    """Leaves a download that broke off after `size` bytes."""
    site.fault, site.faults, site.piece = "short", 1, size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download, "PAUSES", ())
        with pytest.raises(UserError):
            fetch(archive or site.archive(), folder, quiet)
    assert (folder / "birds.tgz.part").stat().st_size == size
    site.requested.clear()


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("kind", ["", "md5", "sha256"])
def test_a_file_comes_whole_under_its_name_and_nothing_else_stays(site: Site, tmp_path: Path, kind: str) -> None:
    said: list[tuple[int, int | None]] = []
    file = fetch(site.archive(kind), tmp_path / "new" / "folder", lambda *words: said.append(words))
    assert file == tmp_path / "new" / "folder" / "birds.tgz"
    assert file.read_bytes() == CONTENT
    assert names(file.parent) == ["birds.tgz"]
    assert said[-1] == (len(CONTENT), len(CONTENT))
    assert [so_far for so_far, _ in said] == sorted(so_far for so_far, _ in said)


@pytest.mark.parametrize("fault", ["short", "reset", "stall", "chunked"])
def test_a_dropped_connection_goes_on_from_where_it_stopped(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    if fault == "stall":
        monkeypatch.setattr(download, "TIMEOUT", 0.5)
    site.fault, site.faults = fault, 1
    assert fetch(site.archive(), tmp_path, quiet).read_bytes() == CONTENT
    assert names(tmp_path) == ["birds.tgz"]
    if fault in ("short", "chunked"):
        assert site.requested == [None, "bytes=3000-"]
    else:  # bytes may be lost: the kernel may drop those of a reset connection, a slow machine those of a stalled one
        assert len(site.requested) >= 2


def test_a_server_that_always_drops_is_an_error_that_the_next_call_goes_on_from(site: Site, tmp_path: Path) -> None:
    site.fault, site.faults, site.piece = "short", 4, 1000
    with pytest.raises(UserError) as error:
        fetch(site.archive(), tmp_path, quiet)
    assert one_line(error) == (
        f"{site.url}: the connection ended at 4,000 of 10,240 bytes; "
        "rerun the same command to continue from 4,000 bytes"
    )
    assert site.requested == [None, "bytes=1000-", "bytes=2000-", "bytes=3000-"]
    assert (tmp_path / "birds.tgz.part").read_bytes() == CONTENT[:4000]
    said: list[int] = []
    file = fetch(site.archive(), tmp_path, lambda so_far, total: said.append(so_far))
    assert site.requested[4:] == ["bytes=4000-"]
    assert min(said) > 4000
    assert file.read_bytes() == CONTENT


def test_tries_that_bring_enough_do_not_use_up_the_patience(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "PROGRESS", 500)
    site.fault, site.faults, site.piece = "short", 100, 500
    assert fetch(site.archive(), tmp_path, quiet).read_bytes() == CONTENT
    assert len(site.requested) == 21


def test_pauses_grow(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(download, "PAUSES", (1.0, 3.0, 9.0))
    monkeypatch.setattr(time, "sleep", slept.append)
    site.statuses = [503, 500, 429]
    assert fetch(site.archive(), tmp_path, quiet).read_bytes() == CONTENT
    assert slept == [1.0, 3.0, 9.0]


def test_a_server_without_ranges_starts_over(site: Site, tmp_path: Path) -> None:
    begun(site, tmp_path, 5000)
    site.ranges = False
    assert fetch(site.archive(), tmp_path, quiet).read_bytes() == CONTENT
    assert site.requested == ["bytes=5000-"]


def test_a_file_that_changed_meanwhile_is_not_joined_to_its_old_half(site: Site, tmp_path: Path) -> None:
    begun(site, tmp_path, 5000, site.archive(""))
    site.content, site.etag = CONTENT[::-1], '"2"'
    assert fetch(site.archive(""), tmp_path, quiet).read_bytes() == CONTENT[::-1]
    assert site.requested == ["bytes=5000-"]


@pytest.mark.parametrize("etag", [None, 'W/"1"'])
def test_without_checksum_or_version_nothing_is_resumed(site: Site, tmp_path: Path, etag: str | None) -> None:
    site.etag = etag
    begun(site, tmp_path, 5000, site.archive(""))
    assert fetch(site.archive(""), tmp_path, quiet).read_bytes() == CONTENT
    assert site.requested == [None]


def test_a_checksum_is_enough_to_resume(site: Site, tmp_path: Path) -> None:
    site.etag = None
    begun(site, tmp_path, 5000)
    assert fetch(site.archive(), tmp_path, quiet).read_bytes() == CONTENT
    assert site.requested == ["bytes=5000-"]


def test_a_part_that_is_complete_is_finished_without_its_bytes(site: Site, tmp_path: Path) -> None:
    (tmp_path / "birds.tgz.part").write_bytes(CONTENT)
    assert fetch(site.archive(), tmp_path, quiet).read_bytes() == CONTENT
    assert site.requested == [f"bytes={len(CONTENT)}-"]
    assert names(tmp_path) == ["birds.tgz"]


def test_a_part_longer_than_the_file_starts_over(site: Site, tmp_path: Path) -> None:
    (tmp_path / "birds.tgz.part").write_bytes(CONTENT + b"more")
    assert fetch(site.archive(), tmp_path, quiet).read_bytes() == CONTENT
    assert site.requested == [f"bytes={len(CONTENT) + 4}-", None]


def test_a_wrong_checksum_removes_the_part_and_names_both(site: Site, tmp_path: Path) -> None:
    site.content = b"a page that says sorry"
    with pytest.raises(UserError) as error:
        fetch(site.archive("md5"), tmp_path, quiet)
    digest = hashlib.md5(site.content).hexdigest()
    assert all(word in one_line(error) for word in (site.url, site.archive("md5").checksum, f"md5:{digest}"))
    assert names(tmp_path) == []


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_refusal_is_told_at_once(site: Site, tmp_path: Path, status: int) -> None:
    site.statuses = [status]
    with pytest.raises(UserError) as error:
        fetch(site.archive(), tmp_path, quiet)
    assert one_line(error).startswith(f"{site.url}: HTTP {status} ")
    assert len(site.requested) == 1


def test_a_server_that_stays_broken_is_told_with_its_status(site: Site, tmp_path: Path) -> None:
    site.statuses = [503] * 9
    with pytest.raises(UserError, match=r"HTTP 503 .*; rerun the same command to try again"):
        fetch(site.archive(), tmp_path, quiet)
    assert len(site.requested) == 4


def test_nobody_listening_is_one_line(site: Site, tmp_path: Path) -> None:
    with socket.socket() as bound:  # the port stays taken, so that no other program can listen there
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(UserError) as error:
            fetch(Archive(f"http://127.0.0.1:{bound.getsockname()[1]}/birds.tgz"), tmp_path, quiet)
    assert "/birds.tgz: Connection refused; rerun the same command to try again" in one_line(error)


def test_a_length_that_is_not_told_is_none(site: Site, tmp_path: Path) -> None:
    site.length = False
    totals: set[int | None] = set()
    file = fetch(site.archive(), tmp_path, lambda so_far, total: totals.add(total))
    assert file.read_bytes() == CONTENT
    assert totals == {None}


def test_a_connection_left_open_after_the_last_byte_is_not_waited_for(site: Site, tmp_path: Path) -> None:
    site.fault, site.faults, site.piece = "stall", 1, len(CONTENT)
    assert fetch(site.archive(), tmp_path, quiet).read_bytes() == CONTENT
    assert site.requested == [None]  # who waits for its end meets the time limit and asks again


def test_a_disk_too_small_is_told_before_the_first_byte(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(site, tmp_path, 5000)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=5239))
    with pytest.raises(UserError) as error:
        fetch(site.archive(), tmp_path, quiet)
    assert "5,239 bytes free" in one_line(error)
    assert "needs 5,240 more" in one_line(error)
    assert (tmp_path / "birds.tgz.part").stat().st_size == 5000
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=5240))
    assert fetch(site.archive(), tmp_path, quiet).read_bytes() == CONTENT


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full is Linux's")
def test_a_disk_that_fills_up_is_told_and_not_tried_again(site: Site, tmp_path: Path) -> None:
    (tmp_path / "birds.tgz.part").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"cannot write .*birds.tgz.part: No space left on device"):
        fetch(site.archive(), tmp_path, quiet)
    assert len(site.requested) == 1


def test_a_folder_that_cannot_be_made_is_told(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write"):
        fetch(site.archive(), tmp_path / "file" / "folder", quiet)


def test_what_is_there_and_right_is_not_fetched_again(site: Site, tmp_path: Path) -> None:
    for kind in ("md5", ""):
        (tmp_path / "birds.tgz").write_bytes(CONTENT)
        assert fetch(site.archive(kind), tmp_path, quiet) == tmp_path / "birds.tgz"
    assert site.requested == []


def test_what_is_there_and_wrong_is_neither_used_nor_replaced(site: Site, tmp_path: Path) -> None:
    (tmp_path / "birds.tgz").write_bytes(b"mine")
    with pytest.raises(UserError, match="remove it"):
        fetch(site.archive(), tmp_path, quiet)
    assert (tmp_path / "birds.tgz").read_bytes() == b"mine"
    assert site.requested == []


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "data:,x", "s3://bucket/birds.tgz", "birds.tgz", "https://host/", "https://host/a/.."]
)
def test_only_web_addresses_of_files_are_allowed(url: str) -> None:
    with pytest.raises(UserError, match="https, http, ftp"):
        Archive(url)


@pytest.mark.parametrize("checksum", ["97ec", "md5:97ec", "sha1:" + "0" * 40, "md5:" + "G" * 32])
def test_a_checksum_says_its_kind(checksum: str) -> None:
    with pytest.raises(UserError, match="md5: or sha256:"):
        Archive("https://host/birds.tgz", checksum)
