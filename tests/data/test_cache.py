"""The image cache: its pixels are torchvision's, it is built once whoever asks, and nothing broken is ever opened."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from PIL import Image
from torchvision.transforms import v2

from harness import config, plan
from harness.data import cache, folds, images, listing, loading
from harness.data.listing import Listing
from harness.spec import Dataset, Experiment, Trial, UserError

SIZES = ((40, 30), (30, 40), (23, 71), (71, 23), (16, 16), (9, 5), (50, 50), (16, 33))  # width, height
ASPECTS = ("square", "kept")

# A build in a process of its own: each decode is noted, and from the third on waits for the file `go`.
BUILD = """
import sys, time
from pathlib import Path
from harness.data import cache, images
from harness.data.listing import Listing

folder, notes, go, aspect = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4]
paths = tuple(sorted(file.name for file in folder.iterdir()))
read = images.read

def slowly(file, *rest):
    with open(notes, "a") as stream:
        stream.write(f"{file.name}\\n")
    while not go.exists() and file.name not in paths[:2]:
        time.sleep(0.01)
    return read(file, *rest)

images.read = slowly
listing = Listing(folder, paths, tuple(range(len(paths))), paths, 4)
for done in cache.build(cache.Key("things", "f1", 16, aspect), listing):
    pass
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    loading.forget()
    yield tmp_path / "cache"
    loading.forget()


@pytest.fixture
def things(tmp_path: Path) -> Listing:
    """Eight images of noise, each of its own size and class."""
    return noise(tmp_path / "things", SIZES)


