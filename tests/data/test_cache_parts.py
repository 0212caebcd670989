"""A cache travels through the storage, each part verified; what is interrupted goes on, what is damaged is named."""

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness import config
from harness.data import cache, cache_parts, listing, loading
from harness.data.cache import Step
from harness.data.listing import Listing
from harness.spec import Dataset, UserError, finish
from harness.storage import Storage
from tests.data.factories import key, left_over, made, pictures
from tests.s3 import S3

PART = 1000  # bytes, so that 8 images of 16 x 16 are several parts


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_parts, "PART_BYTES", PART)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "storage"))


@pytest.fixture
def pushed(things: Listing, storage: Storage) -> cache.Built:
    """The cache of the things, in the storage and no more on this node."""
    built = made(key(), things)
    finish(cache_parts.push(key(), storage))
    cache.remove([key().folder.name])
    return built


def manifest(storage: Storage) -> cache_parts.Manifest:
    found = cache_parts.find(key(), storage)
    assert found is not None
    return found


def part(storage: Storage, number: int) -> Path:
    """The file of a part of the pixels."""
    return Path(storage.path(cache_parts.part_name(key(), manifest(storage).parts["pixels"][number])))


def written(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each name is written from now on."""
    counts: Counter[str] = Counter()
    write = storage.write

    def counted(name: str, content: bytes, *, sync: bool = True) -> None:
        counts[name] += 1
        write(name, content, sync=sync)

    monkeypatch.setattr(storage, "write", counted)
    return counts


def test_a_cache_comes_out_of_the_storage_as_it_went_in(pushed: cache.Built, storage: Storage, home: Path) -> None:
    steps: list[Step] = list(cache_parts.take(manifest(storage), storage))
    taken = cache.open_built(key())
    assert taken is not None
    assert np.array_equal(taken.pixels, pushed.pixels)
    assert (taken.paths, taken.classes, taken.contents) == (pushed.paths, pushed.classes, pushed.contents)
    assert steps[0].note == "things: takes its images from the storage, 0.0 MB"
    done = [step.done for step in steps if step.done]
    assert done == sorted(done)
    assert len(done) > 6
    assert done[-1] == 8
    assert left_over(home) == []


def test_no_part_is_larger_than_it_may_be_and_together_they_are_the_files(
    pushed: cache.Built, storage: Storage
) -> None:
    sizes = manifest(storage).sizes
    assert sizes["pixels"] == pushed.pixels.size
    for file in cache_parts.FILES:
        parts = [piece.size for piece in cache_parts.pieces(sizes) if piece.file == file]
        assert sum(parts) == sizes[file]
        assert max(parts) <= PART
        assert len(parts) == len(manifest(storage).parts[file])


def test_an_interrupted_push_goes_on_where_it_stopped(
    things: Listing, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_parts, "AT_ONCE", 1)
    made(key(), things)
    pushing = cache_parts.push(key(), storage)
    total = next(pushing).total
    for _ in range(3):
        next(pushing)
    pushing.close()
    assert cache_parts.find(key(), storage) is None  # not whole, so no node takes it
    there = set(storage.names(f"caches/{key().folder.name}"))
    assert len(there) >= 4
    counts = written(storage, monkeypatch)
    progress: list[cache_parts.Sent] = []
    before = finish(cache_parts.push(key(), storage), progress.append)
    assert not there & set(counts)
    assert set(counts.values()) == {1}
    assert before >= 4 * PART - PART  # the last part of a file is smaller
    assert progress[-1] == (total, total)
    assert cache_parts.find(key(), storage) is not None


def test_a_push_of_other_images_replaces_the_cache(pushed: cache.Built, storage: Storage, things: Listing) -> None:
    old = set(storage.names(f"caches/{key().folder.name}"))
    (things.folder / "000.png").write_bytes((things.folder / "006.png").read_bytes())
    made(key(), things)
    finish(cache_parts.push(key(), storage))
    kept = set(storage.names(f"caches/{key().folder.name}"))
    assert old - kept, "the parts of the earlier one are gone"
    cache.remove([key().folder.name])
    list(cache_parts.take(manifest(storage), storage))
    taken = cache.open_built(key())
    assert taken is not None
    assert taken.contents != pushed.contents


@pytest.mark.parametrize("how", ["changed", "cut off", "missing"])
def test_a_damaged_part_is_named_and_the_next_push_sends_it_again(
    pushed: cache.Built, storage: Storage, things: Listing, home: Path, how: str
) -> None:
    file = part(storage, 2)
    content = file.read_bytes()
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if how == "changed" else content[:-1])
    complaint = "is missing" if how == "missing" else "is damaged: its content does not match its checksum"
    with pytest.raises(UserError, match=f"{file.name} {complaint}; push it again: harness data push"):
        list(cache_parts.take(manifest(storage), storage))
    assert cache.open_built(key()) is None
    assert left_over(home) == []
    made(key(), things)
    finish(cache_parts.push(key(), storage))
    assert file.read_bytes() == content
    cache.remove([key().folder.name])
    list(cache_parts.take(manifest(storage), storage))
    assert cache.open_built(key()) is not None


def test_a_damaged_manifest_is_one_line(pushed: cache.Built, storage: Storage) -> None:
    file = Path(storage.path(cache_parts.manifest_name(key())))
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(UserError, match=r"caches/things-f1-16x16.manifest is damaged.*; push it again"):
        cache_parts.find(key(), storage)


def test_a_cache_of_other_images_than_planned_is_refused(pushed: cache.Built, storage: Storage) -> None:
    with pytest.raises(UserError, match=r"has other images \(contents .*, planned 000000000000\); push them again"):
        list(cache_parts.take(manifest(storage), storage, "0" * 64))


def test_a_storage_that_cannot_be_written_is_one_line(
    things: Listing, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(key(), things)

    def refuse(name: str, content: bytes, *, sync: bool = True) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(storage, "write", refuse)
    with pytest.raises(UserError, match=r"cannot write to --storage .*: Permission denied; rerun the same command"):
        finish(cache_parts.push(key(), storage))


def test_a_bucket_is_as_good_as_a_folder(things: Listing, s3: S3) -> None:
    """Also where requests fail: the library repeats them."""
    storage = Storage("s3://bench/run")
    built = made(key(), things)
    s3.failing = 0.1
    finish(cache_parts.push(key(), storage))
    cache.remove([key().folder.name])
    list(cache_parts.take(manifest(storage), storage))
    taken = cache.open_built(key())
    assert taken is not None
    assert np.array_equal(taken.pixels, built.pixels)
    assert finish(cache_parts.push(key(), storage)) == manifest(storage).bytes, "all parts were there"


# --- a node with neither images nor cache ---


def own(folder: Path) -> Dataset:
    return listing.identify(config.dataset(str(pictures(folder / "photos"))), Path())


def push(dataset: Dataset, storage: Storage) -> cache.Key:
    """Push its cache, then take images and cache away from this node."""
    its_key = cache.Key(dataset.name, dataset.fingerprint, 16, "square")
    finish(loading.mapped(its_key, dataset, ""))
    finish(cache_parts.push(its_key, storage))
    shutil.rmtree(dataset.folder)
    shutil.rmtree(cache.home())
    return its_key


def test_a_node_without_images_takes_them_from_the_storage(tmp_path: Path, storage: Storage) -> None:
    dataset = own(tmp_path)
    its_key = push(dataset, storage)
    with pytest.raises(UserError, match="not found at"):
        finish(loading.mapped(its_key, dataset, ""))
    notes: list[str] = []
    images = finish(loading.mapped(its_key, dataset, "", storage), lambda step: notes.append(step.note))
    assert len(images.paths) == 32
    assert images.contents == dataset.sha256
    assert any("takes its images from the storage" in note for note in notes)


def test_images_on_the_node_are_decoded_even_if_the_storage_has_a_cache(
    tmp_path: Path, storage: Storage, decoded: Counter[str]
) -> None:
    dataset = own(tmp_path)
    its_key = push(dataset, storage)
    decoded.clear()
    pictures(tmp_path / "photos")
    finish(loading.mapped(its_key, dataset, "", storage))
    assert sum(decoded.values()) == 32


def test_a_dataset_is_identified_by_its_cache_in_the_storage(tmp_path: Path, storage: Storage) -> None:
    plain = config.dataset(str(pictures(tmp_path / "photos")))
    dataset = listing.identify(plain, Path())
    files = listing.read(dataset, Path())
    assert cache_parts.identify(plain, storage) is None
    push(dataset, storage)
    assert cache_parts.identify(plain, storage) == dataset
    stored = cache_parts.read_listing(dataset, storage)
    assert replace(stored, folder=files.folder) == files


def test_caches_of_different_images_identify_nothing(tmp_path: Path, storage: Storage) -> None:
    dataset = own(tmp_path)
    push(dataset, storage)
    other = replace(dataset, fingerprint="0" * 12)
    pictures(tmp_path / "photos")
    its_key = cache.Key(other.name, other.fingerprint, 16, "square")
    list(loading.cache_building.build(its_key, listing.read(dataset, Path())))
    finish(cache_parts.push(its_key, storage))
    fingerprints: Sequence[str] = sorted((dataset.fingerprint, other.fingerprint))
    with pytest.raises(UserError, match=rf"caches of different images \(fingerprints {', '.join(fingerprints)}\)"):
        cache_parts.identify(dataset, storage)
