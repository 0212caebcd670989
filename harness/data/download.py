"""Fetching a dataset's archives, resumably, and unpacking them, all or nothing."""

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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from harness.spec import UserError

SCHEMES = ("https", "http", "ftp")
PAUSES = (1.0, 3.0, 9.0)  # seconds before another try when a connection fails; after the last it is an error
PROGRESS = 1 << 20  # bytes that make a try a success: on a bad line a long download may drop many times
TIMEOUT = 60.0
BLOCK = 1 << 18

Report = Callable[[int, int | None], None]  # bytes so far, total bytes if known


class _DroppedError(Exception):
    """The connection failed or ended too early: worth another try."""


@dataclass(frozen=True)
class Archive:
    """One file of a dataset, as configs/datasets/<name>.toml lists it."""

    url: str
    checksum: str = ""  # "md5:..." or "sha256:..."; empty: none is known

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in SCHEMES or self.name in ("", ".."):
            raise UserError(f"url {self.url!r}: allowed are {', '.join(SCHEMES)} addresses that end in a file name")
        if self.checksum and not re.fullmatch("md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", self.checksum):
            raise UserError(f"checksum {self.checksum!r} of {self.url}: allowed is md5: or sha256: and the hex digits")

    @property
    def name(self) -> str:
        return PurePosixPath(unquote(urlsplit(self.url).path)).name


def fetch(archive: Archive, folder: Path, report: Report) -> Path:
    """The archive in `folder`, downloaded unless it is there, going on from what an earlier call left."""
    target, part = folder / archive.name, folder / f"{archive.name}.part"
    if target.exists():
        if (found := _checksum(target, archive)) != archive.checksum:
            raise UserError(
                f"{target} has {found}, not {archive.checksum}: remove it and {archive.url} is fetched again"
            )
        return target
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    failures = 0
    while True:
        before = _kept(archive, part)
        try:
            _download(archive, part, report)
            break
        except _DroppedError as error:
            after = _kept(archive, part)
            failures = 1 if after - before >= PROGRESS else failures + 1
            if failures > len(PAUSES):
                again = f"goes on from {after:,} bytes" if after else "tries again"
                raise UserError(f"{archive.url}: {error}; the same command {again}") from None
            time.sleep(PAUSES[failures - 1])
    found = _checksum(part, archive)
    _validator(part).unlink(missing_ok=True)
    if found != archive.checksum:
        part.unlink()
        raise UserError(f"{archive.url} came with {found}, not {archive.checksum}: what came is removed")
    with _writing(target):
        part.replace(target)
    return target


def unpack(file: Path, folder: Path) -> None:
    """Everything in the archive, into `folder`. Its top-level entries appear whole, at the end, and replace nothing."""
    staging = folder / f".{file.name}.unpacking"
    shutil.rmtree(staging, ignore_errors=True)  # of an unpacking that was killed
    try:
        staging.mkdir(parents=True)
        if file.name.lower().endswith(".zip"):
            _unzip(file, folder, staging)
        elif file.name.lower().endswith((".tgz", ".tar.gz", ".tar")):
            _untar(file, folder, staging)
        else:
            raise UserError(f"cannot unpack {file}: allowed are .tgz, .tar.gz, .tar and .zip")
        for entry in sorted(staging.iterdir()):
            entry.rename(folder / entry.name)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, OSError) as error:
        why = (str(error) or type(error).__name__).splitlines()[0].rstrip(":")
        raise UserError(f"cannot unpack {file}: {why}") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _download(archive: Archive, part: Path, report: Report) -> None:
    """As much of the file as one connection gives, added to `part`; _DroppedError when that is not all of it."""
    start = _kept(archive, part)
    response = _request(archive, part, start)
    if response is None:
        return
    with response, _writing(part):
        total = _number(response.headers.get("Content-Length"))
        if response.status == http.HTTPStatus.PARTIAL_CONTENT:
            span = response.headers.get("Content-Range", "")  # bytes 5-9/10
            if not span.startswith(f"bytes {start}-"):
                part.unlink()
                raise _DroppedError(f"asked for the bytes from {start:,}, the server sent {span or 'others'}")
            total = _number(span.rpartition("/")[2])
        else:  # the whole file: the server knows no ranges, or the file is another one by now
            start = 0
            _remember(part, response.headers)
        got = start
        with part.open("ab" if start else "wb") as out:
            free = shutil.disk_usage(part.parent).free
            if total is not None and total - start > free:
                raise UserError(f"{part.parent} has {free:,} bytes free, {archive.url} needs {total - start:,} more")
            for block in _blocks(response):
                out.write(block)
                got += len(block)
                report(got, total)
    if total is not None and got != total:
        raise _DroppedError(f"the connection ended at {got:,} of {total:,} bytes")


