"""Images that are not what they were, that are listed twice, and lists that cannot be right."""

import json
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import config
from harness.data import cache, images, listing, stamps
from harness.data.readers import LAYOUTS
from harness.execution import local
from harness.spec import Job, UserError
from tests.conftest import Harness
from tests.data.factories import describe, lay_cub, paint, pictures, records, scores, special_file

pytestmark = pytest.mark.usefixtures("own_cache", "small")

TINY = ("--losses", "triplet", "--protocol", "tiny", "--weights", "none")


def write_list(file: Path, folder: Path, train: str) -> Path:
    """A list of the pictures in which the classes with these digits train."""
    rows = [
        f"{image.relative_to(file.parent)},{image.parent.name},{'train' if image.parent.name[1] in train else 'test'}"
        for image in sorted(folder.rglob("*.bmp"))
    ]
    file.write_text("path,label,split\n" + "\n".join(rows) + "\n")
    return file


# --- the split of a user's own list ---


@pytest.mark.fault(
    "a .csv list whose training and test classes are swapped, with the old results and the old image cache",
    "another dataset: other ids, trained and tested on the new split",
)
def test_swapped_sides_of_a_list_are_another_dataset(harness: Harness, tmp_path: Path) -> None:
    folder = pictures(tmp_path / "pictures")
    listed = write_list(tmp_path / "list.csv", folder, "0123")
    assert harness("run", "--dataset", str(listed), *TINY).code == 0
    before = scores(tmp_path)
    write_list(listed, folder, "4567")
    assert harness("run", "--dataset", str(listed), *TINY).code == 0
    both = scores(tmp_path)
    assert len(both) == 2
    (id,) = set(both) - set(before)
    # the truth: the same pictures in a place of their own, where nothing is stored
    fresh = write_list(tmp_path / "list.csv", folder, "4567")
    assert harness("run", "--dataset", str(fresh), *TINY, "--results", str(tmp_path / "fresh" / "results")).code == 0
    assert scores(tmp_path / "fresh") == {id: both[id]}


# --- lists and folders that cannot be right ---


