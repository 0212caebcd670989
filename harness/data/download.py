"""Downloading a dataset's archives, with resumption, and unpacking them completely or not at all."""

import hashlib
import http.client
import re
import shutil
import stat
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from harness.files import PART, writing
from harness.spec import UserError

SCHEMES = ("https", "http", "ftp")
PAUSES = (1.0, 3.0, 9.0)  # seconds before the next try when a connection fails; after the last one it is an error
PROGRESS = 1 << 20  # bytes; a try that brings as many is no failure: long downloads drop many times
TIMEOUT = 60.0
BLOCK = 1 << 18

Report = Callable[[int, int | None], None]  # bytes so far, total bytes if known


class _DroppedError(Exception):
    """The connection failed or ended too early; another try may succeed."""


@dataclass(frozen=True)
class Archive:
    """One file of a dataset, as configs/datasets/<name>.toml lists it."""

    url: str
    checksum: str = ""  # "md5:..." or "sha256:...", or how it begins; empty: none is known

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in SCHEMES or self.name in ("", ".."):
            raise UserError(f"url={self.url}: must be a {', '.join(SCHEMES)} address that ends in a file name")
        if self.checksum and not re.fullmatch("md5:[0-9a-f]{32}|sha256:[0-9a-f]{8,64}", self.checksum):
            raise UserError(f"checksum={self.checksum} of {self.url}: must be md5: or sha256: and the hex digits")

    @property
    def name(self) -> str:
        return PurePosixPath(unquote(urlsplit(self.url).path)).name


def fetch(archive: Archive, folder: Path, report: Report) -> Path:
    """The archive in `folder`, downloaded unless it is there; continues from what an earlier call left."""
    target, part = folder / archive.name, folder / f"{archive.name}{PART}"
    if target.exists():
        checksum = _checksum(target, archive)
        if not checksum.startswith(archive.checksum):
            raise UserError(f"{target}: has {checksum}, not {archive.checksum}; remove it to download it again")
        return target
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    _download_with_retries(archive, part, report)
    checksum = _checksum(part, archive)
    _version_file(part).unlink(missing_ok=True)
    if not checksum.startswith(archive.checksum):
        part.unlink()
        raise UserError(f"{archive.url}: has {checksum}, not {archive.checksum}; the download was removed")
    with writing(target):
        part.replace(target)
    return target


def unpack(file: Path, folder: Path) -> None:
    """Unpack the archive into `folder`. Its top-level entries appear complete, at the end, and replace nothing."""
    staging = folder / f".{file.name}.unpacking"
    shutil.rmtree(staging, ignore_errors=True)  # a killed process left it
    try:
        staging.mkdir(parents=True)
        if file.name.lower().endswith(".zip"):
            _unzip(file, folder, staging)
        elif file.name.lower().endswith((".tgz", ".tar.gz", ".tar")):
            _untar(file, folder, staging)
        else:
            raise UserError(f"cannot unpack {file}: must be .tgz, .tar.gz, .tar or .zip")
        for entry in sorted(staging.iterdir()):
            entry.rename(folder / entry.name)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, OSError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(":")
        raise UserError(f"cannot unpack {file}: {reason}") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _download_with_retries(archive: Archive, part: Path, report: Report) -> None:
    """The whole file in `part`, over as many connections as it takes; a UserError when they keep failing."""
    failures = 0
    while True:
        before = _resumable(archive, part)
        try:
            return _download(archive, part, report)
        except _DroppedError as error:
            after = _resumable(archive, part)
            failures = 1 if after - before >= PROGRESS else failures + 1
            if failures > len(PAUSES):
                again = f"continue from {after:,} bytes" if after else "try again"
                raise UserError(f"{archive.url}: {error}; rerun the same command to {again}") from None
            time.sleep(PAUSES[failures - 1])