def noise(folder: Path, sizes: tuple[tuple[int, int], ...]) -> Listing:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    paths = tuple(f"{number:03}.png" for number in range(len(sizes)))
    for path, (width, height) in zip(paths, sizes, strict=True):
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(folder / path)
    return Listing(folder, paths, tuple(range(len(sizes))), tuple(f"class {path}" for path in paths), len(sizes) // 2)


def key(aspect: str = "square", **other: Any) -> cache.Key:
    return replace(cache.Key("things", "f1", 16, aspect), **other)


def made(one: cache.Key, found: Listing) -> cache.Built:
    list(cache.build(one, found))
    built = cache.open_built(one)
    assert built is not None
    return built


def picture(built: cache.Built, number: int) -> np.ndarray:
    height, width, begin = (int(row[number]) for row in (built.heights, built.widths, built.offsets))
    return np.array(built.pixels[begin : begin + 3 * height * width]).reshape(height, width, 3)


def expected(file: Path, aspect: str, size: int = 16) -> np.ndarray:
    with Image.open(file) as image:
        return np.asarray(v2.Resize((size, size) if aspect == "square" else size)(image.convert("RGB")))


def left_over(home: Path) -> list[str]:
    """What lies beside whole caches and locks."""
    return [one.name for one in home.iterdir() if one.suffix != ".lock" and not (one / "about.json").exists()] + [
        one.name for one in home.glob("*.part")
    ]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each image was decoded."""
    counts: Counter[str] = Counter()
    read = images.read

    def counted(file: Path, *rest: Any) -> np.ndarray:
        counts[file.name] += 1
        return read(file, *rest)

    monkeypatch.setattr(images, "read", counted)
    return counts


# --- what is in it ---


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


def test_fingerprint_size_and_aspect_have_a_cache_each(things: Listing) -> None:
    keys = [key(), key("kept"), key(fingerprint="f2"), key(resize=17), key(dataset="other")]
    for one in keys:
        assert cache.open_built(one) is None
        made(one, things)
    assert len(cache.entries()) == len(keys)


@pytest.mark.parametrize("aspect", ASPECTS)
def test_a_cache_needs_the_original_files_no_more(things: Listing, aspect: str) -> None:
    dataset = own(things.folder.parent)
    whole = load(dataset, aspect)
    shutil.rmtree(dataset.folder)
    loading.forget()
    again = load(dataset, aspect)
    assert np.array_equal(whole.pixels, again.pixels)
    assert whole.paths == again.paths == tuple(f"class {n // 2}/{n:03}.png" for n in range(8))


# --- it is built once ---


@pytest.mark.parametrize("aspect", ASPECTS)
def test_each_image_is_decoded_once_and_never_again(things: Listing, decoded: Counter[str], aspect: str) -> None:
    steps = list(cache.build(key(aspect), things))
    assert steps[-1] == len(things.paths)
    assert decoded == dict.fromkeys(things.paths, 1)
    assert list(cache.build(key(aspect), things)) == []
    assert decoded == dict.fromkeys(things.paths, 1)


def test_progress_counts_the_images_that_are_done(things: Listing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "BLOCK", 3)
    assert [done for done in cache.build(key(), things) if done] == [3, 6, 8]


def test_images_are_decoded_in_parallel(things: Listing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    read, two = images.read, threading.Barrier(2)

    def together(*arguments: Any) -> np.ndarray:
        two.wait(timeout=10)  # passes only when two are decoding
        return read(*arguments)

    monkeypatch.setattr(images, "read", together)
    made(key(), things)


def test_two_threads_that_build_at_the_same_time_decode_once(things: Listing, decoded: Counter[str]) -> None:
    start, seen = threading.Barrier(2), []

    def build() -> None:
        start.wait()
        seen.append(made(key(), things).pixels.tobytes())

    threads = [threading.Thread(target=build) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert decoded == dict.fromkeys(things.paths, 1)


class Other:
    """Another process that builds the same cache, and stops in the middle until it is told to go on."""

    def __init__(self, found: Listing, place: Path, aspect: str) -> None:
        self.notes, self.go = place / "notes", place / "go"
        words = [sys.executable, "-c", BUILD, *map(str, (found.folder, self.notes, self.go, aspect))]
        self.process = subprocess.Popen(words, cwd=Path(__file__).parent.parent.parent)
        until(lambda: len(self.decoded) > 2)

    @property
    def decoded(self) -> list[str]:
        return self.notes.read_text().split() if self.notes.exists() else []


@pytest.fixture
def other(things: Listing, tmp_path: Path) -> Iterator[Callable[..., Other]]:
    started: list[Other] = []

    def start(aspect: str = "square") -> Other:
        started.append(Other(things, tmp_path, aspect))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()


def until(true: Callable[[], bool], seconds: float = 30) -> None:
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit, "it never came"
        time.sleep(0.01)


def test_who_comes_second_waits_says_so_with_zeros_and_finds_it_built(
    things: Listing, other: Callable[..., Other], decoded: Counter[str]
) -> None:
    first = other()
    second = cache.build(key(), things)
    assert next(second) == 0
    assert cache.open_built(key()) is None
    first.go.touch()
    assert set(second) <= {0}
    assert first.process.wait(timeout=30) == 0
    assert Counter(first.decoded) == dict.fromkeys(things.paths, 1)
    assert not decoded
    assert cache.open_built(key()) is not None


@pytest.mark.parametrize("aspect", ASPECTS)
def test_a_killed_build_leaves_nothing_that_opens_and_the_next_one_clears_it_away(
    things: Listing, other: Callable[..., Other], home: Path, decoded: Counter[str], aspect: str
) -> None:
    first = other(aspect)
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    (part,) = home.glob("*.part")
    assert (part / "pixels").exists()
    assert cache.open_built(key(aspect)) is None
    assert cache.entries() == []
    built = made(key(aspect), things)
    assert decoded == dict.fromkeys(things.paths, 1)
    assert left_over(home) == []
    np.testing.assert_array_equal(picture(built, 7), expected(things.folder / things.paths[7], aspect))


def test_a_build_that_is_closed_leaves_nothing_and_frees_its_lock(
    things: Listing, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "BLOCK", 2)
    building = cache.build(key(), things)
    while not next(building):
        pass
    assert len(list(home.glob("*.part"))) == 1
    closing = threading.Thread(target=building.close)  # type: ignore[attr-defined]  # as a worker that is torn down
    closing.start()
    closing.join()
    assert left_over(home) == []
    assert cache.open_built(key()) is None
    with FileLock(f"{key().folder}.lock").acquire(timeout=0):
        pass
    made(key(), things)


@pytest.mark.parametrize("damage", ["another schema", "broken about", "no index", "no pixels", "pixels cut off"])
def test_a_cache_of_another_schema_or_one_that_is_not_whole_is_built_again(
    things: Listing, home: Path, decoded: Counter[str], damage: str
) -> None:
    made(key(), things)
    folder = key().folder
    match damage:
        case "another schema":
            about = {**json.loads((folder / "about.json").read_text()), "schema": cache.SCHEMA + 1}
            (folder / "about.json").write_text(json.dumps(about))
        case "broken about":
            (folder / "about.json").write_text("")
        case "no index":
            (folder / "index.npz").unlink()
        case "no pixels":
            (folder / "pixels").unlink()
        case "pixels cut off":
            os.truncate(folder / "pixels", (folder / "pixels").stat().st_size - 1)
    assert cache.open_built(key()) is None
    assert len(made(key(), things).pixels) == 8 * 16 * 16 * 3
    assert decoded == dict.fromkeys(things.paths, 2)
    assert left_over(home) == []


# --- room for it ---


def have(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=10**13, used=0, free=free))


def test_a_disk_that_is_too_small_is_told_with_both_sizes_and_the_variable(
    things: Listing, home: Path, decoded: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, needed = key(resize=1000), 8 * 3_000_000
    have(monkeypatch, needed - 1_000_000)
    told = r"things: the image cache needs 24\.0 MB, .*cache has 23\.0 MB free; .*HARNESS_CACHE.*harness data cache ls"
    with pytest.raises(UserError, match=told):
        list(cache.build(one, things))
    assert not decoded
    assert left_over(home) == []
    have(monkeypatch, needed)
    made(one, things)


def test_the_stanford_products_are_told_to_need_24_gigabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    products = Listing(tmp_path, tuple(map(str, range(120_053))), (), (), 0)
    one = cache.Key("sop", "f1", 256, "square")
    needed = cache.estimate(one, products)
    assert needed == 120_053 * 256 * 256 * 3
    assert cache.gigabytes(needed) == "23.6 GB"
    have(monkeypatch, 20 * 10**9)
    with pytest.raises(UserError, match=r"sop: the image cache needs 23\.6 GB, .* has 20\.0 GB free"):
        cache.check_disk(one, needed)
    have(monkeypatch, 24 * 10**9)
    cache.check_disk(one, needed)


def test_a_few_heads_tell_how_much_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = np.random.default_rng(1).integers(8, 25, (192, 2)).tolist()
    many = noise(tmp_path / "many", tuple((width, height) for width, height in shapes))
    opened: list[Path] = []
    size = images.size
    monkeypatch.setattr(images, "size", lambda file: opened.append(file) or size(file))
    needed = cache.estimate(key("kept"), many)
    assert 1 <= len(opened) <= 2 * cache.SAMPLE
    assert needed == pytest.approx(len(made(key("kept"), many).pixels), rel=0.1)


def test_what_killed_builds_of_other_datasets_left_makes_room_but_a_running_build_keeps_its_own(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, alive = home / "old-f0-16x16.0a1b.part", home / "busy-f0-16x16.0a1b.part"
    for part in (dead, alive):
        part.mkdir(parents=True)
    with FileLock(home / "busy-f0-16x16.lock"):
        cache.check_disk(key(), 1)
    assert not dead.exists()
    assert alive.exists()


# --- what can go wrong while writing ---


def no_room(*_: Any) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("call", "fails"),
    [("pwrite", no_room), ("pwrite", lambda _, content, __: len(content) // 2), ("posix_fallocate", no_room)],
)
def test_a_disk_that_fills_up_is_a_users_error_and_nothing_stays(
    things: Listing, home: Path, monkeypatch: pytest.MonkeyPatch, call: str, fails: Callable[..., int]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        with pytest.raises(UserError, match=r"cannot write the image cache .*things-f1-16x16: No space left on device"):
            list(cache.build(key(), things))
    assert left_over(home) == []
    assert cache.open_built(key()) is None
    made(key(), things)


def test_a_place_that_cannot_be_written_is_named_with_its_variable(
    things: Listing, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(FileLock, "acquire", refuse)
        with pytest.raises(UserError, match=r"cannot write .* to .*cache \(HARNESS_CACHE\): Permission denied"):
            list(cache.build(key(), things))
    shutil.rmtree(home)
    home.write_text("a file where a folder should be")
    with pytest.raises(UserError, match=r"cannot write .* to .*cache \(HARNESS_CACHE\): File exists"):
        list(cache.build(key(), things))


# --- images that cannot be read ---


def own(folder: Path) -> Dataset:
    """A user's own dataset of four classes, of two images each, from what `things` has."""
    target = folder / "own"
    for number, file in enumerate(sorted((folder / "things").iterdir())):
        (target / f"class {number // 2}").mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target / f"class {number // 2}" / file.name)
    return listing.identify(replace(config.dataset(str(target)), protocol="quick"), Path())


