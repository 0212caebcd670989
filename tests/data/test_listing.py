"""Every layout a dataset is found in, the split by classes, and what identifies the files."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from harness import config
from harness.data import listing, loading, readers
from harness.spec import Dataset, UserError
from tests.spec.test_spec import a_trial

Write = Callable[[Path, int], None]  # a file, of a class

# The first two train: the .mat's order differs from the alphabet's, but not across the middle.
CARS = ("Eagle Talon Hatchback 1998", "AM General Hummer SUV 2000", "Ferrari FF Coupe 2012", "FIAT 500 Abarth 2012")


def scribble(file: Path, label: int) -> None:
    """A file that only has to be there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{label} {file.name}")


def lay_cub(
    folder: Path, classes: tuple[int, ...] = (1, 2, 3, 10, 11, 12), each: int = 2, write: Write = scribble
) -> None:
    """CUB-200-2011: class ids, and a split of images that must not be used: the first of each class trains."""
    rows = [(label, n) for label in classes for n in range(each)]
    names = {label: f"{label:03}.Bird" for label in classes}
    for label, n in rows:
        write(folder / "images" / names[label] / f"Bird_{n}.jpg", label)
    lines = {
        "images.txt": [f"{i} {names[label]}/Bird_{n}.jpg" for i, (label, n) in enumerate(rows, 1)],
        "image_class_labels.txt": [f"{i} {label}" for i, (label, _) in enumerate(rows, 1)],
        "classes.txt": [f"{label} {name}" for label, name in names.items()],
        "train_test_split.txt": [f"{i} {int(n == 0)}" for i, (_, n) in enumerate(rows, 1)],
    }
    for name, content in lines.items():
        (folder / name).write_text("\n".join(content) + "\n")


def lay_sop(folder: Path, train: dict[int, int], test: dict[int, int], write: Write = scribble) -> None:
    """Stanford Online Products: class id -> number of images, on either side."""
    number = 0
    for side, classes in (("train", train), ("test", test)):
        lines = ["image_id class_id super_class_id path"]
        for label, count in classes.items():
            for n in range(count):
                number += 1
                path = f"chair_final/{label}_{n}.JPG"
                write(folder / path, label)
                lines.append(f"{number} {label} 3 {path}")
        (folder / f"Ebay_{side}.txt").write_text("\n".join(lines) + "\n")


def lay_inshop(
    folder: Path, rows: list[tuple[int, str, int]], images: str = "Img/", place: str = "Eval/", write: Write = scribble
) -> None:
    """In-Shop: rows of item, evaluation status and how many images."""
    lines = []
    for label, side, count in rows:
        for n in range(count):
            path = f"img/WOMEN/Dresses/id_{label:08}/{side}_{n}.jpg"
            write(folder / f"{images}{path}", label)
            lines.append(f"{path} id_{label:08} {side}")
    file = folder / f"{place}list_eval_partition.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{len(lines)}\nimage_name item_id evaluation_status\n" + "\n".join(lines) + "\n")


def annotate(file: Path, **fields: list) -> None:
    """A struct array called annotations, as Cars196 has it."""
    kinds = [(name, object) for name in fields]
    rows = np.array(list(zip(*fields.values(), strict=True)), dtype=kinds)
    file.parent.mkdir(parents=True, exist_ok=True)
    savemat(file, {"annotations": rows})