@pytest.mark.fault(
    "a pipe, a socket, a folder or a device called x.png, in a class folder and in a list",
    "refused in one line that names it, exit 2; never opened",
)
@pytest.mark.parametrize("kind", ["a pipe", "a socket", "a folder", "a device"])
@pytest.mark.parametrize("form", ["folder", "list"])
def test_what_is_no_file_is_refused_and_not_opened(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, form: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = pictures(tmp_path / "pictures")
    special_file(folder / "c1" / "x.png", kind)
    if form == "list":
        (folder / "c1" / "x.png").rename(folder / "c1" / "x.bmp")
    dataset = folder if form == "folder" else write_list(tmp_path / "list.csv", folder, "0123")
    image = folder / "c1" / ("x.png" if form == "folder" else "x.bmp")
    expected = f"harness: {image}: is {kind}, not a file; remove it, or take it off the list\n"
    for words in (("run", "--dataset", str(dataset), *TINY), ("data", "check", str(dataset))):
        said = harness(*words)
        assert (said.code, said.err) == (2, expected)
    with pytest.raises(images.BadImageError, match=f"{kind}, not a file"):
        images.read(image)


@pytest.mark.fault("a pipe in the place of a .csv list or of a .toml", "one line, exit 2; never opened")
@pytest.mark.parametrize("name", ["list.csv", "mine.toml"])
def test_a_list_that_is_no_file_is_not_opened(harness: Harness, tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    said = harness("run", "--dataset", str(tmp_path / name), *TINY)
    assert (said.code, said.err) == (2, f"harness: cannot read {tmp_path / name}: it is not a file\n")


@pytest.mark.fault("a pipe in the place of a list of a shipped dataset", "one line; never opened")
@pytest.mark.parametrize(("layout", "name"), [("cub", "images.txt"), ("cars", "cars_annos.mat")])
def test_a_shipped_datasets_list_that_is_no_file_is_not_opened(tmp_path: Path, layout: str, name: str) -> None:
    (tmp_path / "car_ims").mkdir()
    (tmp_path / "image_class_labels.txt").touch()
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match=f"cannot read {tmp_path / name}: it is not a file"):
        list(LAYOUTS[layout].reader(tmp_path))


@pytest.mark.fault("a NUL byte in a path of a .csv list", "one line that names the list and the line, exit 2")
def test_a_nul_byte_in_a_list_is_one_line(harness: Harness, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_bytes(b"path,label\na.png,a\nb\0.png,b\n")
    said = harness("run", "--dataset", str(tmp_path / "list.csv"), *TINY)
    complaint = f"harness: cannot read {tmp_path / 'list.csv'}: line 3 contains a NUL byte\n"
    assert (said.code, said.err) == (2, complaint)


BAD_TOML = {
    "5,000 nested lists": (f"recall_at = {'[' * 5000}{']' * 5000}", "its values are nested too deeply"),
    "an integer of 5,000 digits": (f"train_classes = {'9' * 5000}", "5000 digits"),
    "a hexadecimal one": (f"train_classes = 0x{'f' * 5000}", "it has an integer of more than 64 bits"),
    "one in a list": (f"recall_at = [1, {2**63}]", "it has an integer of more than 64 bits"),
    "an escape sequence in the title": (r'title = "\u001b[31mred"', "must be one line without control characters"),
    "NUL in the title": (r'title = "a\u0000b"', "must be one line without control characters"),
    "a title that turns the line around": (r'title = "a\u202eb"', "must be one line without control characters"),
    "a raw NUL": ('title = "a\0b"', "line 3 contains a NUL byte"),
}


@pytest.mark.fault(
    "a dataset's .toml: 5,000 nested lists, huge integers, control characters in the title", "one line, exit 2"
)
@pytest.mark.parametrize(("line", "complaint"), BAD_TOML.values(), ids=BAD_TOML)
def test_a_toml_that_no_reader_survives_is_one_line(
    harness: Harness, tmp_path: Path, line: str, complaint: str
) -> None:
    (tmp_path / "mine.toml").write_text(f'layout = "folder"\nfolder = "pictures"\n{line}\n')
    said = harness("run", "--dataset", str(tmp_path / "mine.toml"), *TINY)
    assert said.code == 2
    assert complaint in said.err
    assert said.err.count("\n") == 1
    assert said.err.removesuffix("\n").isprintable()


@pytest.mark.fault(
    "an image that cannot be read, in data given by a path with a space, or by a .toml", "the command in the hint works"
)
@pytest.mark.parametrize("name", ["my pictures", "mine.toml"])
def test_the_hint_of_a_bad_image_names_a_command_that_works(harness: Harness, tmp_path: Path, name: str) -> None:
    folder = pictures(tmp_path / "my pictures")
    (folder / "c1" / "2.bmp").write_text("not an image")
    (tmp_path / "mine.toml").write_text('layout = "folder"\nfolder = "my pictures"\n')
    said = harness("run", "--dataset", str(tmp_path / name), *TINY)
    assert said.code == 2
    hint = said.err.partition("list them with harness ")[2].partition(", or")[0]
    checked = harness(*shlex.split(hint))
    assert checked.code == 1
    assert f"{folder / 'c1' / '2.bmp'}: not an image" in checked.err


@pytest.mark.fault(
    "a dataset's folder whose name is not UTF-8: its result could never be read back",
    "one line, exit 2, before training",
)
def test_a_folder_whose_name_no_record_can_hold_is_refused(harness: Harness, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    said = harness("run", "--dataset", str(pictures(folder)), *TINY)
    assert said.code == 2
    assert "caf\\udce9': its path is not UTF-8 text; rename the folder or the file" in said.err
    assert said.err.count("\n") == 1


# --- an image under two names ---


def second_name(image: Path, kind: str, folder: Path) -> str:
    """Another name of the image, as a list in the folder would have it."""
    match kind:
        case "an absolute path":
            return str(image)
        case "a link":
            (folder / "link.bmp").symlink_to(image)
            return "link.bmp"
        case "a linked folder":
            (folder / "other").symlink_to(image.parent)
            return f"other/{image.name}"
        case _:
            os.link(image, folder / "hard.bmp")
            return "hard.bmp"


@pytest.mark.fault(
    "an image that a list has twice: by an absolute path, by a link, through a linked folder, by a hard link",
    "refused in one line that names both, exit 2: it would find itself",
)
@pytest.mark.parametrize("kind", ["an absolute path", "a link", "a linked folder", "a hard link"])
def test_an_image_under_two_names_is_refused(harness: Harness, tmp_path: Path, kind: str) -> None:
    folder = pictures(tmp_path / "pictures")
    listed = write_list(tmp_path / "list.csv", folder, "0123")
    again = second_name(folder / "c6" / "2.bmp", kind, tmp_path)
    listed.write_text(f"{listed.read_text()}{again},c6,test\n")
    said = harness("run", "--dataset", str(listed), *TINY)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert f"list.csv: pictures/c6/2.bmp and {again} are one file under {tmp_path}" in said.err


@pytest.mark.fault("a drive on which all files have the same inode", "no image is taken for another one")
def test_equal_inodes_alone_do_not_make_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, stat = pictures(tmp_path / "pictures"), os.stat

    def without_inodes(*arguments: Any, **options: Any) -> os.stat_result:
        found = stat(*arguments, **options)
        return os.stat_result((found[0], 0, *found[2:]), {"st_mtime_ns": 0, "st_ctime_ns": 0})

    monkeypatch.setattr(os, "stat", without_inodes)
    assert listing.identify(config.dataset(str(folder)), tmp_path).fingerprint


# --- images that are not what they were ---


@pytest.mark.fault(
    "all test images of a folder of BMPs replaced by others of the same size, after a run",
    "one line, exit 2: the stored results are of other images; --rerun and another --results measure the new ones",
)
def test_other_pixels_of_the_same_size_are_other_images(harness: Harness, tmp_path: Path) -> None:
    folder = pictures(tmp_path / "pictures")
    words = ("run", "--dataset", str(folder), *TINY)
    assert harness(*words).code == 0
    before = scores(tmp_path)
    for label in range(4, 8):
        for n in range(4):
            paint(folder / f"c{label}" / f"{n}.bmp", 5000 + 4 * label + n)
    said = harness(*words)
    assert (said.code, said.out) == (2, "")
    assert said.err == (
        "harness: pictures: the stored results of this run are of other images; use another --results, or --rerun to "
        "replace them\n"
    )
    assert harness(*words, "--dry-run").code == 2
    fresh = harness(*words, "--results", str(tmp_path / "fresh" / "results"))
    assert fresh.code == 0
    assert "holds other images than the files do now; made again" in fresh.err
    assert scores(tmp_path / "fresh").keys() == before.keys()
    assert scores(tmp_path / "fresh") != before
    assert harness(*words, "--rerun").code == 0
    assert scores(tmp_path) == scores(tmp_path / "fresh")
    assert harness(*words).code == 0


@pytest.mark.fault("one pixel changed at equal size, and the file's time stamp set back", "noticed: one line, exit 2")
def test_a_time_stamp_that_is_set_back_hides_nothing(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stamps, "SETTLED", 0)  # else a file as new as these would be read again in any case
    folder = pictures(tmp_path / "pictures")
    words = ("run", "--dataset", str(folder), *TINY)
    assert harness(*words).code == 0
    image = folder / "c5" / "1.bmp"
    before, content = image.stat(), bytearray(image.read_bytes())
    content[-1] ^= 1
    image.write_bytes(content)
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert harness(*words).code == 2


@pytest.mark.fault(
    "images replaced by others of the same size between two grids, whose cells share a stored pre-training",
    "one line, exit 2: the second grid would begin with a network that was trained on other images",
)
def test_a_pretraining_on_other_images_is_not_begun_with(harness: Harness, tmp_path: Path) -> None:
    folder = pictures(tmp_path / "pictures", classes=16)
    words = ("run", "--dataset", str(folder), *TINY, "--set", "pretrain_epochs=1", "--grid")
    assert harness(*words, "triplet.margin=0.1").code == 0
    paint(folder / "c3" / "0.bmp", 5000)
    other = (*words, "triplet.margin=0.3")
    for more in (("--dry-run",), ()):
        said = harness(*other, *more)
        assert said.code == 2
        assert "pictures: the stored results of this run are of other images" in said.err
    assert harness(*other, "--rerun").code == 0
    digests = [record["provenance"]["data_sha256"] for record in records(tmp_path)]
    assert len(digests) == 3
    assert len(set(digests)) == 2  # the pre-training was made again


@pytest.mark.fault(
    "two folders of the same name, with the same file names and sizes and other pictures, in one results folder",
    "one line, exit 2; each with results of its own has its own numbers, whatever is in the image cache",
)
def test_two_folders_of_one_name_are_told_apart(harness: Harness, tmp_path: Path) -> None:
    one, two = (pictures(tmp_path / place / "photo", seed=seed) for seed, place in enumerate("xy"))
    words = ("run", *TINY)
    assert harness(*words, "--dataset", str(one)).code == 0
    said = harness(*words, "--dataset", str(two))
    assert said.code == 2
    assert "are of other images" in said.err
    truths = {}
    for place, folder in (("x", one), ("y", two), ("x again", one)):
        results = tmp_path / place / "results"
        assert harness(*words, "--dataset", str(folder), "--results", str(results)).code == 0
        truths[place] = scores(tmp_path / place)
    assert truths["x"] == truths["x again"] == scores(tmp_path)
    assert truths["x"].keys() == truths["y"].keys()
    assert truths["x"] != truths["y"]


@pytest.mark.fault(
    "files touched, and the whole folder copied, without a change of contents", "read again; everything is stored"
)
def test_files_that_only_look_new_are_the_same_images(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stamps, "SETTLED", 0)
    folder = pictures(tmp_path / "x" / "pictures")
    assert harness("run", "--dataset", str(folder), *TINY).code == 0
    for image in folder.rglob("*.bmp"):
        image.touch()
    shutil.copytree(folder, tmp_path / "y" / "pictures")
    for place in ("x", "y"):
        said = harness("run", "--dataset", str(tmp_path / place / "pictures"), *TINY)
        assert (said.code, said.err) == (0, "")


@pytest.mark.fault("stored results from before contents were recorded", "they count as stored")
def test_results_without_a_digest_count_as_stored(harness: Harness, tmp_path: Path) -> None:
    folder = pictures(tmp_path / "pictures")
    assert harness("run", "--dataset", str(folder), *TINY).code == 0
    for file in (tmp_path / "results" / "runs").rglob("*.json"):
        record = json.loads(file.read_text())
        assert len(record["provenance"].pop("data_sha256")) == 64
        file.write_text(json.dumps(record))
    paint(folder / "c6" / "0.bmp", 9999)
    said = harness("run", "--dataset", str(folder), *TINY)
    assert (said.code, said.err) == (0, "")


@pytest.mark.fault(
    "a shipped dataset, one image of which changes at equal size after a run", "as with a user's own: exit 2"
)
def test_a_changed_image_of_a_shipped_dataset_is_noticed(small: Path, harness: Harness, tmp_path: Path) -> None:
    describe(small, "cub", "CUB_200_2011", (1, 2, 4, 8))
    lay_cub(tmp_path / "cub", each=4, write=paint)
    words = ("run", "--dataset", "cub", "--data-root", str(tmp_path), *TINY)
    assert harness(*words).code == 0
    paint(tmp_path / "cub" / "images" / "011.Bird" / "Bird_1.jpg", 9999)
    assert harness(*words).code == 2
    shutil.rmtree(cache.home())  # nothing is remembered: the files are read
    said = harness(*words)
    assert said.code == 2
    assert "cub: the stored results of this run are of other images" in said.err


@pytest.mark.fault(
    "a file that changes while trials run, after the image cache was built", "the trial fails in one line"
)
def test_files_that_change_between_trials_fail_the_trial(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, real = pictures(tmp_path / "pictures"), local.execute

    def meddle(jobs: Sequence[Job], listener: Any, **options: Any) -> None:
        for number, job in enumerate(jobs):
            if number == 1:
                paint(folder / "c6" / "0.bmp", 9999)
                shutil.rmtree(cache.home())
            real([job], listener, **options)

    monkeypatch.setattr(local, "execute", meddle)
    said = harness("run", "--dataset", str(folder), *TINY)
    assert said.code == 1
    assert f"the files under {folder} are not those the run was planned with (contents " in said.err
    assert len(records(tmp_path)) == 1


# --- identical images ---


@pytest.mark.fault(
    "two test images of a user's own data that are identical, in two files", "refused in one line that names both"
)
def test_identical_test_images_of_ones_own_are_refused(harness: Harness, tmp_path: Path) -> None:
    folder = pictures(tmp_path / "pictures")
    shutil.copy(folder / "c5" / "0.bmp", folder / "c7" / "9.bmp")
    said = harness("run", "--dataset", str(folder), *TINY)
    assert said.code == 2
    assert said.err.count("\n") == 1
    assert f"pictures: c5/0.bmp and c7/9.bmp under {folder} are identical" in said.err
    checked = harness("data", "check", str(folder))
    assert checked.code == 1
    assert "c5/0.bmp and c7/9.bmp" in checked.err
    (tmp_path / "mine.toml").write_text('layout = "folder"\nfolder = "pictures"\ncopies = true\n')
    assert harness("run", "--dataset", str(tmp_path / "mine.toml"), *TINY).code == 0
    assert {record["provenance"]["copies"] for record in records(tmp_path)} == {1}


@pytest.mark.fault("identical training images of a user's own data", "allowed: none is searched among test images")
def test_identical_training_images_are_allowed(harness: Harness, tmp_path: Path) -> None:
    folder = pictures(tmp_path / "pictures")
    shutil.copy(folder / "c0" / "0.bmp", folder / "c0" / "9.bmp")
    assert harness("run", "--dataset", str(folder), *TINY).code == 0


@pytest.mark.fault("identical files that are no images, as pages that say 'not found'", "told as unreadable images")
def test_identical_files_that_are_no_images_are_bad_images(harness: Harness, tmp_path: Path) -> None:
    folder = pictures(tmp_path / "pictures")
    for label in (5, 6):
        (folder / f"c{label}" / "0.bmp").write_text("<html>404</html>")
    said = harness("run", "--dataset", str(folder), *TINY)
    assert said.code == 2
    assert "2 of 32 images cannot be read" in said.err
    assert "c5/0.bmp" in said.err
    assert harness("run", "--dataset", str(folder), *TINY, "--skip-bad-images").code == 0


# --- metrics that are asked for later ---


@pytest.mark.fault(
    "a dataset's `recall_at` that asks for more K than is stored", "one line names them; nothing runs; --rerun measures"
)
def test_recalls_that_are_asked_for_later_are_named(harness: Harness, tmp_path: Path) -> None:
    pictures(tmp_path / "pictures")
    file, words = tmp_path / "mine.toml", ("run", "--dataset", str(tmp_path / "mine.toml"), *TINY)
    for recall_at, line in (
        ([1, 2], ""),
        ([1, 2], ""),
        ([1, 5, 10], "mine.toml: results are stored without R@5, R@10; --rerun measures them\n"),
        ([1, 2, 500], ""),  # more than there are test images
    ):
        file.write_text(f'layout = "folder"\nfolder = "pictures"\nrecall_at = {recall_at}\n')
        said = harness(*words)
        assert said.code == 0
        if records(tmp_path) and recall_at != [1, 2]:
            assert said.err[len("12:34:56 ") :] == line
    file.write_text('layout = "folder"\nfolder = "pictures"\nrecall_at = [1, 5, 10]\n')
    assert harness(*words, "--rerun").code == 0
    said = harness(*words)
    assert (said.code, said.err) == (0, "")
    assert "R@10" in said.out


@pytest.mark.fault(
    "a stored grid or search that lacks the metric that now selects", "one line, exit 2, instead of choosing without it"
)
def test_stored_trials_without_the_metric_that_selects_are_not_chosen_from(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    pictures(tmp_path / "pictures", classes=16)
    toml = 'layout = "folder"\nfolder = "pictures"\nrecall_at = {}\n'
    (tmp_path / "mine.toml").write_text(toml.format([1]))
    words = ("run", "--dataset", str(tmp_path / "mine.toml"), *TINY, "--trials", "1")
    assert harness(*words).code == 0
    (tmp_path / "mine.toml").write_text(toml.format([1, 2]))
    protocol = small / "protocols" / "tiny.toml"
    protocol.write_text(protocol.read_text().replace('select = "R@1"', 'select = "R@2"'))
    said = harness(*words)
    assert said.code == 2
    assert said.err == (
        "harness: mine.toml: trials are stored without R@2, which selects; use --rerun or another --protocol\n"
    )
