"""What a dataset's files hold: a digest of each. Digests are remembered with sizes and time stamps, so that a file is
read again only after it has changed."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.data import images
from harness.data.cache import gigabytes, home
from harness.data.stamps import Stamp, is_settled
from harness.spec import short_hash
from harness.storage import DamagedError, Storage

if TYPE_CHECKING:
    from harness.data.listing import Listing

UNREADABLE = bytes(32)  # in the place of the digest of a file that is missing or cannot be read
MUCH = 10**9  # bytes; whoever waits for more to be read is told so

Digests = Sequence[bytes]  # the sha256 of each file of a listing


def sha256(digests: Digests) -> str:
    """Of the contents of all files, in the order of their listing."""
    return hashlib.sha256(b"".join(digests)).hexdigest()


def read(dataset: str, listing: "Listing", say: Callable[[str], None] = lambda line: None) -> Digests:
    """The digest of every file. Only those are read that are not remembered as they are now."""
    digests = remembered(dataset, listing)
    unknown = [number for number, digest in enumerate(digests) if digest is None]
    size = sum(stamp.size for number in unknown if (stamp := listing.stamps[number]))
    if size > MUCH:
        say(f"{dataset}: {len(unknown)} images are read once, {gigabytes(size)}, to tell whether they ever change")
    with images.workers() as pool:
        files = [listing.folder / listing.paths[number] for number in unknown]
        for number, digest in zip(unknown, pool.map(of, files), strict=True):
            digests[number] = digest
    known = [digest or UNREADABLE for digest in digests]
    if unknown:
        remember(dataset, listing, known)
    return known


def of(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").digest()
    except (OSError, ValueError):
        return UNREADABLE


def known(dataset: str, listing: "Listing") -> Digests | None:
    """The digest of every file; None if one would have to be read."""
    digests = [digest for digest in remembered(dataset, listing) if digest is not None]
    return digests if len(digests) == len(listing.paths) else None


def remembered(dataset: str, listing: "Listing") -> list[bytes | None]:
    """The digests of files that have not changed since they were read."""
    try:
        content = Storage(str(home())).read_sealed(*note(dataset, listing))
        rows = json.loads(content or "{}")
    except (DamagedError, OSError):  # as good as none: the files are read again
        rows = {}
    digests: list[bytes | None] = []
    for path, stamp in zip(listing.paths, listing.stamps, strict=True):
        noted, _, digest = rows.get(path, "").rpartition(" ")
        digests.append(bytes.fromhex(digest) if stamp and noted == identity(stamp) else None)
    return digests


def remember(dataset: str, listing: "Listing", digests: Digests) -> None:
    """Note the digests of files whose time stamps would tell of any further change."""
    rows = {
        path: f"{identity(stamp)} {digest.hex()}"
        for path, stamp, digest in zip(listing.paths, listing.stamps, digests, strict=True)
        if stamp and digest != UNREADABLE and is_settled(stamp)
    }
    try:
        Storage(str(home())).write_sealed(*note(dataset, listing), json.dumps(rows).encode())
    except OSError:  # no room, or not ours to write: the files are read again
        return


def identity(stamp: Stamp) -> str:
    """What changes when a file does. A copy in another place is another file, and is read once."""
    return f"{stamp.size} {stamp.modified} {stamp.changed} {stamp.inode}"


def note(dataset: str, listing: "Listing") -> tuple[str, str]:
    """The file that the digests of a dataset in one place are noted in, and whose it is."""
    folder = os.path.realpath(listing.folder)
    name = f"contents/{dataset}-{short_hash(folder.encode(errors='surrogateescape').hex())}"
    return name, f"stamps and digests of {dataset} in {folder!a}"  # another form has another owner


def copies(listing: "Listing", digests: Digests) -> Iterator[tuple[str, str]]:
    """Pairs of test images whose files are identical: the first of its kind with each of the others."""
    alike: dict[bytes, list[str]] = {}
    for path, label, digest in zip(listing.paths, listing.labels, digests, strict=True):
        if label >= listing.train_classes and digest != UNREADABLE:
            alike.setdefault(digest, []).append(path)
    for first, *others in alike.values():
        # identical pages that say "not found" are no images: they are left out, or stop the run
        if others and not any(images.broken(listing.folder, [first])):
            yield from ((first, other) for other in others)