def _download(archive: Archive, part: Path, report: Report) -> None:
    """Append to `part` what one connection delivers; _DroppedError if that does not complete the file."""
    start = _resumable(archive, part)
    response = _request(archive, part, start)
    if response is None:
        return
    with response, writing(part):
        total = _number(response.headers.get("Content-Length"))
        if response.status == http.HTTPStatus.PARTIAL_CONTENT:
            span = response.headers.get("Content-Range", "")  # bytes 5-9/10
            if not span.startswith(f"bytes {start}-"):
                part.unlink()
                raise _DroppedError(f"the server sent {span or 'other bytes'}, not the bytes from {start:,}")
            total = _number(span.rpartition("/")[2])
        else:  # the whole file: the server does not support ranges, or the file has changed
            start = 0
            _save_version(part, response.headers)
        received = start
        with part.open("ab" if start else "wb") as out:
            free = shutil.disk_usage(part.parent).free
            if total is not None and total - start > free:
                raise UserError(f"{part.parent}: has {free:,} bytes free; {archive.url} needs {total - start:,} more")
            for block in _blocks(response):
                out.write(block)
                received += len(block)
                report(received, total)
    if total is not None and received != total:
        raise _DroppedError(f"the connection ended at {received:,} of {total:,} bytes")


def _request(archive: Archive, part: Path, start: int) -> Any:
    """The response to a request for the bytes from `start`; None if there are no more."""
    headers = {"User-Agent": "metric-loss-harness"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if _version_file(part).exists():
            headers["If-Range"] = _version_file(part).read_text()
    try:
        return urllib.request.urlopen(urllib.request.Request(archive.url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            if error.headers.get("Content-Range", "").rpartition("/")[2] == str(start):
                return None
            part.unlink()
            raise _DroppedError(f"the file is now shorter than {start:,} bytes") from None
        if error.code in (408, 429) or error.code >= 500:  # temporary errors of the server
            raise _DroppedError(f"HTTP {error.code} {error.reason}") from None
        raise UserError(f"{archive.url}: HTTP {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise _DroppedError(_words(error)) from None


def _blocks(response: Any) -> Iterator[bytes]:
    try:
        while block := response.read1(BLOCK):  # unlike read(), it returns what arrived before a failure
            yield block
    except (OSError, http.client.HTTPException) as error:
        raise _DroppedError(_words(error)) from None


def _words(error: BaseException) -> str:
    """What failed, without the number that the system gives it: Name or service not known."""
    cause = getattr(error, "reason", error)
    return getattr(cause, "strerror", None) or str(cause) or type(error).__name__


def _resumable(archive: Archive, part: Path) -> int:
    """How many bytes of an earlier download can be used: none if a change of the file since then would go unnoticed."""
    resumable = not archive.url.startswith("ftp:") and (archive.checksum or _version_file(part).exists())
    return part.stat().st_size if resumable and part.exists() else 0


def _version_file(part: Path) -> Path:
    """Beside a partial download, the version of the file it is a part of: an ETag or a date, for If-Range."""
    return part.with_name(f"{part.name}.version")


def _save_version(part: Path, headers: Any) -> None:
    etag = headers.get("ETag") or ""
    weak = not etag or etag.startswith("W/")  # a weak ETag does not promise equal bytes
    version = headers.get("Last-Modified") if weak else etag
    if version:
        _version_file(part).write_text(version)
    else:
        _version_file(part).unlink(missing_ok=True)


def _checksum(file: Path, archive: Archive) -> str:
    """The file's checksum, of the same kind as the archive's; empty if the archive has none."""
    kind = archive.checksum.partition(":")[0]
    if not kind:
        return ""
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, lambda: hashlib.new(kind, usedforsecurity=False))
    return f"{kind}:{digest.hexdigest()}"


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _unzip(file: Path, folder: Path, staging: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            _check_member(file, folder, member.filename, link=stat.S_ISLNK(member.external_attr >> 16))
            if member.flag_bits & 1:
                raise UserError(f"{file}: is encrypted; unpack it into {folder} with the password its owners give")
        archive.extractall(staging)


def _untar(file: Path, folder: Path, staging: Path) -> None:
    def check(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        _check_member(file, folder, member.name, link=member.issym())
        return tarfile.data_filter(member, path)

    with tarfile.open(file) as archive:
        archive.extractall(staging, filter=check)
        while archive.fileobj and archive.fileobj.read(BLOCK):  # gzip verifies its checksum at the very end
            pass


def _check_member(file: Path, folder: Path, name: str, *, link: bool) -> None:
    """A UserError for a member that would be written outside the folder, or over an existing file."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or link:
        raise UserError(f"{file}: contains {name!r}; links and paths out of the folder are refused")
    if path.parts and (folder / path.parts[0]).exists():
        raise UserError(f"{folder / path.parts[0]}: exists already; remove it to unpack {file.name}")