def trial(dataset: Dataset, aspect: str) -> Trial:
    settings = {"resize": 16, "crop": 16, "aspect": aspect, "augment": "none"}
    asked = Experiment(dataset, config.protocol("quick"), (config.loss("triplet"),), settings=settings)
    return plan.final(asked, {})[0]


def finish(steps: Generator[tuple[int, int], None, folds.Images]) -> folds.Images:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def load(dataset: Dataset, aspect: str, *, skip_bad: bool = False) -> folds.Images:
    return finish(loading.load(dataset, trial(dataset, aspect), "", skip_bad=skip_bad))


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


@pytest.mark.parametrize("aspect", ASPECTS)
def test_bad_images_stop_a_run_unless_it_is_asked_to_go_on_without(things: Listing, aspect: str) -> None:
    (things.folder / "003.png").write_text("not an image")
    dataset = own(things.folder.parent)
    with pytest.raises(UserError, match=r"class 1/003\.png cannot be read, one of 1;.*--skip-bad-images"):
        load(dataset, aspect)
    without = load(dataset, aspect, skip_bad=True)
    assert without.skipped == ("class 1/003.png",)
    assert without.labels.tolist() == [0, 0, 1, 2, 2, 3, 3]
    assert len(without.paths) == len(without.offsets) == len(without.heights) == len(without.widths) == 7
    for number, path in enumerate(without.paths):
        np.testing.assert_array_equal(without.one(number), expected(Path(dataset.folder) / path, aspect))
    with pytest.raises(UserError, match="cannot be read"):  # what one trial may skip, the next one may not
        load(dataset, aspect)


