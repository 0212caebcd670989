"""The split by classes, the numbers asserted, where a dataset is looked for, and what identifies its files."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from harness import config
from harness.data import listing
from harness.spec import UserError
from tests.data.factories import ITEMS, lay_cars, lay_cub, lay_inshop, lay_sop, unasserted, write_text


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


def test_a_class_on_both_sides_is_refused(tmp_path: Path) -> None:
    lay_sop(tmp_path, train={1: 2, 9: 2, 10: 2}, test={3: 2, 10: 1, 9: 2})
    with pytest.raises(UserError, match=r"sop: class 9 has images on both sides .*the split must be by classes"):
        listing.read(unasserted("sop"), tmp_path)


@pytest.mark.parametrize("name", ["CUB_200_2011", "cub", "."])
def test_a_dataset_is_found_by_its_usual_name_its_short_name_or_as_the_root_itself(tmp_path: Path, name: str) -> None:
    lay_cub(tmp_path / name)
    assert listing.exists(config.dataset("cub"), tmp_path)
    assert listing.locate(config.dataset("cub"), tmp_path) == tmp_path / name


def test_data_that_is_not_there_says_where_it_looked_and_how_to_get_it(tmp_path: Path) -> None:
    assert not listing.exists(config.dataset("cub"), tmp_path)
    with pytest.raises(UserError) as error:
        listing.read(config.dataset("cub"), tmp_path)
    assert str(error.value) == (
        f"cub: not found; searched {tmp_path} and its CUB_200_2011, cub for images.txt, image_class_labels.txt and "
        "images/; set --data-root or HARNESS_DATA, or get it: harness data download cub"
    )
    with pytest.raises(UserError) as error:
        listing.read(config.dataset("inshop"), tmp_path)
    assert str(error.value).endswith("or see: harness show inshop")
    assert "download" not in str(error.value)


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


PINNED = {"cub": "cb4564f86aee", "cars": "c0383b0d730e", "sop": "23d50bb859ea", "inshop": "18dd45787729"}


@pytest.mark.parametrize("name", PINNED)
def test_the_fingerprints_of_shipped_datasets_never_change(tmp_path: Path, name: str) -> None:
    """Stored results are named by them, and those of SOP and In-Shop too leave out the sides that their lists name."""
    match name:
        case "cub":
            lay_cub(tmp_path)
        case "cars":
            lay_cars(tmp_path, "one list")
        case "sop":
            lay_sop(tmp_path, {7: 2, 12: 1}, {1: 3, 2: 1, 3: 2})
        case "inshop":
            lay_inshop(tmp_path, ITEMS)
    assert listing.identify(unasserted(name), tmp_path).fingerprint == PINNED[name]


def test_the_fingerprint_is_a_hash_of_paths_classes_sides_sizes_and_the_split(tmp_path: Path) -> None:
    """Trials and image caches are named by it, so it never changes for the same files."""
    for number, content in enumerate((b"a", b"bb", b"", b"dddd")):
        write_text(tmp_path / "photos" / f"thing{number}" / "1.jpg", content.decode())
    rows = "thing0/1.jpg\tthing0\tFalse\t1\nthing1/1.jpg\tthing1\tFalse\t2\n"
    rows += "thing2/1.jpg\tthing2\tFalse\t0\nthing3/1.jpg\tthing3\tFalse\t4\n"
    digest = hashlib.sha256(f"{rows}2 0".encode()).hexdigest()  # 2 classes train, split seed 0
    assert own_print(tmp_path / "photos") == digest[:12] == "43800a6b6a5f"
    listed = "photos/thing0/1.jpg,b\nphotos/thing1/1.jpg,a\nphotos/thing2/1.jpg,10\nphotos/thing3/1.jpg,9\n"
    (tmp_path / "list.csv").write_text(f"path,label\n{listed}")
    assert own_print(tmp_path / "list.csv") == "013eb2e25296"  # as before lists with a split got their sides
    (tmp_path / "list.csv").write_text(
        "path,label,split\nphotos/a.jpg,b,train\nphotos/b.jpg,a,train\nphotos/thing1/1.jpg,d,query\n"
        "photos/thing3/1.jpg,d,gallery\nphotos/thing0/1.jpg,c,gallery\n"
    )
    rows = "photos/a.jpg\tb\ttrain\t-1\nphotos/b.jpg\ta\ttrain\t-1\nphotos/thing1/1.jpg\td\tquery\t2\n"
    rows += "photos/thing3/1.jpg\td\tgallery\t4\nphotos/thing0/1.jpg\tc\tgallery\t1\n"
    digest = hashlib.sha256(f"{rows}2 0".encode()).hexdigest()
    assert own_print(tmp_path / "list.csv") == digest[:12]


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


def test_which_classes_train_is_part_of_the_fingerprint_of_a_users_own_lists(tmp_path: Path) -> None:
    prints = set()
    for train in ("ab", "cd", "ac", "bd"):
        sides = {label: "train" if label in train else "test" for label in "abcd"}
        rows = "".join(f"{label}{n}.jpg,{label},{sides[label]}\n" for label in "abcd" for n in range(2))
        (tmp_path / "list.csv").write_text(f"path,label,split\n{rows}")
        prints.add(own_print(tmp_path / "list.csv"))
    for train in ((1, 2), (3, 4)):  # the same images in other lists, as a .toml describes them
        test = {1, 2, 3, 4} - set(train)
        lay_sop(tmp_path / "sop", dict.fromkeys(train, 2), dict.fromkeys(sorted(test), 2))
        (tmp_path / "mine.toml").write_text('layout = "sop"\nfolder = "sop"\n')
        prints.add(own_print(tmp_path / "mine.toml"))
    assert len(prints) == 6


def test_the_same_images_halved_elsewhere_are_another_dataset(tmp_path: Path) -> None:
    lay_cub(tmp_path)
    half, third = unasserted("cub"), replace(unasserted("cub"), train_classes=2)
    assert listing.identify(half, tmp_path).fingerprint != listing.identify(third, tmp_path).fingerprint


def test_numbers_that_are_not_known_are_those_found(tmp_path: Path) -> None:
    lay_inshop(tmp_path, ITEMS)
    dataset = listing.identify(replace(unasserted("inshop"), train_images=3), tmp_path)
    numbers = (
        dataset.train_classes,
        dataset.test_classes,
        dataset.train_images,
        dataset.test_images,
        dataset.query_images,
    )
    assert numbers == (2, 2, 3, 6, 3)


@pytest.mark.parametrize("name", config.names("datasets"))
def test_how_to_get_a_shipped_dataset_fits_a_message(name: str, tmp_path: Path) -> None:
    dataset = config.dataset(name)
    assert len(f"harness: {name}: cannot be downloaded; get it by hand: {dataset.manual}") <= 300
    assert len(listing.absence(dataset, Path("/home/somebody/projects/metric-learning/data"))) < 300
