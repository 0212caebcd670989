"""Image caches that are not as they were built."""

import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import config, plan
from harness.data import cache, listing, loading, stamps
from harness.spec import Dataset, Experiment, Trial, UserError, finish
from tests.conftest import Harness
from tests.data.factories import pictures, scores, special_file

pytestmark = pytest.mark.usefixtures("own_cache", "small")

TINY = ("--losses", "triplet", "--protocol", "tiny", "--weights", "none")


def cache_of(folder: Path) -> tuple[Dataset, Trial, cache.Key]:
    """A user's own dataset, a trial on it, and the key of the cache that the trial needs."""
    dataset = listing.identify(config.dataset(str(folder)), Path())
    experiment = Experiment(dataset, config.protocol("tiny"), ())
    trial = plan.baselines(experiment)[1]
    return dataset, trial, cache.Key(dataset.name, dataset.fingerprint, trial.resize, trial.aspect)


def load(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """All that a trial gets from the cache, and what is said meanwhile."""
    dataset, trial, _ = cache_of(folder)
    notes: list[str] = []
    loaded = finish(loading.load(dataset, trial), lambda step: notes.append(step.note))
    values = {name: getattr(loaded, name) for name in ("classes", "train_classes", "paths", "contents", "copies")}
    arrays = (loaded.pixels, loaded.offsets, loaded.heights, loaded.widths, loaded.labels.numpy())
    return {**values, "arrays": [array.tobytes() for array in arrays]}, [note for note in notes if note]


def about_of(folder: Path) -> dict[str, Any]:
    about: dict[str, Any] = json.loads((folder / "about.json").read_text())
    return about


def with_about(**changes: Any) -> Callable[[Path], None]:
    """The checksum stays as it was."""

    def damage(folder: Path) -> None:
        (folder / "about.json").write_text(json.dumps({**about_of(folder), **changes}))

    return damage


def forged_about(**changes: Any) -> Callable[[Path], None]:
    """With a checksum that is right."""

    def damage(folder: Path) -> None:
        about = {**about_of(folder), **changes}
        (folder / "about.json").write_text(json.dumps({**about, "sha256": cache.checksum(about)}))

    return damage


def forged_index(change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> Callable[[Path], None]:
    """An index that does not fit the rest, with checksums that are right."""

    def damage(folder: Path) -> None:
        with np.load(folder / "index.npz") as index:
            arrays = change({name: index[name] for name in index.files})
        np.savez(folder / "index.npz", **arrays)
        forged_about(index=hashlib.sha256((folder / "index.npz").read_bytes()).hexdigest())(folder)

    return damage


def changed(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes())) and None


def flipped(content: bytes) -> bytes:
    """One bit of it."""
    return content[:3200] + bytes([content[3200] ^ 1]) + content[3201:]


def replaced_by(name: str, kind: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        if kind != "nothing":
            special_file(folder / name, kind)

    return damage


def pickled(folder: Path) -> None:
    array = np.array([{"a": 1}], dtype=object)
    np.savez(folder / "index.npz", offsets=array)


def a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("a file where the cache should be")


DAMAGE: dict[str, Callable[[Path], None]] = {
    "about: cut": changed("about.json", lambda content: content[:50]),
    "about: empty": changed("about.json", lambda content: b""),
    "about: not UTF-8": changed("about.json", lambda content: b"\xff" * 100_000),
    "about: a list": changed("about.json", lambda content: b"[1, 2]"),
    "about: nested deeply": changed("about.json", lambda content: b"[" * 100_000),
    "about: a huge integer": changed("about.json", lambda content: b'{"schema": ' + b"9" * 5000 + b"}"),
    "about: missing": replaced_by("about.json", "nothing"),
    "about: a pipe": replaced_by("about.json", "a pipe"),
    "about: without classes": forged_about(classes=None),
    "about: classes reversed": with_about(classes=[f"c{number}" for number in range(7, -1, -1)]),
    "about: other sides": with_about(train_classes=2),
    "about: other sides, impossible": forged_about(train_classes=9),
    "about: another dataset's": forged_about(dataset="other"),
    "about: another fingerprint": forged_about(fingerprint="0123456789ab"),
    "about: another size": forged_about(resize=33),
    "index: cut": changed("index.npz", lambda content: content[: len(content) // 2]),
    "index: one flipped bit": changed("index.npz", flipped),
    "index: pickled objects": pickled,
    "index: missing": replaced_by("index.npz", "nothing"),
    "index: a pipe": replaced_by("index.npz", "a pipe"),
    "index: an array missing": forged_index(lambda arrays: {**arrays, "heights": arrays.pop("heights")[:0]}),
    "index: an array more": forged_index(lambda arrays: {**arrays, "more": np.zeros(3)}),
    "index: labels too short": forged_index(lambda arrays: {**arrays, "labels": arrays["labels"][:-1]}),
    "index: labels out of range": forged_index(lambda arrays: {**arrays, "labels": arrays["labels"] + 1}),
    "index: heights as text": forged_index(lambda arrays: {**arrays, "heights": arrays["heights"].astype(str)}),
    "index: offsets permuted": forged_index(lambda arrays: {**arrays, "offsets": arrays["offsets"][::-1]}),
    "index: offsets beyond the end": forged_index(lambda arrays: {**arrays, "offsets": arrays["offsets"] + 3}),
    "pixels: one flipped bit": changed("pixels", flipped),
    "pixels: all zero": changed("pixels", lambda content: bytes(len(content))),
    "pixels: cut": changed("pixels", lambda content: content[:-1]),
    "pixels: longer": changed("pixels", lambda content: content + b"x"),
    "pixels: missing": replaced_by("pixels", "nothing"),
    "pixels: a folder": replaced_by("pixels", "a folder"),
    "pixels: a pipe": replaced_by("pixels", "a pipe"),
    "a file in its place": a_file,
}


@pytest.mark.fault(
    "an image cache: about.json, index.npz or pixels cut, emptied, flipped, forged, replaced by a pipe or a folder",
    "set aside with one line that names it, and made again: the same to the bit",
)
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("verified", [False, True])
def test_a_damaged_cache_is_set_aside_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None], verified: bool
) -> None:
    if verified:  # the pixels are noted as verified before they are damaged
        monkeypatch.setattr(stamps, "SETTLED", 0)
    folder = pictures(tmp_path / "pictures")
    whole, notes = load(folder)
    key = cache_of(folder)[2]
    assert notes == []
    assert (key.folder / "verified.json").exists() == verified
    time.sleep(0.01)  # the resolution of time stamps
    damage(key.folder)
    names = [summary.name for summary in cache.summaries()]
    assert names == ([key.folder.name] if key.folder.is_dir() else [])
    again, notes = load(folder)
    assert again == whole
    (note,) = notes
    assert note.startswith(f"the image cache {key.folder} ")
    assert note.endswith(f"; moved to {key.folder.name}.damaged, and made again")
    assert note.count("\n") == 0
    assert len(note) < 500
    assert load(folder) == (whole, [])
    assert cache.remove(["pictures"])
    assert cache.summaries() == []


@pytest.mark.fault("an image cache of another dataset, copied under this one's name", "set aside; made again")
def test_the_cache_of_another_dataset_is_not_used(tmp_path: Path) -> None:
    mine, other = pictures(tmp_path / "mine"), pictures(tmp_path / "other", seed=1)
    whole, _ = load(mine)
    load(other)
    target = cache_of(mine)[2].folder
    shutil.rmtree(target)
    shutil.copytree(cache_of(other)[2].folder, target)
    again, (note,) = load(mine)
    assert again == whole
    assert "belongs to another dataset or size: " in note


@pytest.mark.fault("a damaged image cache, then `harness run`", "one line on the screen; exit 0; the same numbers")
def test_a_run_says_that_the_cache_was_damaged(harness: Harness, tmp_path: Path) -> None:
    folder = pictures(tmp_path / "pictures")
    words = ("run", "--dataset", str(folder), *TINY)
    assert harness(*words).code == 0
    before, key = scores(tmp_path), cache_of(folder)[2]
    DAMAGE["pixels: one flipped bit"](key.folder)
    said = harness(*words, "--rerun")
    assert said.code == 0
    assert said.err.count(f"the image cache {key.folder} is damaged: the pixels of c0/1.bmp do not match") == 1
    assert scores(tmp_path) == before


@pytest.mark.fault("a disk that writes other pixels than it is given", "one line that names the cache, exit 2")
def test_a_cache_that_is_damaged_when_it_is_made_is_one_line(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite
    monkeypatch.setattr(
        os, "pwrite", lambda file, content, place: write(file, bytes([content[0] ^ 1]) + content[1:], place)
    )
    said = harness("run", "--dataset", str(pictures(tmp_path / "pictures")), *TINY)
    assert said.code == 2
    assert "is damaged: the pixels of c0/0.bmp do not match their checksum, just after it was made; check" in said.err
    assert said.err.splitlines()[-1].startswith("harness: ")


@pytest.mark.fault(
    "image caches whose about.json is not UTF-8, a list, or nested deeply; `harness data cache ls` and `rm`",
    "listed and removed",
)
@pytest.mark.parametrize("name", [name for name in DAMAGE if name.startswith("about")])
def test_damaged_caches_are_listed_and_removed(harness: Harness, tmp_path: Path, name: str) -> None:
    folder = pictures(tmp_path / "pictures")
    load(folder)
    key = cache_of(folder)[2]
    DAMAGE[name](key.folder)
    listed = harness("data", "cache", "ls")
    assert listed.code == 0
    assert key.folder.name in listed.out
    assert harness("data", "cache", "rm", "pictures").code == 0
    assert not key.folder.exists()


@pytest.mark.fault(
    "a damaged cache where the dataset's files are gone", "one line; the cache is set aside or stays, never removed"
)
def test_a_damaged_cache_whose_files_are_gone_stays(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "pictures")
    load(folder)
    dataset, trial, key = cache_of(folder)
    DAMAGE["pixels: one flipped bit"](key.folder)
    shutil.rmtree(folder)
    with pytest.raises(UserError, match="not found at"):
        finish(loading.load(dataset, trial))
    assert (key.folder / "pixels").exists()


@pytest.mark.fault("digests of files, noted beside the caches, that are damaged", "the files are read again")
@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff" * 100])
def test_damaged_digests_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(stamps, "SETTLED", 0)
    folder = pictures(tmp_path / "pictures")
    before = listing.identify(config.dataset(str(folder)), Path()).sha256
    (note,) = (cache.home() / "contents").iterdir()
    for damaged in (content, note.read_bytes()[:-30] + b"0" * 30):
        note.write_bytes(damaged)
        assert listing.identify(config.dataset(str(folder)), Path()).sha256 == before


@pytest.mark.fault(
    "too many open files, or a missing permission, while an image cache is opened",
    "one line; the cache stays: it is not damaged",
)
@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.EIO])
def test_a_cache_that_cannot_be_read_now_is_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    folder = pictures(tmp_path / "pictures")
    whole, _ = load(folder)
    dataset, trial, key = cache_of(folder)

    def fail(file: Path) -> bytes:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(cache, "content", fail)
        with pytest.raises(UserError, match=f"cannot read the image cache {key.folder}: {os.strerror(number)}"):
            finish(loading.load(dataset, trial))
    assert load(folder) == (whole, [])


@pytest.mark.fault("the lock of an image cache is a folder", "one line that names it, without waiting for it")
def test_a_lock_that_is_a_folder_is_named(tmp_path: Path) -> None:
    pictures(tmp_path / "photos")
    dataset, trial, key = cache_of(tmp_path / "photos")
    lock = key.folder.with_name(f"{key.folder.name}.lock")
    lock.mkdir(parents=True)
    with pytest.raises(UserError) as raised:
        finish(loading.load(dataset, trial))
    assert str(raised.value) == f"cannot write {lock}, the lock of the image cache (HARNESS_CACHE): Is a directory"
