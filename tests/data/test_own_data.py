"""A user's own data: a folder of class folders, a .csv list, a .toml description."""

import os
from pathlib import Path

import pytest

from harness import config
from harness.data import listing
from harness.spec import UserError
from tests.conftest import Harness
from tests.data.factories import lay_cub, own, scribble, side, write_text


def test_a_folder_of_class_folders_is_ordered_as_people_count(tmp_path: Path) -> None:
    for name in ("10.gull", "2.sparrow", "1.wren", "9.tit", "11.owl"):
        scribble(tmp_path / "photos" / name / "a.jpg", 0)
    files = own(tmp_path / "photos")
    assert files.classes == ("1.wren", "2.sparrow", "9.tit", "10.gull", "11.owl")
    assert files.train_classes == 3  # of five
    assert side(files, train=False) == ["10.gull/a.jpg", "11.owl/a.jpg"]


def test_labels_are_ordered_by_the_numbers_in_them() -> None:
    mixed = ["b", "a10", "10", "a", "1", "é", "a2b", "01", "a1", "2"]
    assert sorted(mixed, key=listing.natural) == ["01", "1", "2", "10", "a", "a1", "a2b", "a10", "b", "é"]
    assert sorted(["id_00000010", "id_00000009", 3], key=listing.natural) == [3, "id_00000009", "id_00000010"]


def test_what_is_hidden_or_no_image_is_left_out(tmp_path: Path) -> None:
    for name in "abcd":
        for file in ("1.jpg", "deep/2.PNG", "3.webp", "notes.txt", "Thumbs.db", "._1.jpg", ".ipynb_checkpoints/1.jpg"):
            scribble(tmp_path / name / file, 0)
    scribble(tmp_path / ".git" / "x.jpg", 0)
    scribble(tmp_path / "cover.jpg", 0)
    assert own(tmp_path).paths == tuple(
        f"{name}/{file}" for name in "abcd" for file in ("1.jpg", "3.webp", "deep/2.PNG")
    )


def test_a_file_name_that_is_no_text_is_taken_as_it_is(tmp_path: Path) -> None:
    for name in "abcd":
        scribble(tmp_path / name / "1.jpg", 0)
    before = listing.fingerprint(own(tmp_path))
    os.rename(tmp_path / "a" / "1.jpg", os.fsencode(tmp_path / "a") + b"/caf\xe9.jpg")
    files = own(tmp_path)
    assert (files.folder / files.paths[0]).read_text() == "0 1.jpg"
    assert listing.fingerprint(files) != before


OWN_MISTAKES = [
    ({}, "no images under"),
    ({"1.jpg": "", "2.jpg": "", "3.jpg": ""}, "its 3 images lie in no class folder; give each class its own"),
    ({"a/1.jpg": "", "b/1.jpg": "", "c/1.jpg": ""}, "has 2 training and 1 test classes"),
    ({"a/1.txt": "", "b/1.txt": ""}, "no images under"),
    (
        {f"{part}/{name}/1.jpg": "" for part in ("train", "test", "val", "x") for name in "ab"},
        "contains train/ and test/, not class folders",
    ),
]


@pytest.mark.parametrize(("files", "complaint"), OWN_MISTAKES)
def test_a_folder_that_is_no_dataset_says_why(tmp_path: Path, files: dict[str, str], complaint: str) -> None:
    (tmp_path / "photos").mkdir()
    for name, text in files.items():
        write_text(tmp_path / "photos" / name, text)
    with pytest.raises(UserError, match=complaint) as error:
        own(tmp_path / "photos")
    assert str(tmp_path / "photos") in str(error.value)


def test_a_path_that_is_no_folder_says_so(tmp_path: Path) -> None:
    scribble(tmp_path / "photo.jpg", 0)
    with pytest.raises(UserError, match=r"photo\.jpg as a folder of class folders: Not a directory"):
        own(tmp_path / "photo.jpg")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UserError, match=r"cannot read .*folder\.csv: Is a directory"):
        own(tmp_path / "folder.csv")
    with pytest.raises(UserError, match=r"--dataset .*none: no such file or folder; shipped datasets: cars, cub"):
        own(tmp_path / "none")