def _request(archive: Archive, part: Path, start: int) -> Any:
    """The response to a request for the bytes from `start`; None when there are no more."""
    headers = {"User-Agent": "metric-loss-harness"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if _validator(part).exists():
            headers["If-Range"] = _validator(part).read_text()
    try:
        return urllib.request.urlopen(urllib.request.Request(archive.url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            if error.headers.get("Content-Range", "").rpartition("/")[2] == str(start):
                return None
            part.unlink()
            raise _DroppedError(f"the file has no byte {start:,} now") from None
        if error.code in (408, 429) or error.code >= 500:  # passing troubles
            raise _DroppedError(f"HTTP {error.code} {error.reason}") from None
        raise UserError(f"{archive.url}: HTTP {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise _DroppedError(str(getattr(error, "reason", error)) or type(error).__name__) from None


def _blocks(response: Any) -> Iterator[bytes]:
    try:
        while block := response.read1(BLOCK):  # not read: what came before a failure is kept
            yield block
    except (OSError, http.client.HTTPException) as error:
        raise _DroppedError(str(error) or type(error).__name__) from None


def _kept(archive: Archive, part: Path) -> int:
    """How many bytes of an earlier download count: none where nothing would show that the file has changed since."""
    resumable = not archive.url.startswith("ftp:") and (archive.checksum or _validator(part).exists())
    return part.stat().st_size if resumable and part.exists() else 0


def _validator(part: Path) -> Path:
    """Beside a partial download, what names the version of the file it is of: an ETag or a date, for If-Range."""
    return part.with_name(f"{part.name}.version")


def _remember(part: Path, headers: Any) -> None:
    etag = headers.get("ETag") or ""
    version = headers.get("Last-Modified") if not etag or etag.startswith("W/") else etag  # a weak one does not do
    if version:
        _validator(part).write_text(version)
    else:
        _validator(part).unlink(missing_ok=True)


def _checksum(file: Path, archive: Archive) -> str:
    """Of the kind the archive's is; empty when it has none."""
    kind = archive.checksum.partition(":")[0]
    if not kind:
        return ""
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, lambda: hashlib.new(kind, usedforsecurity=False))
    return f"{kind}:{digest.hexdigest()}"


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A full disk or a folder that is not ours is the user's to mend."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None


def _unzip(file: Path, folder: Path, staging: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            _check(file, folder, member.filename, link=stat.S_ISLNK(member.external_attr >> 16))
            if member.flag_bits & 1:
                raise UserError(f"{file} is encrypted: unpack it into {folder} with the password its owners give")
        archive.extractall(staging)


def _untar(file: Path, folder: Path, staging: Path) -> None:
    def check(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        _check(file, folder, member.name, link=member.issym())
        return tarfile.data_filter(member, path)

    with tarfile.open(file) as archive:
        archive.extractall(staging, filter=check)
        while archive.fileobj and archive.fileobj.read(BLOCK):  # gzip checks its checksum at the very end
            pass


def _check(file: Path, folder: Path, name: str, *, link: bool) -> None:
    """A UserError for a member that would be written elsewhere, or over what is there."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or link:
        raise UserError(f"{file} holds {name!r}: a link or a path out of the folder is not unpacked")
    if path.parts and (folder / path.parts[0]).exists():
        raise UserError(
            f"{folder / path.parts[0]} is there already: {file.name} is unpacked only where it replaces nothing"
        )