def lay_cars(folder: Path, form: str) -> None:
    """Two images of each class for classification's training, one for its test, in one of the forms there are."""
    rows = [(label, n, n < 2) for label in range(1, 5) for n in range(3)]
    if form == "one list":
        paths = [f"car_ims/{i:06}.jpg" for i in range(1, 13)]
        for path, (label, n, _) in zip(paths, rows, strict=True):
            write_text(folder / path, f"{CARS[label - 1]} {n}")
        ids, closed = [row[0] for row in rows], [int(not row[2]) for row in rows]
        return annotate(
            folder / "cars_annos.mat", relative_im_path=paths, bbox_x1=ids, **{"class": ids, "test": closed}
        )
    if form.startswith("devkit"):
        nested = form == "devkit, nested"
        kit = folder / ("car_devkit/devkit" if nested else "devkit")
        for part in ("cars_train", "cars_test"):
            some = [row for row in rows if row[2] == (part == "cars_train")]
            names = [f"{i:05}.jpg" for i in range(1, len(some) + 1)]  # the same names in both parts
            for name, (label, n, _) in zip(names, some, strict=True):
                write_text(folder / (f"{part}/{part}" if nested else part) / name, f"{CARS[label - 1]} {n}")
            list_name = "cars_train_annos.mat" if part == "cars_train" else "cars_test_annos_withlabels.mat"
            apart = part == "cars_test" and form == "devkit, test labels apart"
            ids = [row[0] for row in some]
            annotate((folder if apart else kit) / list_name, bbox_x1=ids, **{"class": ids}, fname=names)
        return None
    for label, n, closed in rows:
        part = {"{side}": "train" if closed else "test"}.get(form.rpartition("/")[2], form.rpartition("/")[2])
        place = folder / form.rpartition("/")[0] / part
        write_text(place / CARS[label - 1] / f"{n}.jpg", f"{CARS[label - 1]} {n}")
    return None


def write_text(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def unasserted(name: str) -> Dataset:
    """A shipped dataset without its numbers."""
    none = {"train_classes": 0, "test_classes": 0, "train_images": 0, "test_images": 0, "query_images": 0}
    return replace(config.dataset(name), **none)


def side(found: listing.Listing, *, train: bool) -> list[str]:
    """The paths on one side of the split."""
    chosen = zip(found.paths, found.labels, strict=True)
    return [path for path, label in chosen if (label < found.train_classes) == train]


# --- the shipped datasets ---


def test_the_shipped_numbers_are_those_the_papers_give() -> None:
    expected = {
        "cub": (100, 100, 5864, 5924, 0, (1, 2, 4, 8)),
        "cars": (98, 98, 8054, 8131, 0, (1, 2, 4, 8)),
        "sop": (11318, 11316, 59551, 60502, 0, (1, 10, 100)),
        "inshop": (3997, 3985, 25882, 14218 + 12612, 14218, (1, 10, 20, 30)),
    }
    for name, numbers in expected.items():
        one = config.dataset(name)
        counts = (one.train_classes, one.test_classes, one.train_images, one.test_images, one.query_images)
        assert (*counts, one.recall_at) == numbers


def test_every_layout_has_a_reader_and_a_marker() -> None:
    assert set(readers.READERS) == set(readers.MARKERS) == set(config.LAYOUTS) - {"embedded"}


# --- CUB ---


def test_cub_trains_on_the_first_half_of_the_class_ids_whatever_its_image_split_says(tmp_path: Path) -> None:
    lay_cub(tmp_path / "CUB_200_2011")
    found = listing.read(unasserted("cub"), tmp_path)
    assert found.folder == tmp_path / "CUB_200_2011"
    assert found.classes == ("1", "2", "3", "10", "11", "12")  # as numbers: 10 is not before 2
    assert found.train_classes == 3
    for train, labels in ((True, (1, 2, 3)), (False, (10, 11, 12))):
        names = [f"images/{label:03}.Bird/Bird_{n}.jpg" for label in labels for n in (0, 1)]
        assert side(found, train=train) == names
    assert found.queries == ()
    (tmp_path / "CUB_200_2011" / "train_test_split.txt").unlink()
    assert listing.read(unasserted("cub"), tmp_path) == found


def test_a_class_name_does_not_decide_the_side_its_id_does(tmp_path: Path) -> None:
    (tmp_path / "images.txt").write_text("1 d/1.jpg\n2 c/with spaces.jpg\n3 b/1.jpg\n4 a/1.jpg\n")
    (tmp_path / "image_class_labels.txt").write_text("4 4\n3 3\n2 2\n1 1\n")
    found = listing.read(unasserted("cub"), tmp_path)
    assert side(found, train=True) == ["images/d/1.jpg", "images/c/with spaces.jpg"]


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("train_classes", "expected 4 training classes, found 3"),
        ("test_classes", "expected 4 test classes, found 3"),
        ("train_images", "expected 7 training images, found 6"),
        ("test_images", "expected 7 test images, found 6"),
        ("query_images", "expected 1 query images, found 0"),
    ],
)
def test_numbers_are_asserted_with_the_place(tmp_path: Path, field: str, words: str) -> None:
    numbers = {"train_classes": 3, "test_classes": 3, "train_images": 6, "test_images": 6}
    lay_sop(tmp_path / "sop", train={1: 2, 2: 2, 3: 2}, test={4: 2, 5: 2, 6: 2})
    right = replace(unasserted("sop"), **numbers)
    assert listing.read(right, tmp_path).counts() == {**numbers, "query_images": 0}
    with pytest.raises(UserError) as error:
        listing.read(replace(right, **{field: int(words.split()[1])}), tmp_path)
    assert str(error.value) == f"sop: {words} under {tmp_path / 'sop'}"


