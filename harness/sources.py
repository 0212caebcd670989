"""The files of users' own losses, beside the results: sources/<sha256>.py, each text once. Records refer to them."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from harness.files import write_whole, writing
from harness.spec import Result
from harness.store import Store, read_bytes
from losses import own

FOLDER = "sources"


def path(store: Store, sha256: str) -> Path:
    return store.root / FOLDER / f"{sha256}.py"


def put(store: Store, texts: Iterable[str]) -> None:
    """Store the texts, also in the place of damaged ones. They come before the record that refers to them."""
    for text in texts:
        target = path(store, own.digest(text))
        with writing(target):
            write_whole(target, text.encode())


def get(store: Store, result: Result) -> dict[str, str]:
    """The stored files of a result's loss: text by path. What is missing or damaged is left out."""
    texts = {}
    for name, sha256 in result.sources.items():
        with suppress(ValueError):
            text = read_bytes(path(store, sha256), own.MOST_BYTES).decode()
            if own.digest(text) == sha256:
                texts[name] = text
    return texts


def drop(store: Store, removed: Iterable[Result]) -> None:
    """Remove the files of removed results that no stored one has. If a record cannot be read, they stay: it may have
    them."""
    unused = {sha256 for result in removed for sha256 in result.sources.values()}
    if not unused:
        return
    results, problems = store.results()
    unused -= {sha256 for result in results for sha256 in result.sources.values()}
    for sha256 in () if problems else unused:
        target = path(store, sha256)
        with writing(target):
            target.unlink(missing_ok=True)
