"""Images that are not what they were, image caches that are not, and lists that cannot be right."""

import os
import shlex
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from harness import config
from harness.data import images, listing
from tests.conftest import Harness
from tests.data.factories import records

pytestmark = pytest.mark.usefixtures("own_cache", "small")

TINY = ("--losses", "triplet", "--protocol", "tiny", "--weights", "none")


def paint(file: Path, seed: int) -> None:
    """A BMP of noise: every one has the same size."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(file, "BMP")


def pictures(folder: Path, classes: int = 8, each: int = 4, seed: int = 0) -> Path:
    """Class folders c0, c1, ... of BMPs."""
    for label in range(classes):
        for n in range(each):
            paint(folder / f"c{label}" / f"{n}.bmp", 1000 * seed + each * label + n)
    return folder


def write_list(file: Path, folder: Path, train: str) -> Path:
    """A list of the pictures in which the classes with these digits train."""
    rows = [
        f"{image.relative_to(file.parent)},{image.parent.name},{'train' if image.parent.name[1] in train else 'test'}"
        for image in sorted(folder.rglob("*.bmp"))
    ]
    file.write_text("path,label,split\n" + "\n".join(rows) + "\n")
    return file


def scores(tmp_path: Path) -> dict[str, Any]:
    """id -> metrics of the stored runs of the loss."""
    found = [record for record in records(tmp_path) if record["trial"]["loss"] == "triplet"]
    return {record["id"]: record["metrics"] for record in found}


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


def special_file(file: Path, kind: str) -> None:
    match kind:
        case "a pipe":
            os.mkfifo(file)
        case "a folder":
            file.mkdir()
        case "a socket":
            os.chdir(file.parent)  # the path of a socket is short
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(file.name)
        case "a device":
            file.symlink_to("/dev/zero")


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
    assert said.code == 1
    hint = said.err.partition("list them with harness ")[2].partition(", or")[0]
    checked = harness(*shlex.split(hint))
    assert checked.code == 1
    assert f"{folder / 'c1' / '2.bmp'}: not an image" in checked.err


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
