"""Every layout a dataset is found in, and lists that are damaged."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from harness import config
from harness.data import listing
from harness.data.readers import LAYOUTS
from harness.spec import UserError
from tests.data.factories import CARS, ITEMS, annotate, lay_cars, lay_cub, lay_inshop, lay_sop, side, unasserted


def test_the_shipped_numbers_are_those_the_papers_give() -> None:
    expected = {
        "cub": (100, 100, 5864, 5924, 0, (1, 2, 4, 8)),
        "cars": (98, 98, 8054, 8131, 0, (1, 2, 4, 8)),
        "sop": (11318, 11316, 59551, 60502, 0, (1, 10, 100)),
        "inshop": (3997, 3985, 25882, 14218 + 12612, 14218, (1, 10, 20, 30)),
    }
    for name, numbers in expected.items():
        dataset = config.dataset(name)
        counts = (
            dataset.train_classes,
            dataset.test_classes,
            dataset.train_images,
            dataset.test_images,
            dataset.query_images,
        )
        assert (*counts, dataset.recall_at) == numbers


def test_every_layout_of_files_has_a_reader_and_a_marker() -> None:
    for name, layout in LAYOUTS.items():
        assert (layout.reader is None) == (name == "embedded")
        assert (layout.markers == ()) == (name == "embedded")


def test_every_shipped_dataset_has_a_layout_and_a_place_of_its_own_in_the_tables() -> None:
    datasets = [config.dataset(name) for name in config.names("datasets")]
    assert {dataset.layout for dataset in datasets} <= set(LAYOUTS)
    papers = sorted((dataset.order, dataset.name) for dataset in datasets if dataset.order)
    assert papers == [(1, "cub"), (2, "cars"), (3, "sop"), (4, "inshop")]


def test_cub_trains_on_the_first_half_of_the_class_ids_whatever_its_image_split_says(tmp_path: Path) -> None:
    lay_cub(tmp_path / "CUB_200_2011")
    files = listing.read(unasserted("cub"), tmp_path)
    assert files.folder == tmp_path / "CUB_200_2011"
    assert files.classes == ("1", "2", "3", "10", "11", "12")  # as numbers: 10 is not before 2
    assert files.train_classes == 3
    for train, labels in ((True, (1, 2, 3)), (False, (10, 11, 12))):
        names = [f"images/{label:03}.Bird/Bird_{n}.jpg" for label in labels for n in (0, 1)]
        assert side(files, train=train) == names
    assert files.queries == ()
    (tmp_path / "CUB_200_2011" / "train_test_split.txt").unlink()
    assert listing.read(unasserted("cub"), tmp_path) == files


def test_a_class_name_does_not_decide_the_side_its_id_does(tmp_path: Path) -> None:
    (tmp_path / "images.txt").write_text("1 d/1.jpg\n2 c/with spaces.jpg\n3 b/1.jpg\n4 a/1.jpg\n")
    (tmp_path / "image_class_labels.txt").write_text("4 4\n3 3\n2 2\n1 1\n")
    files = listing.read(unasserted("cub"), tmp_path)
    assert side(files, train=True) == ["images/d/1.jpg", "images/c/with spaces.jpg"]


CAR_FORMS = (
    "one list",
    "devkit",
    "devkit, nested",
    "devkit, test labels apart",
    "",
    "{side}",
    "car_data/",
    "car_data/{side}",
    "car_data/car_data/",
    "car_data/car_data/{side}",
)


@pytest.mark.parametrize("form", CAR_FORMS)
def test_cars_have_the_same_sides_in_every_form(tmp_path: Path, form: str) -> None:
    lay_cars(tmp_path / "cars196", form)
    files = listing.read(replace(unasserted("cars"), train_images=6, test_images=6), tmp_path)
    for train, names in ((True, CARS[:2]), (False, CARS[2:])):
        texts = sorted((files.folder / path).read_text() for path in side(files, train=train))
        assert texts == sorted(f"{name} {n}" for name in names for n in range(3))
    assert len(files.classes) == 4
    assert files.train_classes == 2


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


def test_sop_is_split_by_its_own_lists(tmp_path: Path) -> None:
    lay_sop(tmp_path / "sop", train={7: 2, 12: 1}, test={1: 3, 2: 1, 3: 2})
    files = listing.read(unasserted("sop"), tmp_path)
    assert files.classes == ("7", "12", "1", "2", "3")  # training classes first, though their ids are higher
    assert side(files, train=True) == ["chair_final/7_0.JPG", "chair_final/7_1.JPG", "chair_final/12_0.JPG"]
    assert files.counts() == {
        "train_classes": 2,
        "test_classes": 3,
        "train_images": 3,
        "test_images": 6,
        "query_images": 0,
    }


@pytest.mark.parametrize("images", ["Img/", ""])
@pytest.mark.parametrize("place", ["Eval/", "", "Anno/"])
def test_inshop_has_queries_and_a_gallery_wherever_its_files_were_unpacked(
    tmp_path: Path, images: str, place: str
) -> None:
    lay_inshop(tmp_path / "inshop", ITEMS, images, place)
    files = listing.read(replace(unasserted("inshop"), test_images=6, query_images=3), tmp_path)
    assert all((files.folder / path).is_file() for path in files.paths)
    assert files.classes == ("id_00000001", "id_00000005", "id_00000002", "id_00000003")
    assert files.train_classes == 2
    queries = [path for path, query in zip(files.paths, files.queries, strict=True) if query]
    assert [Path(path).name for path in queries] == ["query_0.jpg", "query_0.jpg", "query_1.jpg"]
    assert files.counts()["train_images"] == 3


DAMAGED = [
    ("cub", "images.txt", "1 a/1.jpg\n2\n", "images.txt, line 2: expected 2 columns, found '2'"),
    ("cub", "image_class_labels.txt", "1 1\n", "image_class_labels.txt: no class for image 2"),
    ("cub", "image_class_labels.txt", None, "cannot read"),
    ("cub", "image_class_labels.txt", b"1 \xff\n", "it is not UTF-8 text"),
    ("cub", "image_class_labels.txt", "1 one\n" * 12, "'one' is not a class id"),
    ("cub", "images.txt", "", "no images under"),
    ("sop", "Ebay_test.txt", None, "cannot read"),
    (
        "sop",
        "Ebay_test.txt",
        "image_id class_id super_class_id path\n",
        "says train; must say train of some images, and test",
    ),
    ("sop", "Ebay_train.txt", "image_id class_id super_class_id path\n1 x 3 a.JPG\n", "'x' is not a class id"),
    (
        "inshop",
        "Eval/list_eval_partition.txt",
        "1\nname id status\na.jpg id_1 val\n",
        "evaluation_status=val: must be train, query or gallery",
    ),
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