def test_cub_with_images_lost_is_refused_in_these_words(tmp_path: Path) -> None:
    classes = tuple(range(1, 201))
    lay_cub(tmp_path, classes, each=1)
    with pytest.raises(UserError) as error:
        listing.read(config.dataset("cub"), tmp_path)
    assert str(error.value) == f"cub: expected 5864 training images, found 100 under {tmp_path}"


def test_images_are_counted_as_listed_also_where_files_are_missing(tmp_path: Path) -> None:
    lay_cub(tmp_path)
    (tmp_path / "images" / "001.Bird" / "Bird_0.jpg").unlink()
    assert len(listing.read(unasserted("cub"), tmp_path).paths) == 12


# --- Cars ---

CAR_FORMS = (
    *("one list", "devkit", "devkit, nested", "devkit, test labels apart"),
    *("", "{side}", "car_data/", "car_data/{side}", "car_data/car_data/", "car_data/car_data/{side}"),
)


@pytest.mark.parametrize("form", CAR_FORMS)
def test_cars_have_the_same_sides_in_every_form(tmp_path: Path, form: str) -> None:
    lay_cars(tmp_path / "cars196", form)
    found = listing.read(replace(unasserted("cars"), train_images=6, test_images=6), tmp_path)
    for train, names in ((True, CARS[:2]), (False, CARS[2:])):
        texts = sorted((found.folder / path).read_text() for path in side(found, train=train))
        assert texts == sorted(f"{name} {n}" for name in names for n in range(3))
    assert len(found.classes) == 4
    assert found.train_classes == 2


