"""What is in an image cache, the room it needs, and how it is listed and removed."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from harness.data import cache, cache_building, images
from harness.data.listing import Listing
from harness.spec import UserError
from tests.data.factories import ASPECTS, expected, key, left_over, made, noise, picture, write_text


@pytest.mark.parametrize("aspect", ASPECTS)
def test_pixels_are_those_of_torchvisions_resize(things: Listing, aspect: str) -> None:
    built = made(key(aspect), things)
    for number, path in enumerate(things.paths):
        np.testing.assert_array_equal(picture(built, number), expected(things.folder / path, aspect), err_msg=path)


def test_images_lie_one_after_the_other_with_classes_paths_and_queries(things: Listing) -> None:
    queries = (False,) * 4 + (True, False, True, False)
    built = made(key("kept"), replace(things, queries=queries))
    sizes = 3 * built.heights * built.widths
    np.testing.assert_array_equal(built.offsets, [0, *sizes.cumsum()[:-1]])
    assert built.pixels.shape == (sizes.sum(),)
    assert built.pixels.dtype == np.uint8
    assert isinstance(built.pixels, np.memmap)
    assert built.paths == things.paths
    assert built.classes == things.classes
    assert built.train_classes == things.train_classes
    assert tuple(built.labels) == things.labels
    assert tuple(built.queries) == queries
    assert built.readable.all()
    assert built.bad == {}


def test_a_cache_is_three_files_whose_form_never_changes(things: Listing) -> None:
    """Caches of earlier versions stay valid as long as the schema is the same."""
    (things.folder / "003.png").unlink()
    made(key("kept"), things)
    folder = key("kept").folder
    assert sorted(file.name for file in folder.iterdir()) == ["about.json", "index.npz", "pixels"]
    about = json.loads((folder / "about.json").read_text())
    rest = {name: value for name, value in about.items() if name != "sha256"}
    assert about["sha256"] == sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    files = [sha256((things.folder / path).read_bytes()).digest() for path in things.paths if path != "003.png"]
    assert rest == {
        "schema": 2,
        "dataset": "things",
        "fingerprint": "f1",
        "resize": 16,
        "aspect": "kept",
        "classes": [f"class {path}" for path in things.paths],
        "train_classes": 4,
        "paths": list(things.paths),
        "bad": {"003.png": "the file is missing"},
        "contents": sha256(b"".join([*files[:3], bytes(32), *files[3:]])).hexdigest(),
        "copies": 0,
        "index": sha256((folder / "index.npz").read_bytes()).hexdigest(),
    }
    heights = [16, 21, 49, 0, 16, 16, 16, 33]  # the short side is 16; 40 * 16 / 30 = 21.3 is rounded down
    widths = [21, 16, 16, 0, 16, 28, 16, 16]
    with np.load(folder / "index.npz") as index:
        arrays = {name: (array.dtype.name, array.tolist()) for name, array in index.items() if name != "checksums"}
        checksums = [row.tobytes() for row in index["checksums"]]
    pixels = [expected(things.folder / path, "kept").tobytes() for path in things.paths if path != "003.png"]
    sums = [sha256(content).digest() for content in pixels]
    assert checksums == [*sums[:3], bytes(32), *sums[3:]]
    ends = np.cumsum([3 * height * width for height, width in zip(heights, widths, strict=True)]).tolist()
    assert arrays == {
        "offsets": ("int64", [0, *ends[:-1]]),
        "heights": ("int64", heights),
        "widths": ("int64", widths),
        "labels": ("int64", list(range(8))),
        "queries": ("bool", []),
        "readable": ("bool", [True, True, True, False, True, True, True, True]),
    }
    assert (folder / "pixels").stat().st_size == ends[-1]


def test_fingerprint_size_and_aspect_have_a_cache_each(things: Listing) -> None:
    keys = [key(), key("kept"), key(fingerprint="f2"), key(resize=17), key(dataset="other")]
    for cache_key in keys:
        assert cache.open_built(cache_key) is None
        made(cache_key, things)
    assert len(cache.summaries()) == len(keys)


def have(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=10**13, used=0, free=free))


def test_a_disk_that_is_too_small_is_told_with_both_sizes_and_the_variable(
    things: Listing, home: Path, decoded: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_key, needed = key(resize=1000), 8 * 3_000_000
    have(monkeypatch, needed - 1_000_000)
    message = (
        r"things: the image cache needs 24\.0 MB, .*cache has 23\.0 MB free; .*HARNESS_CACHE.*harness data cache ls"
    )
    with pytest.raises(UserError, match=message):
        list(cache_building.build(cache_key, things))
    assert not decoded
    assert left_over(home) == []
    have(monkeypatch, needed)
    made(cache_key, things)


def test_the_stanford_products_are_told_to_need_24_gigabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    products = Listing(tmp_path, tuple(map(str, range(120_053))), (), (), 0)
    cache_key = cache.Key("sop", "f1", 256, "square")
    needed = cache_building.estimate(cache_key, products)
    assert needed == 120_053 * 256 * 256 * 3
    assert cache.gigabytes(needed) == "23.6 GB"
    have(monkeypatch, 20 * 10**9)
    with pytest.raises(UserError, match=r"sop: the image cache needs 23\.6 GB, .* has 20\.0 GB free"):
        cache_building.check_disk(cache_key, needed)
    have(monkeypatch, 24 * 10**9)
    cache_building.check_disk(cache_key, needed)


def test_a_few_heads_tell_how_much_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = np.random.default_rng(1).integers(8, 25, (192, 2)).tolist()
    many = noise(tmp_path / "many", tuple((width, height) for width, height in shapes))
    opened: list[Path] = []
    size = images.size
    monkeypatch.setattr(images, "size", lambda file: opened.append(file) or size(file))
    needed = cache_building.estimate(key("kept"), many)
    assert 1 <= len(opened) <= 2 * cache_building.SAMPLE
    assert needed == pytest.approx(len(made(key("kept"), many).pixels), rel=0.1)


def test_what_killed_builds_of_other_datasets_left_makes_room_but_a_running_build_keeps_its_own(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, alive = home / "old-f0-16x16.0a1b.part", home / "busy-f0-16x16.0a1b.part"
    for part in (dead, alive):
        part.mkdir(parents=True)
    with FileLock(home / "busy-f0-16x16.lock"):
        cache_building.check_disk(key(), 1)
    assert not dead.exists()
    assert alive.exists()


@pytest.mark.parametrize("aspect", ASPECTS)
def test_a_bad_image_is_marked_and_the_others_are_not_moved(things: Listing, aspect: str) -> None:
    harm(things.folder)
    built = made(key(aspect), things)
    assert built.readable.tolist() == [number not in (1, 3, 6) for number in range(8)]
    assert list(built.bad) == ["001.png", "003.png", "006.png"]
    assert built.bad["001.png"] == "the file is missing"
    assert "not an image" in built.bad["003.png"]
    assert "truncated" in built.bad["006.png"]
    for number in built.readable.nonzero()[0]:
        file = things.folder / things.paths[number]
        np.testing.assert_array_equal(picture(built, number), expected(file, aspect))


def harm(folder: Path) -> None:
    (folder / "001.png").unlink()
    (folder / "003.png").write_text("not an image")
    (folder / "006.png").write_bytes((folder / "006.png").read_bytes()[:-2000])


def test_caches_lie_where_the_variables_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert key().folder == tmp_path / "cache" / "things-f1-16x16"
    assert key("kept").folder == tmp_path / "cache" / "things-f1-short16"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARNESS_CACHE", "near")
    assert cache.home() == tmp_path / "near"
    monkeypatch.setenv("HARNESS_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.home() == tmp_path / "xdg" / "metric-loss-harness"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert cache.home() == tmp_path / "me" / ".cache" / "metric-loss-harness"


def test_the_list_tells_images_bad_ones_and_bytes_but_no_part(things: Listing, home: Path) -> None:
    assert cache.summaries() == []
    (things.folder / "003.png").write_text("not an image")
    made(key(), things)
    shutil.copytree(key().folder, home / "things-f1-16x16.0a1b.part")
    (summary,) = cache.summaries()
    assert (summary.name, summary.images, summary.bad) == ("things-f1-16x16", 8, 1)
    assert summary.bytes == sum(file.stat().st_size for file in key().folder.iterdir())
    assert summary.bytes > 8 * 16 * 16 * 3


def test_a_dataset_is_removed_whole_and_one_with_a_longer_name_stays(things: Listing, home: Path) -> None:
    keys = [key(), key("kept"), key(fingerprint="f2"), key(dataset="things-more")]
    for cache_key in keys:
        made(cache_key, things)
    assert [summary.name for summary in cache.remove(["things-f2"])] == ["things-f2-16x16"]
    gone = cache.remove(["things", "things-f1-short16"])
    assert [summary.name for summary in gone] == ["things-f1-16x16", "things-f1-short16"]
    assert [summary.name for summary in cache.summaries()] == ["things-more-f1-16x16"]
    assert left_over(home) == []
    with pytest.raises(UserError, match=r"no image cache in .* named 'things'; .*nown: things-more-f1-16x16"):
        cache.remove(["things-more", "things"])
    assert len(cache.summaries()) == 1


def test_a_cache_that_cannot_be_understood_is_listed_and_can_be_removed(things: Listing) -> None:
    for name, about in (("torn-f1-16x16", "{"), ("other-f1-16x16", '{"schema": 0}')):
        (cache.home() / name).mkdir(parents=True)
        (cache.home() / name / "about.json").write_text(about)
    assert [summary.name for summary in cache.summaries()] == ["other-f1-16x16", "torn-f1-16x16"]
    cache.remove(["torn", "other"])
    assert cache.summaries() == []


def test_folders_that_are_no_caches_are_neither_listed_nor_removed(things: Listing, home: Path) -> None:
    for name in ("my-own-folder", "things-f2-16x16", "things-2020-pictures"):
        write_text(home / name / "notes.txt", "mine")
    write_text(home / "my-own-folder" / "pixels", "mine")
    made(key(), things)
    assert [summary.name for summary in cache.summaries()] == ["things-f1-16x16"]
    assert [summary.name for summary in cache.remove(["things"])] == ["things-f1-16x16"]
    assert len(list(home.glob("*/notes.txt"))) == 3


def test_a_removal_that_is_cut_short_leaves_nothing_that_opens(
    things: Listing, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(key(), things)

    def cut_short(folder: Path, **_: Any) -> None:
        (folder / "pixels").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", cut_short)
        with pytest.raises(KeyboardInterrupt):
            cache.remove(["things"])
    assert cache.summaries() == []
    made(key(), things)
    assert left_over(home) == []
