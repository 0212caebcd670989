"""Datasets from disk as a user meets them: run, check, download and the cache, on small sets in the real layouts."""

import hashlib
import json
import shutil
import tarfile
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from harness.data import loading
from harness.execution import local
from harness.spec import Job
from tests.conftest import PROTOCOL, Harness
from tests.data.test_listing import lay_cub, lay_inshop, lay_sop

TOML = """
title = "{title}"
cite = "tests"
version = 1
layout = "{layout}"
folder = "{folder}"
recall_at = {recall_at}
protocol = "tiny"
manual = "https://example.org/{layout}, unpack it"
"""


def draw(file: Path, label: int) -> None:
    """A small photograph: stripes that its class decides, and noise."""
    rng = np.random.default_rng(int(hashlib.sha256(str(file.name).encode()).hexdigest()[:8], 16))
    stripes = np.random.default_rng(label).integers(0, 2, (24, 1, 3)) * 30
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.clip(stripes + rng.normal(100, 60, (24, 28, 3)), 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(file, "JPEG")


def describe(configs: Path, layout: str, folder: str, recall_at: Sequence[int], **numbers: int) -> None:
    text = TOML.format(title=layout.upper(), layout=layout, folder=folder, recall_at=list(recall_at))
    text += "".join(f"{name} = {number}\n" for name, number in numbers.items())
    (configs / "datasets" / f"{layout}.toml").write_text(text)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HARNESS_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def root(small: Path, tmp_path: Path) -> Path:
    """A data root, and beside `blobs` the configuration of a small SOP, In-Shop and CUB."""
    sides = {"train_classes": 5, "test_classes": 13, "train_images": 20, "test_images": 117}
    describe(small, "sop", "Stanford_Online_Products", (1, 10, 100), **sides)
    describe(small, "inshop", "In-shop", (1, 2, 5), train_images=18, test_images=40, query_images=15)
    describe(small, "cub", "CUB_200_2011", (1, 2, 4, 8), train_classes=3, train_images=12, test_images=12)
    return tmp_path / "data root"


def small_sop(root: Path) -> None:
    train, test = dict.fromkeys(range(1, 6), 4), dict.fromkeys(range(6, 19), 9)
    lay_sop(root / "Stanford_Online_Products", train, test, draw)


def photos(folder: Path) -> Path:
    """Eight class folders of four photographs."""
    for label in range(8):
        for n in range(4):
            draw(folder / f"thing{label}" / f"{label}-{n}.jpg", label)
    return folder


def records(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted((tmp_path / "results").glob("runs/*/*/*.json"))]


# --- run ---


def test_a_run_on_sop_stores_results_and_prints_its_recalls_and_then_has_nothing_to_do(
    root: Path, harness: Harness, tmp_path: Path
) -> None:
    words = ("run", "--losses", "group,triplet", "--dataset", "sop", "--data-root", str(root))
    without = harness(*words)
    assert without.code == 2
    assert without.err.count("\n") == 1
    for part in (f"looked for Ebay_train.txt in {root}/Stanford_Online_Products", "by hand: https://example.org/sop"):
        assert part in without.err
    assert not (tmp_path / "results").exists()

    small_sop(root)
    first = harness(*words)
    assert first.code == 0, first.err
    assert "137 images go to the cache" in first.err
    header = next(line for line in first.out.splitlines() if "R@1" in line)
    assert [word for word in header.replace("|", " ").split() if word.startswith("R@")] == ["R@1", "R@10", "R@100"]
    for row in ("| Raw pixels", "| Untrained network", "| Group Loss", "| Triplet"):
        assert row in first.out
    found = records(tmp_path)
    assert len(found) == 4
    for one in found:
        assert 0 < one["metrics"]["R@1"] <= one["metrics"]["R@10"] <= one["metrics"]["R@100"] <= 1
        assert one["provenance"]["bad_images_skipped"] == 0
    second = harness(*words)
    assert (second.code, second.out, second.err) == (0, first.out, "")


def nearest_first(embeddings: torch.Tensor, query: int, gallery: list[int]) -> list[int]:
    """A slow loop: the gallery by distance."""
    return sorted(gallery, key=lambda one: float((embeddings[one] - embeddings[query]).square().sum()))


def test_inshop_queries_search_the_gallery_only(root: Path, harness: Harness, tmp_path: Path) -> None:
    items = [(label, "train", 3) for label in range(1, 7)]
    for label in range(7, 12):
        items += [(label, "query", 3), (label, "gallery", 5)]
    lay_inshop(root / "In-shop", items, write=draw)
    said = harness("run", "--losses", "triplet", "--dataset", "inshop", "--data-root", str(root), "--curves")
    assert said.code == 0, said.err
    (one,) = (record for record in records(tmp_path) if record["trial"]["loss"] == "triplet")
    kept = load_file(tmp_path / "results" / "artifacts" / one["artifacts"]["embeddings"]["path"])
    embeddings, labels, queries = kept["embeddings"].double(), kept["labels"].tolist(), kept["queries"].tolist()
    assert (len(labels), sum(queries)) == (40, 15)
    gallery = [index for index in range(40) if not queries[index]]
    assert 0 < one["metrics"]["R@1"] < 1  # else the comparison shows nothing
    ranked = {index: nearest_first(embeddings, index, gallery) for index in range(40) if queries[index]}
    for k in (1, 2, 5):
        hits = [any(labels[near] == labels[query] for near in order[:k]) for query, order in ranked.items()]
        assert one["metrics"][f"R@{k}"] == pytest.approx(sum(hits) / 15)
    assert one["curve"][-1]["R@1"] == one["metrics"]["R@1"]
    # R is 5 for every query: its class's images in the gallery
    right = [sum(labels[near] == labels[query] for near in order[:5]) / 5 for query, order in ranked.items()]
    assert one["metrics"]["RP"] == pytest.approx(sum(right) / 15)


def test_a_grid_of_sizes_has_a_cache_for_each(
    root: Path, harness: Harness, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    words = ("run", "--losses", "triplet", "--dataset", "./photos", "--protocol", "tiny")
    said = harness(*words, "--grid", "resize=32,40", "--grid", "epochs=0,1", "--set", "fold=test")
    assert said.code == 0, said.err
    assert said.err.count("32 images go to the cache") == 2
    assert len([one for one in own_cache.iterdir() if one.is_dir()]) == 2
    assert len(records(tmp_path)) == 4


def test_a_users_own_folder_list_and_description_run_without_code(
    root: Path, harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    files = sorted((tmp_path / "photos").rglob("*.jpg"))
    rows = [f"{file.relative_to(tmp_path)},{file.parent.name}" for file in files]
    (tmp_path / "list.csv").write_text("path,label\n" + "\n".join(rows) + "\n")
    (tmp_path / "mine.toml").write_text('layout = "folder"\nfolder = "photos"\nprotocol = "tiny"\nrecall_at = [1, 3]\n')
    scores = {}
    for name, more in (
        ("./photos", ["--protocol", "tiny"]),
        ("./list.csv", ["--protocol", "tiny"]),
        ("./mine.toml", []),
    ):
        said = harness("run", "--losses", "none", "--dataset", name, *more)
        assert said.code == 0, said.err
        assert f"### {name[2:]}" in said.out.replace("\\", "")
        assert ("R@3" in said.out) == (name == "./mine.toml")
        assert harness("run", "--losses", "none", "--dataset", name, *more).err == ""
        (pixels,) = (
            one for one in records(tmp_path) if one["trial"]["dataset"] == name[2:] and one["title"] == "Raw pixels"
        )
        scores[name] = pixels["metrics"]["R@1"]
    assert len(set(scores.values())) == 1


def test_a_protocol_of_a_users_data_is_the_shipped_one_for_laptops(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    (small / "protocols" / "cpu.toml").write_text(PROTOCOL)
    said = harness("run", "--losses", "triplet", "--dataset", str(photos(tmp_path / "photos")), "--dry-run")
    assert said.code == 0, said.err
    assert "triplet-photos-test-" in said.out
    assert not (tmp_path / "cache").exists()


def test_data_are_found_by_the_environment_too(
    root: Path, harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_cub(root / "CUB_200_2011", each=4, write=draw)
    assert harness("data", "check", "cub", "--data-root", str(tmp_path)).code == 2
    monkeypatch.setenv("HARNESS_DATA", str(root))
    assert harness("data", "check", "cub").code == 0
    assert harness("data", "check", "cub", "--data-root", str(tmp_path)).code == 2  # what is typed is stronger
    monkeypatch.delenv("HARNESS_DATA")
    monkeypatch.chdir(tmp_path)
    root.rename(tmp_path / "data")
    assert harness("data", "check", "cub").code == 0


def test_wrong_numbers_stop_a_run_before_it_begins(root: Path, harness: Harness, tmp_path: Path) -> None:
    lay_cub(root / "cub", each=3, write=draw)
    said = harness("run", "--losses", "none", "--dataset", "cub", "--data-root", str(root))
    assert said.code == 2
    assert said.err == f"harness: cub: expected 12 training images, found 9 under {root / 'cub'}\n"
    assert not (tmp_path / "results").exists()


def test_files_that_change_after_planning_fail_the_trial_in_a_clear_line(
    small: Path, harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = photos(tmp_path / "photos")
    real = local.execute

    def meddle(jobs: Sequence[Job], tell: Any) -> None:
        with (folder / "thing0" / "0-0.jpg").open("ab") as file:
            file.write(b"more")
        real(jobs, tell)

    monkeypatch.setattr(local, "execute", meddle)
    said = harness("run", "--losses", "none", "--dataset", str(folder), "--protocol", "tiny")
    assert said.code == 1
    assert f"the files under {folder} are not those the run was planned with" in said.err
    assert records(tmp_path) == []
    monkeypatch.setattr(local, "execute", real)
    assert harness("run", "--losses", "none", "--dataset", str(folder), "--protocol", "tiny").code == 0


# --- images that cannot be read ---


def spoil(folder: Path) -> dict[str, str]:
    """A truncated, an empty and a foreign file, in classes that train (0 to 3) and that test: path -> why."""
    whole = (folder / "thing0" / "0-1.jpg").read_bytes()
    (folder / "thing0" / "0-1.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "thing5" / "5-2.jpg").write_bytes(b"")
    (folder / "thing7" / "7-3.jpg").write_text("<html>404</html>")
    return {"thing0/0-1.jpg": "truncated", "thing5/5-2.jpg": "empty", "thing7/7-3.jpg": "not an image"}


def test_a_bad_image_is_named_and_going_on_without_is_recorded(small: Path, harness: Harness, tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    bad = spoil(folder)
    words = ("run", "--losses", "triplet", "--dataset", str(folder), "--protocol", "tiny")
    for _ in range(2):  # the second time they are known from the cache
        loading.forget()
        said = harness(*words)
        assert said.code == 1
        failed = [line for line in said.err.splitlines() if line.startswith("failed: ")]
        assert len(failed) == 3
        assert all("thing0/0-1.jpg cannot be read, one of 3" in line and "--skip-bad-images" in line for line in failed)
        assert records(tmp_path) == []
    said = harness(*words, "--skip-bad-images")
    assert said.code == 0, said.err
    found = records(tmp_path)
    assert [one["provenance"]["bad_images_skipped"] for one in found] == [len(bad)] * 3
    (one,) = (one for one in found if one["trial"]["loss"] == "triplet")
    kept = load_file(tmp_path / "results" / "artifacts" / one["artifacts"]["embeddings"]["path"])
    assert kept["labels"].bincount().tolist() == [4, 3, 4, 3]  # things 4 to 7, without the two that are bad


def test_good_copies_of_the_bad_images_make_another_dataset_that_runs(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    folder = photos(tmp_path / "photos")
    words = ("run", "--losses", "none", "--dataset", str(folder), "--protocol", "tiny")
    spoil(folder)
    assert harness(*words, "--skip-bad-images").code == 0
    photos(folder)
    assert harness(*words).code == 0
    assert sorted(one["provenance"]["bad_images_skipped"] for one in records(tmp_path)) == [0, 0, 3, 3]


def test_check_lists_every_bad_image_with_its_reason_and_a_fix(root: Path, harness: Harness) -> None:
    lay_cub(root / "cub", each=4, write=draw)
    fine = harness("data", "check", "cub", "--data-root", str(root))
    assert (fine.code, fine.err) == (0, "")
    assert fine.out.splitlines()[1:] == [
        *("training: 3 classes, 12 images", "test: 3 classes, 12 images", "every image can be read"),
    ]
    assert fine.out.startswith(f"cub: {root / 'cub'}, fingerprint ")
    images = root / "cub" / "images"
    half = (images / "002.Bird" / "Bird_0.jpg").read_bytes()[:300]
    (images / "002.Bird" / "Bird_0.jpg").write_bytes(half)
    (images / "010.Bird" / "Bird_3.jpg").unlink()
    (images / "011.Bird" / "Bird_1.jpg").write_text("not one")
    said = harness("data", "check", "cub", "--data-root", str(root))
    assert said.code == 1
    assert "every image can be read" not in said.out
    first, second, third, last = said.err.splitlines()
    assert first.startswith(f"harness: {images}/002.Bird/Bird_0.jpg: ")
    assert second == f"harness: {images}/010.Bird/Bird_3.jpg: the file is missing"
    assert third.startswith(f"harness: {images}/011.Bird/Bird_1.jpg: it is not an image")
    assert last.startswith("harness: 3 of 24 images cannot be read; unpack or download the dataset again (https://exa")
    assert last.endswith("or run with --skip-bad-images")


def test_check_lists_all_there_are_however_many(root: Path, harness: Harness) -> None:
    lay_cub(root / "cub", each=4)
    shutil.rmtree(root / "cub" / "images")
    said = harness("data", "check", "cub", "--data-root", str(root))
    assert said.code == 1
    assert said.err.count("the file is missing") == 24


def test_check_finds_wrong_numbers_and_bad_images_at_once(root: Path, harness: Harness) -> None:
    lay_cub(root / "cub", (1, 2, 3, 10, 11), each=4, write=draw)
    (root / "cub" / "images" / "001.Bird" / "Bird_0.jpg").write_bytes(b"")
    said = harness("data", "check", "cub", "--data-root", str(root))
    assert said.code == 1
    assert "Bird_0.jpg: the file is empty" in said.err
    assert f"harness: cub: expected 12 test images, found 8 under {root / 'cub'}; unpack or download" in said.err


def test_check_of_a_users_own_and_of_an_embedded_dataset(small: Path, harness: Harness, tmp_path: Path) -> None:
    said = harness("data", "check", str(photos(tmp_path / "photos")))
    assert (said.code, said.err) == (0, "")
    assert "training: 4 classes, 16 images\ntest: 4 classes, 16 images\n" in said.out
    spoil(tmp_path / "photos")
    said = harness("data", "check", str(tmp_path / "photos"))
    assert said.code == 1
    assert "3 of 32 images cannot be read; put good copies there, or run with" in said.err
    assert harness("data", "check", "blobs").out == "blobs: it comes with the package and is whole\n"


def test_check_counts_queries_where_there_are_any(root: Path, harness: Harness) -> None:
    items = [(label, "train", 9) for label in (1, 2)] + [(3, "query", 15), (3, "gallery", 15), (4, "gallery", 10)]
    lay_inshop(root / "In-shop", items, images="", write=draw)
    said = harness("data", "check", "inshop", "--data-root", str(root))
    assert said.code == 0, said.err
    assert "test: 2 classes, 40 images, 15 of them queries" in said.out


# --- download ---


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """An address on this machine and the folder it serves."""
    folder = tmp_path / "site"
    folder.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", folder
        server.shutdown()


def archive(configs: Path, site: tuple[str, Path], tmp_path: Path, each: int = 4, checksum: str = "") -> None:
    """CUB's layout in a .tgz on the site, and its address in the configuration."""
    url, folder = site
    lay_cub(tmp_path / "packed" / "CUB_200_2011", each=each, write=draw)
    with tarfile.open(folder / "birds.tgz", "w:gz") as packed:
        packed.add(tmp_path / "packed" / "CUB_200_2011", "CUB_200_2011")
    digest = checksum or f"md5:{hashlib.md5((folder / 'birds.tgz').read_bytes()).hexdigest()}"
    with (configs / "datasets" / "cub.toml").open("a") as file:
        file.write(f'[[archives]]\nurl = "{url}/birds.tgz"\nchecksum = "{digest}"\n')


def test_a_download_is_fetched_unpacked_and_counted(
    root: Path, small: Path, harness: Harness, tmp_path: Path, site: tuple[str, Path]
) -> None:
    archive(small, site, tmp_path)
    missing = harness("run", "--losses", "none", "--dataset", "cub", "--data-root", str(root))
    assert "To get it: harness data download cub; or by hand: https://example.org/cub, unpack it" in missing.err
    said = harness("data", "download", "cub", "--data-root", str(root))
    assert (said.code, said.err) == (0, "")
    assert said.out == f"cub: {root / 'CUB_200_2011'}; look into every image: harness data check cub\n"
    assert [file.name for file in root.iterdir()] == ["CUB_200_2011"]  # the archive itself is gone
    assert harness("data", "check", "cub", "--data-root", str(root)).code == 0
    (site[1] / "birds.tgz").unlink()
    again = harness("data", "download", "cub", "--data-root", str(root))
    assert (again.code, again.out) == (0, f"cub is there already: {root / 'CUB_200_2011'}\n")


def test_a_download_that_is_not_what_it_should_be_leaves_nothing(
    root: Path, small: Path, harness: Harness, tmp_path: Path, site: tuple[str, Path]
) -> None:
    archive(small, site, tmp_path, checksum=f"md5:{'0' * 32}")
    said = harness("data", "download", "cub", "--data-root", str(root))
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert f"not md5:{'0' * 32}: what came is removed" in said.err
    (site[1] / "birds.tgz").unlink()
    said = harness("data", "download", "cub", "--data-root", str(root))
    assert said.code == 2
    assert "HTTP 404" in said.err
    assert list(root.iterdir()) == []


def test_a_download_with_the_wrong_numbers_says_so(
    root: Path, small: Path, harness: Harness, tmp_path: Path, site: tuple[str, Path]
) -> None:
    archive(small, site, tmp_path, each=3)
    said = harness("data", "download", "cub", "--data-root", str(root))
    assert said.code == 2
    assert said.err == f"harness: cub: expected 12 training images, found 9 under {root / 'CUB_200_2011'}\n"


def test_what_no_program_can_download_is_told_how_to_get_by_hand(root: Path, harness: Harness, tmp_path: Path) -> None:
    said = harness("data", "download", "sop", "--data-root", str(root))
    assert (said.code, said.out) == (2, "")
    assert said.err == ("harness: sop cannot be downloaded by a program. By hand: https://example.org/sop, unpack it\n")
    assert not root.exists()
    assert harness("data", "download", "blobs").out == "blobs: it comes with the package\n"
    said = harness("data", "download", "cup")
    assert said.err.startswith("harness: no dataset named 'cup'; did you mean 'cub'?")


def test_a_data_root_that_cannot_be_written_is_told(
    root: Path, small: Path, harness: Harness, tmp_path: Path, site: tuple[str, Path]
) -> None:
    archive(small, site, tmp_path)
    (tmp_path / "file").write_text("")
    said = harness("data", "download", "cub", "--data-root", str(tmp_path / "file" / "below"))
    assert said.code == 2
    assert said.err.startswith(f"harness: cannot write to --data-root {tmp_path}/file/below: ")


# --- the cache ---


def test_caches_are_listed_and_removed(root: Path, harness: Harness, tmp_path: Path, own_cache: Path) -> None:
    empty = harness("data", "cache", "ls")
    assert empty.code == 0
    assert empty.out.endswith(f"in {own_cache}\n")
    spoil(photos(tmp_path / "photos"))
    words = ("run", "--losses", "none", "--dataset", str(tmp_path / "photos"), "--protocol", "tiny")
    assert harness(*words, "--skip-bad-images").code == 0
    (fingerprint,) = {one["trial"]["fingerprint"] for one in records(tmp_path)}
    name = f"photos-{fingerprint}-32x32"
    (row,) = (line for line in harness("data", "cache", "ls").out.splitlines() if line.startswith(name))
    assert row.split()[:3] == [name, "32", "3"]
    said = harness("data", "cache", "rm", "photo")
    assert said.code == 2
    assert said.err == f"harness: no image cache named 'photo' in {own_cache}; there are: {name}\n"
    said = harness("data", "cache", "rm", "photos")
    assert said.code == 0
    assert said.out.startswith(f"removed {name}, ")
    assert name not in harness("data", "cache", "ls").out
    assert not any(file.is_dir() for file in own_cache.iterdir())
    loading.forget()
    assert harness(*words, "--skip-bad-images", "--rerun").code == 0  # what is removed is built again
    assert harness("data", "cache", "rm", name).out.startswith(f"removed {name}")


def test_a_bad_image_that_is_mended_is_good_again_though_its_size_is_the_same(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    """The fingerprint knows sizes only, so the cache is the same one."""
    folder = photos(tmp_path / "photos")
    bad = sorted(folder.rglob("*.jpg"))[0]
    good = bad.read_bytes()
    bad.write_bytes(bytes(len(good)))
    said = harness("run", "--losses", "none", "--dataset", str(folder), "--protocol", "tiny")
    assert said.code == 1
    assert bad.name in said.err
    bad.write_bytes(good)
    assert harness("run", "--losses", "none", "--dataset", str(folder), "--protocol", "tiny").code == 0


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('layout = "folder"\nfolder = 3', "folder=3: must be a layout of files and the path"),
        ('layout = "embedded"\nfolder = "x"', "layout=embedded"),
        ('layout = "folder"\nfolder = "x"\nrecall_at = 3', "recall_at=3: must be a list"),
        ('layout = "folder"\nfolder = "x"\nrecall_at = [true]', "must be integers > 0 like"),
        ('layout = "folder"\nfolder = "x"\ntrain_classes = true', "train_classes=True: must be an integer"),
        ('layout = "folder"\nfolder = "x"\narchives = [{checksum = ""}]', "an entry of archives has no url"),
    ],
)
def test_a_mistake_in_a_users_toml_is_one_line(harness: Harness, tmp_path: Path, line: str, complaint: str) -> None:
    (tmp_path / "mine.toml").write_text(line)
    said = harness("run", "--dataset", str(tmp_path / "mine.toml"))
    assert said.code == 2
    assert complaint in said.err
    assert said.err.count("\n") == 1


def test_a_dataset_with_fewer_test_images_than_neighbours_asked_for_leaves_those_out(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    for label in range(4):
        for n in range(3):
            draw(tmp_path / "few" / f"thing{label}" / f"{n}.jpg", label)
    said = harness("run", "--losses", "none", "--dataset", str(tmp_path / "few"), "--protocol", "tiny")
    assert said.code == 0, said.err
    assert "R@4" in said.out
    assert "R@8" not in said.out  # 6 test images: 5 others


def test_another_split_seed_is_another_dataset(small: Path, harness: Harness, tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    ids = []
    for seed in (0, 7):
        lines = f'layout = "folder"\nfolder = "photos"\nprotocol = "tiny"\nsplit_seed = {seed}\n'
        (tmp_path / "mine.toml").write_text(lines)
        ids.append(harness("run", "--losses", "triplet", "--dataset", str(tmp_path / "mine.toml"), "--dry-run").out)
    assert ids[0].splitlines()[2] != ids[1].splitlines()[2]


@pytest.mark.parametrize("name", ["..", "/"])
def test_a_folder_is_named_by_what_it_is_not_by_dots(
    small: Path, harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    photos(tmp_path / "photos")
    monkeypatch.chdir(tmp_path / "photos" / "thing0")
    said = harness("run", "--losses", "none", "--dataset", f"./{name}" if name == ".." else name, "--protocol", "tiny")
    if name == "/":
        assert said.code == 2
        assert "has no name" in said.err
    else:
        assert said.code == 0
        assert (tmp_path / "results" / "runs" / "photos").is_dir()


def test_show_names_the_users_folder_and_what_was_skipped(small: Path, harness: Harness, tmp_path: Path) -> None:
    folder = photos(tmp_path / "my photos")
    sorted(folder.rglob("*.jpg"))[0].write_bytes(b"x")
    words = ("run", "--losses", "none", "--dataset", str(folder), "--protocol", "tiny", "--skip-bad-images")
    assert harness(*words).code == 0
    (one, *_) = (tmp_path / "results").glob("runs/*/*/*.json")
    command = harness("show", one.stem).out.split("Reproduce with:\n  ")[1]
    assert f"--dataset '{folder}'" in command
    assert "--skip-bad-images" in command


def test_an_archive_that_was_there_stays(
    root: Path, small: Path, harness: Harness, tmp_path: Path, site: tuple[str, Path]
) -> None:
    """What the user has fetched is the user's."""
    archive(small, site, tmp_path)
    root.mkdir(parents=True)
    (root / "birds.tgz").write_bytes((site[1] / "birds.tgz").read_bytes())
    assert harness("data", "download", "cub", "--data-root", str(root)).code == 0
    assert sorted(file.name for file in root.iterdir()) == ["CUB_200_2011", "birds.tgz"]


def test_a_folder_named_without_its_dot_is_pointed_out(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    said = harness("run", "--dataset", "photos")
    assert said.code == 2
    assert "for your own data write --dataset ./photos" in said.err