def test_cars_tell_which_list_is_missing_and_which_is_not_one(tmp_path: Path) -> None:
    def complaint(place: str) -> str:
        with pytest.raises(UserError) as error:
            listing.read(unasserted("cars"), tmp_path / place)
        assert "\n" not in str(error.value)
        return str(error.value)

    lay_cars(tmp_path / "a", "devkit")
    (tmp_path / "a" / "devkit" / "cars_test_annos_withlabels.mat").unlink()
    assert "cars_test_annos_withlabels.mat is missing" in complaint("a")
    (tmp_path / "a" / "devkit" / "cars_train_annos.mat").unlink()
    assert "cars_train_annos.mat is missing" in complaint("a")

    lay_cars(tmp_path / "b", "one list")
    lists = tmp_path / "b" / "cars_annos.mat"
    whole = lists.read_bytes()
    for content in (b"", b"<html>not found</html>" * 100, whole[: len(whole) // 2]):
        lists.write_bytes(content)
        assert complaint("b").startswith(f"{lists} is not the annotation file of Cars196")
    annotate(lists, fname=["1.jpg", "2.jpg"])  # of the test images, as they came before their labels
    assert "relative_im_path" in complaint("b")
    savemat(lists, {"class_names": np.array(CARS, dtype=object)})
    assert "annotations" in complaint("b")
    lists.unlink()
    assert "cars_annos.mat is missing" in complaint("b")


# --- SOP ---


def test_sop_is_split_by_its_own_lists(tmp_path: Path) -> None:
    lay_sop(tmp_path / "sop", train={7: 2, 12: 1}, test={1: 3, 2: 1, 3: 2})
    found = listing.read(unasserted("sop"), tmp_path)
    assert found.classes == ("7", "12", "1", "2", "3")  # training classes first, though their ids are higher
    assert side(found, train=True) == ["chair_final/7_0.JPG", "chair_final/7_1.JPG", "chair_final/12_0.JPG"]
    assert found.counts() == {
        **{"train_classes": 2, "test_classes": 3, "train_images": 3, "test_images": 6, "query_images": 0}
    }


def test_a_class_on_both_sides_is_refused(tmp_path: Path) -> None:
    lay_sop(tmp_path, train={1: 2, 9: 2, 10: 2}, test={3: 2, 10: 1, 9: 2})
    with pytest.raises(UserError, match=r"sop: class 9 has images on both sides .*the split must be by classes"):
        listing.read(unasserted("sop"), tmp_path)


# --- In-Shop ---

ITEMS = [(1, "train", 2), (5, "train", 1), (2, "query", 1), (2, "gallery", 2), (3, "query", 2), (3, "gallery", 1)]


@pytest.mark.parametrize("images", ["Img/", ""])
@pytest.mark.parametrize("place", ["Eval/", "", "Anno/"])
def test_inshop_has_queries_and_a_gallery_wherever_its_files_were_unpacked(
    tmp_path: Path, images: str, place: str
) -> None:
    lay_inshop(tmp_path / "inshop", ITEMS, images, place)
    found = listing.read(replace(unasserted("inshop"), test_images=6, query_images=3), tmp_path)
    assert all((found.folder / path).is_file() for path in found.paths)
    assert found.classes == ("id_00000001", "id_00000005", "id_00000002", "id_00000003")
    assert found.train_classes == 2
    queries = [path for path, query in zip(found.paths, found.queries, strict=True) if query]
    assert [Path(path).name for path in queries] == ["query_0.jpg", "query_0.jpg", "query_1.jpg"]
    assert found.counts()["train_images"] == 3


# --- lists that are damaged ---

DAMAGED = [
    ("cub", "images.txt", "1 a/1.jpg\n2\n", "images.txt, line 2: expected 2 columns, found '2'"),
    ("cub", "image_class_labels.txt", "1 1\n", "image_class_labels.txt has no class for image 2"),
    ("cub", "image_class_labels.txt", None, "cannot read"),
    ("cub", "image_class_labels.txt", b"1 \xff\n", "it is not UTF-8 text"),
    ("cub", "image_class_labels.txt", "1 one\n" * 12, "'one' is not a class id"),
    ("cub", "images.txt", "", "no images under"),
    ("sop", "Ebay_test.txt", None, "cannot read"),
    ("sop", "Ebay_test.txt", "image_id class_id super_class_id path\n", "split must say train or test"),
    ("sop", "Ebay_train.txt", "image_id class_id super_class_id path\n1 x 3 a.JPG\n", "'x' is not a class id"),
    ("inshop", "Eval/list_eval_partition.txt", "1\nname id status\na.jpg id_1 val\n", "evaluation_status=val: allowed"),
    ("inshop", "Eval/list_eval_partition.txt", "1\nname id status\na.jpg id_1\n", "line 3: expected 3 columns"),
]


@pytest.mark.parametrize(("name", "file", "content", "complaint"), DAMAGED)
def test_a_damaged_list_is_named(
    tmp_path: Path, name: str, file: str, content: str | bytes | None, complaint: str
) -> None:
    lay_cub(tmp_path / "cub")
    lay_sop(tmp_path / "sop", {1: 1, 2: 1}, {3: 1, 4: 1})
    lay_inshop(tmp_path / "inshop", ITEMS)
    target = tmp_path / name / file
    if content is None:
        target.unlink()
    else:
        target.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UserError) as error:
        listing.read(unasserted(name), tmp_path)
    assert complaint in str(error.value)
    assert str(tmp_path / name) in str(error.value)
    assert "\n" not in str(error.value)


# --- a user's own ---


def own(path: Path) -> listing.Listing:
    return listing.read(config.dataset(str(path)), Path("nowhere"))


def test_a_folder_of_class_folders_is_ordered_as_people_count(tmp_path: Path) -> None:
    for name in ("10.gull", "2.sparrow", "1.wren", "9.tit", "11.owl"):
        scribble(tmp_path / "photos" / name / "a.jpg", 0)
    found = own(tmp_path / "photos")
    assert found.classes == ("1.wren", "2.sparrow", "9.tit", "10.gull", "11.owl")
    assert found.train_classes == 3  # of five
    assert side(found, train=False) == ["10.gull/a.jpg", "11.owl/a.jpg"]


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
    found = own(tmp_path)
    assert (found.folder / found.paths[0]).read_text() == "0 1.jpg"
    assert listing.fingerprint(found) != before


OWN_MISTAKES = [
    ({}, "no images under"),
    ({"a/1.jpg": "", "b/1.jpg": "", "c/1.jpg": ""}, "3 classes under"),
    ({"a/1.txt": "", "b/1.txt": ""}, "no images under"),
    (
        {f"{part}/{name}/1.jpg": "" for part in ("train", "test", "val", "x") for name in "ab"},
        "has folders train and test",
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
    with pytest.raises(UserError, match=r"--dataset .*none: no such file or folder; shipped are cars, cub"):
        own(tmp_path / "none")


def test_a_csv_without_a_split_is_halved_by_class(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_bytes(
        b"\xef\xbb\xbflabel,path\r\n10,x/a.jpg\r\n2,x/b.jpg\r\n\r\n"  # as Excel writes
        b'1,"x/c, d.jpg"\r\n10, e.jpg \r\n11,f.jpg\r\n'
    )
    found = own(tmp_path / "list.csv")
    assert found.folder == tmp_path
    assert found.classes == ("1", "2", "10", "11")
    assert side(found, train=True) == ["x/b.jpg", "x/c, d.jpg"]
    assert side(found, train=False) == ["x/a.jpg", "e.jpg", "f.jpg"]


def test_a_csv_with_a_split_is_split_so(tmp_path: Path) -> None:
    rows = "a.jpg,z,train\nb.jpg,y,train\nc.jpg,a,test\nd.jpg,b,test\ne.jpg,z, train\n"
    (tmp_path / "list.csv").write_text(f"path,label,split\n{rows}")
    found = own(tmp_path / "list.csv")
    assert found.classes == ("y", "z", "a", "b")
    assert side(found, train=True) == ["a.jpg", "b.jpg", "e.jpg"]
    assert found.queries == ()
    (tmp_path / "list.csv").write_text(f"path,label,split\n{rows.replace('test', 'query')}f.jpg,a,gallery\n")
    assert own(tmp_path / "list.csv").queries == (False, False, True, True, False, False)


FOUR = "1.jpg,a{0}\n2.jpg,b{0}\n3.jpg,c{1}\n4.jpg,d{1}\n"
CSV_MISTAKES = [
    (b"", "the header is : allowed is path,label[,split]"),
    (b"file,label\n1.jpg,a\n", "the header is file,label: allowed is"),
    (b"path;label\n", "the header is path;label"),
    (b"path,label,label\n", "the header is path,label,label"),
    (b"path,label\n", "no images under"),
    (b"path,label\n1.jpg,a\n2.jpg\n", "line 3: allowed is path,label[,train|test|query|gallery]"),
    (b"path,label\n,a\n", "line 2: allowed"),
    (b"path,label\n1.jpg,\n", "line 2: allowed"),
    (b"path,label\n1.jpg,a,b\n", "line 2: allowed"),
    (b"path,label,split\n1.jpg,a,val\n", "line 2: allowed"),
    (b"path,label\n1.jpg,a\n\n./1.jpg,b\n", "line 4: ./1.jpg is listed twice"),
    (b"path,label\n1.jpg,caf\xe9\n", "it is not UTF-8 text"),
    (b'path,label\n1.jpg,"' + b"x" * 140_000, "field larger than field limit"),
    (b"path,label\n1.jpg,a\n2.jpg,b\n3.jpg,c\n", "3 classes under"),
    (f"path,label,split\n{FOUR.format(',train', ',train')}".encode(), "it says train"),
    (f"path,label,split\n{FOUR.format(',train', ',test')}5.jpg,a,\n".encode(), "it says nothing, test, train"),
    (f"path,label,split\n{FOUR.format(',train', ',query')}".encode(), "it says query, train"),
    (f"path,label,split\n{FOUR.format(',train', ',gallery')}".encode(), "it says gallery, train"),
    (f"path,label,split\n{FOUR.format(',train', ',test')}5.jpg,c,query\n".encode(), "it says query, test, train"),
    (f"path,label,split\n{FOUR.format(',train', ',test')}5.jpg,b,test\n".encode(), "class b has images on both sides"),
    (b"path,label,split\n1.jpg,a,train\n2.jpg,b,train\n3.jpg,c,test\n", "3 classes under"),
]


@pytest.mark.parametrize(("content", "complaint"), CSV_MISTAKES, ids=[complaint for _, complaint in CSV_MISTAKES])
def test_a_mistake_in_a_csv_is_told_with_its_place(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "list.csv").write_bytes(content)
    with pytest.raises(UserError) as error:
        own(tmp_path / "list.csv")
    assert complaint in str(error.value)
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_toml_describes_data_that_lies_beside_it(tmp_path: Path) -> None:
    lay_cub(tmp_path / "birds")
    (tmp_path / "mine.toml").write_text('layout = "cub"\nfolder = "birds"\ntrain_classes = 2\nrecall_at = [1, 5]\n')
    dataset = config.dataset(str(tmp_path / "mine.toml"))
    assert (dataset.name, dataset.recall_at, dataset.protocol) == ("mine.toml", (1, 5), "cpu")
    found = own(tmp_path / "mine.toml")
    assert found.folder == tmp_path / "birds"
    assert (found.train_classes, len(found.classes)) == (2, 6)
    (tmp_path / "mine.toml").write_text('layout = "cub"\nfolder = "birds"\ntest_images = 5\n')
    with pytest.raises(UserError, match=r"mine\.toml: expected 5 test images, found 6 under "):
        own(tmp_path / "mine.toml")
    (tmp_path / "mine.toml").write_text('layout = "cub"\nfolder = "elsewhere"\n')
    with pytest.raises(UserError, match=rf"mine\.toml: nothing at {tmp_path}/elsewhere with images\.txt"):
        own(tmp_path / "mine.toml")


# --- where it is looked for ---


@pytest.mark.parametrize("place", ["CUB_200_2011", "cub", "."])
def test_a_dataset_is_found_by_its_usual_name_its_short_name_or_as_the_root_itself(tmp_path: Path, place: str) -> None:
    lay_cub(tmp_path / place)
    assert listing.is_there(config.dataset("cub"), tmp_path)
    assert listing.locate(config.dataset("cub"), tmp_path) == tmp_path / place


def test_data_that_is_not_there_says_where_it_looked_and_how_to_get_it(tmp_path: Path) -> None:
    assert not listing.is_there(config.dataset("cub"), tmp_path)
    with pytest.raises(UserError) as error:
        listing.read(config.dataset("cub"), tmp_path)
    said = str(error.value)
    for words in (
        f"cub: no data; looked for images.txt in {tmp_path}/CUB_200_2011, {tmp_path}/cub, {tmp_path}.",
        *("--data-root DIR or HARNESS_DATA", "harness data download cub; or by hand: https://www.vision.caltech.edu"),
    ):
        assert words in said
    with pytest.raises(UserError) as error:
        listing.read(config.dataset("inshop"), tmp_path)
    assert "To get it: by hand: https://mmlab" in str(error.value)
    assert "download" not in str(error.value)


# --- what identifies the files ---


def test_the_fingerprint_is_the_same_at_another_data_root(tmp_path: Path) -> None:
    for name in ("cub", "sop", "inshop"):
        prints = set()
        for root in (tmp_path / "one", tmp_path / "two" / "deep"):
            if name == "cub":
                lay_cub(root / "cub")
            elif name == "sop":
                lay_sop(root / "Stanford_Online_Products", {1: 1, 2: 1}, {3: 1, 4: 1})
            else:
                lay_inshop(root, ITEMS)
            prints.add(listing.identify(unasserted(name), root).fingerprint)
        assert len(prints) == 1
        assert len(prints.pop()) == 12


def own_print(path: Path) -> str:
    return listing.identify(config.dataset(str(path)), Path()).fingerprint


def test_the_fingerprint_changes_with_a_size_a_label_a_path_and_a_side_and_with_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "list.csv"
    rows = (
        "0.jpg,a,train\n1.jpg,a,train\n2.jpg,b,train\n3.jpg,c,query\n4.jpg,d,query\n5.jpg,d,gallery\n6.jpg,c,gallery\n"
    )
    file.write_text(f"path,label,split\n{rows}")
    for n in range(1, 7):
        (tmp_path / f"{n}.jpg").write_bytes(b"12345")
    seen = [own_print(file)]
    (tmp_path / "3.jpg").write_bytes(b"abcde")
    os.utime(tmp_path / "2.jpg", (0, 0))
    assert own_print(file) == seen[0]
    (tmp_path / "3.jpg").write_bytes(b"abcd")
    seen.append(own_print(file))
    (tmp_path / "3.jpg").unlink()
    seen.append(own_print(file))
    (tmp_path / "3.jpg").write_bytes(b"")
    seen.append(own_print(file))  # an empty file is not a missing one
    for old, new in (("1.jpg,a", "1.jpg,b"), ("2.jpg", "./2.jpg"), ("5.jpg,d,gallery", "5.jpg,d,query")):
        file.write_text(f"path,label,split\n{rows.replace(old, new)}")
        seen.append(own_print(file))
    assert len(set(seen)) == len(seen)


def test_the_same_images_halved_elsewhere_are_another_dataset(tmp_path: Path) -> None:
    lay_cub(tmp_path)
    half, third = unasserted("cub"), replace(unasserted("cub"), train_classes=2)
    assert listing.identify(half, tmp_path).fingerprint != listing.identify(third, tmp_path).fingerprint


def test_numbers_that_are_not_known_are_those_found(tmp_path: Path) -> None:
    lay_inshop(tmp_path, ITEMS)
    found = listing.identify(replace(unasserted("inshop"), train_images=3), tmp_path)
    numbers = (found.train_classes, found.test_classes, found.train_images, found.test_images, found.query_images)
    assert numbers == (2, 2, 3, 6, 3)


def test_a_worker_whose_files_changed_after_planning_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HARNESS_DATA", raising=False)
    loading.forget()
    lay_cub(tmp_path / "here" / "cub")
    planned = listing.identify(unasserted("cub"), tmp_path / "here")
    image = tmp_path / "here" / "cub" / "images" / "001.Bird" / "Bird_0.jpg"
    image.write_text("longer than it was")
    changed = listing.identify(unasserted("cub"), tmp_path / "here").fingerprint
    with pytest.raises(UserError) as error:
        list(loading.load(planned, a_trial(), str(tmp_path / "here")))
    said = str(error.value)
    assert said.startswith(f"cub: the files under {tmp_path / 'here' / 'cub'} are not those the run was planned with")
    assert f"(fingerprint {changed}, planned {planned.fingerprint})" in said


def test_a_worker_finds_its_own_copy_by_its_own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("driver", "worker"):
        lay_cub(tmp_path / place / "cub")
    planned = listing.identify(unasserted("cub"), tmp_path / "driver")
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path / "worker"))
    assert loading.find(planned, str(tmp_path / "driver")).folder == tmp_path / "driver" / "cub"
    assert loading.find(planned, str(tmp_path / "gone")).folder == tmp_path / "worker" / "cub"
    monkeypatch.delenv("HARNESS_DATA")
    with pytest.raises(UserError, match=f"cub: no data; looked for images.txt in {tmp_path / 'gone'}"):
        loading.find(planned, str(tmp_path / "gone"))