def test_a_csv_without_a_split_is_halved_by_class(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_bytes(
        b"\xef\xbb\xbflabel,path\r\n10,x/a.jpg\r\n2,x/b.jpg\r\n\r\n"  # as Excel writes
        b'1,"x/c, d.jpg"\r\n10, e.jpg \r\n11,f.jpg\r\n'
    )
    files = own(tmp_path / "list.csv")
    assert files.folder == tmp_path
    assert files.classes == ("1", "2", "10", "11")
    assert side(files, train=True) == ["x/b.jpg", "x/c, d.jpg"]
    assert side(files, train=False) == ["x/a.jpg", "e.jpg", "f.jpg"]


def test_a_csv_with_a_split_is_split_so(tmp_path: Path) -> None:
    rows = "a.jpg,z,train\nb.jpg,y,train\nc.jpg,a,test\nd.jpg,b,test\ne.jpg,z, train\n"
    (tmp_path / "list.csv").write_text(f"path,label,split\n{rows}")
    files = own(tmp_path / "list.csv")
    assert files.classes == ("y", "z", "a", "b")
    assert side(files, train=True) == ["a.jpg", "b.jpg", "e.jpg"]
    assert files.queries == ()
    (tmp_path / "list.csv").write_text(f"path,label,split\n{rows.replace('test', 'query')}f.jpg,a,gallery\n")
    assert own(tmp_path / "list.csv").queries == (False, False, True, True, False, False)


FOUR = "1.jpg,a{0}\n2.jpg,b{0}\n3.jpg,c{1}\n4.jpg,d{1}\n"


CSV_MISTAKES = [
    (b"", "the header is ''; must be path,label or path,label,split"),
    (b"file,label\n1.jpg,a\n", "the header is 'file,label'; must be"),
    (b"path;label\n", "the header is 'path;label'"),
    (b"path,label,label\n", "the header is 'path,label,label'"),
    (b"path,label" + b",x" * 100_000, "; must be path,label or path,label,split"),
    (b"path,label\n1.jpg," + b"9" * 5000, "(5,000 characters): must have at most 1000 characters"),
    (b"path,label\n", "no images under"),
    (b"path,label\n1.jpg,a\n2.jpg\n", "line 3: '2.jpg': must be path,label[,train|test|query|gallery]"),
    (b"path,label\n,a\n", "line 2: ',a': must be"),
    (b"path,label\n1.jpg,\n", "line 2: '1.jpg,': must be"),
    (b"path,label\n1.jpg,a,b\n", "line 2: '1.jpg,a,b': must be"),
    (b"path,label,split\n1.jpg,a,val\n", "line 2: split=val: must be one of train, test, query, gallery"),
    (b"path,label\n1.jpg,a\n\n./1.jpg,b\n", "line 4: ./1.jpg is listed twice"),
    (b"path,label\n1.jpg,caf\xe9\n", "it is not UTF-8 text"),
    (b'path,label\n1.jpg,"' + b"x" * 140_000, "field larger than field limit"),
    (b"path,label\n1.jpg,a\n2.jpg,b\n3.jpg,c\n", "has 2 training and 1 test classes"),
    (
        f"path,label,split\n{FOUR.format(',train', ',train')}".encode(),
        "says train; must say train of some images, and test",
    ),
    (
        f"path,label,split\n{FOUR.format(',train', ',test')}5.jpg,a,\n".encode(),
        "says nothing for some images, test, train; must",
    ),
    (f"path,label,split\n{FOUR.format(',train', ',query')}".encode(), "says query, train; must"),
    (f"path,label,split\n{FOUR.format(',train', ',gallery')}".encode(), "says gallery, train; must"),
    (f"path,label,split\n{FOUR.format(',train', ',test')}5.jpg,c,query\n".encode(), "says query, test, train; must"),
    (f"path,label,split\n{FOUR.format(',train', ',test')}5.jpg,b,test\n".encode(), "class b has images on both sides"),
    (b"path,label,split\n1.jpg,a,train\n2.jpg,b,train\n3.jpg,c,test\n", "has 2 training and 1 test classes"),
]


@pytest.mark.parametrize(("content", "complaint"), CSV_MISTAKES, ids=[complaint for _, complaint in CSV_MISTAKES])
def test_a_mistake_in_a_csv_is_told_with_its_place(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "list.csv").write_bytes(content)
    with pytest.raises(UserError) as error:
        own(tmp_path / "list.csv")
    assert complaint in str(error.value)
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < len(str(tmp_path)) + 250


def test_a_toml_describes_data_that_lies_beside_it(tmp_path: Path) -> None:
    lay_cub(tmp_path / "birds")
    (tmp_path / "mine.toml").write_text('layout = "cub"\nfolder = "birds"\ntrain_classes = 2\nrecall_at = [1, 5]\n')
    dataset = config.dataset(str(tmp_path / "mine.toml"))
    assert (dataset.name, dataset.recall_at, dataset.protocol) == ("mine.toml", (1, 5), "cpu")
    files = own(tmp_path / "mine.toml")
    assert files.folder == tmp_path / "birds"
    assert (files.train_classes, len(files.classes)) == (2, 6)
    (tmp_path / "mine.toml").write_text('layout = "cub"\nfolder = "birds"\ntest_images = 5\n')
    with pytest.raises(UserError, match=r"mine\.toml: expected 5 test images, found 6 under "):
        own(tmp_path / "mine.toml")
    (tmp_path / "mine.toml").write_text('layout = "cub"\nfolder = "elsewhere"\n')
    with pytest.raises(UserError, match=rf"mine\.toml: not found at {tmp_path}/elsewhere; expected images\.txt"):
        own(tmp_path / "mine.toml")


def test_one_image_per_test_class_stops_check_and_run(small: Path, harness: Harness, tmp_path: Path) -> None:
    for number, label in enumerate("abcd"):
        write_text(tmp_path / "photos" / label / f"{number}.jpg", label)
    for words in (["data", "check"], ["run", "--losses", "none", "--protocol", "tiny", "--dataset"]):
        said = harness(*words, str(tmp_path / "photos"))
        assert said.code
        assert "has a single image; nothing can be retrieved" in said.err


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ("1.jpg,a,train\n2.jpg,b,train\n3.jpg,c,test\n4.jpg,d,test\n", "every test class under"),
        ("1.jpg,a,train\n2.jpg,b,train\n3.jpg,c,query\n4.jpg,d,gallery\n", "no query under"),
        ("1.jpg,a,train\n2.jpg,b,train\n3.jpg,c,test\n4.jpg,d,test\n5.jpg,d,test\n", ""),
        ("1.jpg,a,train\n2.jpg,b,train\n3.jpg,c,query\n4.jpg,c,gallery\n5.jpg,d,query\n", ""),
    ],
)
def test_a_dataset_in_which_nothing_can_be_retrieved_is_named(tmp_path: Path, rows: str, complaint: str) -> None:
    for number in range(1, 6):
        scribble(tmp_path / f"{number}.jpg", number)
    (tmp_path / "list.csv").write_text(f"path,label,split\n{rows}")
    dataset = config.dataset(str(tmp_path / "list.csv"))
    problems = list(listing.unmatched(dataset, listing.read(dataset, tmp_path)))
    assert len(problems) == bool(complaint)
    assert all(complaint in problem for problem in problems)
