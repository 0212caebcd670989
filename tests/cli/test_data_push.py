"""`harness data push`: a dataset in the storage, from which a run takes it."""

import re
import shutil
from pathlib import Path

import pytest

from harness.data import cache_parts
from tests.conftest import Harness
from tests.data.factories import draw, lay_cub, records

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def cub(root: Path) -> Path:
    lay_cub(root / "CUB_200_2011", each=4, write=draw)
    return root


def test_a_run_needs_only_what_was_pushed(cub: Path, own_cache: Path, harness: Harness, tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    run = ("run", "--losses", "triplet", "--dataset", "cub", "--storage", str(storage))
    assert harness(*run, "--results", str(tmp_path / "with images"), "--data-root", str(cub)).code == 0
    said = harness("data", "push", "cub", "--storage", str(storage), "--data-root", str(cub))
    assert (said.code, said.err) == (0, "")
    first, last = said.out.splitlines()
    assert first == f"cub: 24 images in {storage}, 0.1 MB"
    assert last == f"nodes without images take them from there: harness run --dataset cub --storage {storage}"
    again = harness("data", "push", "cub", "--storage", str(storage), "--data-root", str(cub))
    assert again.out.splitlines()[0] == f"cub: 24 images in {storage}, 0.1 MB, 0.1 MB of it from an earlier push"
    shutil.rmtree(cub)
    shutil.rmtree(own_cache)
    said = harness(*run)
    assert said.code == 0, said.all_err
    assert "cub: takes its images from the storage, 0.1 MB" in said.all_err
    with_images = [file.read_bytes() for file in sorted((tmp_path / "with images").glob("runs/*/*/*.npz"))]
    assert with_images == [file.read_bytes() for file in sorted((tmp_path / "results").glob("runs/*/*/*.npz"))]
    assert len(records(tmp_path)) == len(with_images) > 1


def test_a_file_gets_a_line_for_each_tenth(
    cub: Path, harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_parts, "PART_BYTES", 4096)
    push = ("data", "push", "cub", "--storage", str(tmp_path / "storage"), "--data-root", str(cub))
    tenths = [int(share) for share in re.findall(r"^pushing cub: (\d+) %$", harness(*push).err, re.MULTILINE)]
    assert tenths == list(range(10, 100, 10))


def test_without_a_push_the_images_are_missed(cub: Path, harness: Harness, tmp_path: Path) -> None:
    shutil.rmtree(cub)
    said = harness("run", "--losses", "triplet", "--dataset", "cub", "--storage", str(tmp_path / "storage"))
    assert said.code == 2
    assert said.err.startswith("harness: cub: not found; searched ")
    assert not (tmp_path / "storage").exists()


def test_the_size_is_the_protocols_or_is_set(cub: Path, own_cache: Path, harness: Harness, tmp_path: Path) -> None:
    push = ("data", "push", "cub", "--storage", str(tmp_path / "storage"), "--data-root", str(cub))
    said = harness(*push, "--protocol", "tiny", "--set", "resize=24", "--set", "aspect=kept")
    assert said.code == 0
    assert "--dataset cub --protocol tiny --set resize=24 --set aspect=kept --storage" in said.out
    assert [folder.name.rsplit("-", 1)[1] for folder in own_cache.glob("cub-*") if folder.is_dir()] == ["short24"]


def test_an_embedded_dataset_needs_no_push(small: Path, harness: Harness, tmp_path: Path) -> None:
    said = harness("data", "push", "blobs", "--storage", str(tmp_path / "storage"))
    assert (said.code, said.out) == (0, "blobs: ships with the package; nothing to push\n")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("banana", "--storage", "s"), "no dataset named 'banana'"),
        (("cub", "--storage", "s", "--protocol", "banana"), "no protocol named 'banana'"),
        (("cub", "--storage", "s", "--set", "epochs=3"), "--set epochs=3: must be resize=PIXELS or aspect=..."),
        (("cub", "--storage", "s", "--set", "resize=big"), "resize=big: must be an integer"),
        (("cub", "--storage", "no-such-scheme://x"), "--storage no-such-scheme://x: "),
        (("cub", "--storage", "s", "--data-root", "nowhere"), "cub: not found; searched "),
        (("cub",), "--storage is missing; usage: harness data push"),
    ],
)
def test_a_mistake_is_one_line(
    cub: Path,
    harness: Harness,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    root = () if "--data-root" in words else ("--data-root", str(cub))
    said = harness("data", "push", *words, *root)
    assert said.code == 2
    assert complaint in said.err
    assert said.err.count("\n") == 1
    assert not (tmp_path / "s").exists()


def test_a_storage_that_is_a_file_is_one_line(cub: Path, harness: Harness, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = harness("data", "push", "cub", "--storage", str(tmp_path / "file"), "--data-root", str(cub))
    assert said.code == 2
    assert said.err == f"harness: cannot write to --storage {tmp_path / 'file'}: it is a file\n"