@pytest.mark.parametrize("aspect", ASPECTS)
def test_a_dataset_without_one_good_image_says_so(things: Listing, aspect: str) -> None:
    for path in things.paths:
        (things.folder / path).write_text("not an image")
    with pytest.raises(UserError, match="cannot be read, one of 8"):
        load(own(things.folder.parent), aspect)


# --- where caches lie, and how they are removed ---


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
    assert cache.entries() == []
    (things.folder / "003.png").write_text("not an image")
    made(key(), things)
    shutil.copytree(key().folder, home / "things-f1-16x16.0a1b.part")
    (one,) = cache.entries()
    assert (one.name, one.images, one.bad) == ("things-f1-16x16", 8, 1)
    assert one.bytes == sum(file.stat().st_size for file in key().folder.iterdir())
    assert one.bytes > 8 * 16 * 16 * 3


def test_a_dataset_is_removed_whole_and_one_with_a_longer_name_stays(things: Listing, home: Path) -> None:
    keys = [key(), key("kept"), key(fingerprint="f2"), key(dataset="things-more")]
    for one in keys:
        made(one, things)
    assert [one.name for one in cache.remove(["things-f2"])] == ["things-f2-16x16"]
    gone = cache.remove(["things", "things-f1-short16"])
    assert [one.name for one in gone] == ["things-f1-16x16", "things-f1-short16"]
    assert [one.name for one in cache.entries()] == ["things-more-f1-16x16"]
    assert left_over(home) == []
    with pytest.raises(UserError, match=r"no image cache named 'things' in .*; there are: things-more-f1-16x16"):
        cache.remove(["things-more", "things"])
    assert len(cache.entries()) == 1


def test_a_cache_that_cannot_be_understood_is_listed_and_can_be_removed(things: Listing) -> None:
    for name, about in (("torn-f1-16x16", "{"), ("other-f1-16x16", '{"schema": 0}')):
        (cache.home() / name).mkdir(parents=True)
        (cache.home() / name / "about.json").write_text(about)
    assert [one.name for one in cache.entries()] == ["other-f1-16x16", "torn-f1-16x16"]
    cache.remove(["torn", "other"])
    assert cache.entries() == []


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
    assert cache.entries() == []
    made(key(), things)
    assert left_over(home) == []
