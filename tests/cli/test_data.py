"""`harness data`: check, download and the cache, on small sets in the real layouts."""

import hashlib
import shutil
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import PIL
import pytest

from tests.conftest import Harness
from tests.data.factories import draw, lay_cub, lay_inshop, photos, records, spoil

pytestmark = pytest.mark.usefixtures("own_cache")


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


def test_check_lists_every_bad_image_with_its_reason_and_a_fix(root: Path, harness: Harness) -> None:
    lay_cub(root / "cub", each=4, write=draw)
    fine = harness("data", "check", "cub", "--data-root", str(root))
    assert (fine.code, fine.err) == (0, "")
    assert fine.out.splitlines()[1:] == [
        "training: 3 classes, 12 images",
        "test: 3 classes, 12 images",
        "every image can be read",
    ]
    assert fine.out.startswith(f"cub (CUB): {root / 'cub'}, fingerprint ")
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
    assert third.startswith(f"harness: {images}/011.Bird/Bird_1.jpg: not an image")
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
    assert "3 of 32 images cannot be read; replace the files, or run with" in said.err
    assert harness("data", "check", "blobs").out == "blobs: ships with the package; its checksum and counts are right\n"


def test_check_counts_queries_where_there_are_any(root: Path, harness: Harness) -> None:
    items = [(label, "train", 9) for label in (1, 2)] + [(3, "query", 15), (3, "gallery", 15), (4, "gallery", 10)]
    lay_inshop(root / "In-shop", items, images="", write=draw)
    said = harness("data", "check", "inshop", "--data-root", str(root))
    assert said.code == 0, said.err
    assert "test: 2 classes, 40 images, 15 of them queries" in said.out


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
    assert "or get it: harness data download cub\n" in missing.err
    said = harness("data", "download", "cub", "--data-root", str(root))
    assert (said.code, said.err) == (0, "")
    assert said.out == (f"cub: downloaded to {root / 'CUB_200_2011'}; check every image with: harness data check cub\n")
    assert [file.name for file in root.iterdir()] == ["CUB_200_2011"]  # the archive itself is gone
    assert harness("data", "check", "cub", "--data-root", str(root)).code == 0
    (site[1] / "birds.tgz").unlink()
    again = harness("data", "download", "cub", "--data-root", str(root))
    assert (again.code, again.out) == (0, f"cub: exists already in {root / 'CUB_200_2011'}\n")


def test_a_download_that_is_not_what_it_should_be_leaves_nothing(
    root: Path, small: Path, harness: Harness, tmp_path: Path, site: tuple[str, Path]
) -> None:
    archive(small, site, tmp_path, checksum=f"md5:{'0' * 32}")
    said = harness("data", "download", "cub", "--data-root", str(root))
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert f"not md5:{'0' * 32}; the download was removed" in said.err
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
    assert said.err == ("harness: sop: cannot be downloaded; get it by hand: https://example.org/sop, unpack it\n")
    assert not root.exists()
    assert harness("data", "download", "blobs").out == "blobs: ships with the package; nothing to download\n"
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


def test_caches_are_listed_and_removed(root: Path, harness: Harness, tmp_path: Path, own_cache: Path) -> None:
    empty = harness("data", "cache", "ls")
    assert empty.code == 0
    assert empty.out.endswith(f"in {own_cache}\n")
    spoil(photos(tmp_path / "photos"))
    words = ("run", "--losses", "none", "--dataset", str(tmp_path / "photos"), "--protocol", "tiny")
    assert harness(*words, "--skip-bad-images").code == 0
    (fingerprint,) = {record["trial"]["fingerprint"] for record in records(tmp_path)}
    name = f"photos-{fingerprint}-32x32"
    (row,) = (line for line in harness("data", "cache", "ls").out.splitlines() if line.startswith(name))
    assert row.split()[:3] == [name, "32", "3"]
    said = harness("data", "cache", "rm", "photo")
    assert said.code == 2
    assert said.err == f"harness: no image cache in {own_cache} named 'photo'; known: {name}\n"
    said = harness("data", "cache", "rm", "photos")
    assert said.code == 0
    assert said.out.startswith(f"removed {name}, ")
    assert name not in harness("data", "cache", "ls").out
    assert not any(file.is_dir() for file in own_cache.glob("photos-*"))
    assert harness(*words, "--skip-bad-images", "--rerun").code == 0  # what is removed is built again
    assert harness("data", "cache", "rm", name).out.startswith(f"removed {name}")


def test_an_archive_that_was_there_stays(
    root: Path, small: Path, harness: Harness, tmp_path: Path, site: tuple[str, Path]
) -> None:
    """What the user has fetched is the user's."""
    archive(small, site, tmp_path)
    root.mkdir(parents=True)
    (root / "birds.tgz").write_bytes((site[1] / "birds.tgz").read_bytes())
    assert harness("data", "download", "cub", "--data-root", str(root)).code == 0
    assert sorted(file.name for file in root.iterdir()) == ["CUB_200_2011", "birds.tgz"]


def test_a_resized_copy_says_what_made_it_and_whether_it_is_a_known_one(
    root: Path, small: Path, harness: Harness, tmp_path: Path
) -> None:
    lay_cub(root / "cub", each=4, write=draw)
    out = tmp_path / "smaller"
    words = ("data", "resize", "cub", "--short-side", "16", "--out", str(out), "--data-root", str(root))
    said = harness(*words)
    assert said.code == 0, said.err
    assert f"24 images in {out}, short side at most 16 px, Pillow {PIL.__version__} with libjpeg" in said.out
    fingerprint = said.out.partition("fingerprint ")[2].split()[0]
    assert harness("data", "check", "cub", "--data-root", str(out)).out.count(f"fingerprint {fingerprint}") == 1
    assert f"harness run --dataset cub --data-root {out}" in said.out
    toml = small / "datasets" / "cub.toml"
    before = toml.read_text()
    toml.write_text(f"{before}\n[resized]\n{fingerprint} = 16\n")
    assert f"fingerprint {fingerprint}: the copy of 16 px that" in harness(*words).out
    checked = harness("data", "check", "cub", "--data-root", str(out)).out
    assert f"fingerprint {fingerprint} (the copy with a short side of 16 px)" in checked
    toml.write_text(f"{before}\n[resized]\n0123456789ab = 16\n")
    assert f"fingerprint {fingerprint}: not 0123456789ab, the copy of 16 px that" in harness(*words).out
    said = harness("data", "resize", "cub", "--short-side", "0", "--out", "x", "--data-root", str(root))
    assert (said.code, said.err) == (2, "harness: --short-side 0: must be an integer >= 1\n")


def test_an_own_list_is_resized_with_its_list(small: Path, harness: Harness, tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    paths = sorted(path.relative_to(folder) for path in folder.rglob("*.jpg"))
    rows = "".join(f"{path},{path.parent.name}\n" for path in paths)
    (folder / "list.csv").write_text(f"path,label\n{rows}")
    out = tmp_path / "smaller"
    said = harness("data", "resize", str(folder / "list.csv"), "--short-side", "8", "--out", str(out))
    assert said.code == 0, said.err
    assert f"harness run --dataset {out / 'list.csv'}" in said.out
    assert harness("data", "check", str(out / "list.csv")).code == 0
