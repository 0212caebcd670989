"""A reader for each layout of files that datasets are found in: a folder to its entries."""

import csv
import io
import posixpath
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.spec import UserError

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
SIDES = ("train", "test", "query", "gallery")


@dataclass(frozen=True)
class Entry:
    """An image: its path under the dataset's folder, its class, and its side if the dataset's own lists give one."""

    path: str
    label: int | str
    side: str = ""


def cub(folder: Path) -> Iterator[Entry]:
    """images.txt and image_class_labels.txt, both `image_id value`."""
    labels = {row[0]: row[1] for row in table(folder / "image_class_labels.txt", 2)}
    for image, path in table(folder / "images.txt", 2):
        if image not in labels:
            raise UserError(f"{folder / 'image_class_labels.txt'} has no class for image {image}")
        yield Entry(f"images/{path}", number(labels[image], folder / "image_class_labels.txt"))


def cars(folder: Path) -> Iterator[Entry]:
    """Cars196 in the forms it is found in: one list of all images, the devkit's two lists, or class folders.

    The order of classes differs between them, but not which 98 come first.
    """
    if (folder / "cars_annos.mat").exists() and (folder / "car_ims").is_dir():
        for row in annotations(folder / "cars_annos.mat", "relative_im_path", "class"):
            yield Entry(str(row["relative_im_path"]), int(row["class"]))
    elif lists := devkit(folder):
        for part, file in lists.items():
            inner = f"{part}/{part}" if (folder / part / part).is_dir() else part  # as some archives unpack
            for row in annotations(file, "fname", "class"):
                yield Entry(f"{inner}/{row['fname']}", int(row["class"]))
    else:
        for images, labels in (("car_ims", "cars_annos.mat"), ("cars_train", "devkit/cars_train_annos.mat")):
            if (folder / images).is_dir():
                raise UserError(f"cars: {labels} is missing under {folder}: the labels are in it")
        within = next(place for place in ("car_data/car_data/", "car_data/", "") if (folder / place).is_dir())
        # some copies keep the classification split: the same class folders under train/ and test/
        parts = [f"{within}{side}" for side in ("train", "test") if (folder / within / side).is_dir()]
        for part in parts or [within.rstrip("/")]:
            for entry in class_folders(folder / part):
                yield replace(entry, path=f"{part}/{entry.path}" if part else entry.path)


def devkit(folder: Path) -> dict[str, Path]:
    """Image folder -> its list; the test list with labels comes apart from the devkit and lies where it was put."""
    lists = {"cars_train": "cars_train_annos.mat", "cars_test": "cars_test_annos_withlabels.mat"}
    kits = (folder / "devkit", folder, folder / "car_devkit" / "devkit")
    found = {}
    for part, name in lists.items():
        places = [kit / name for kit in kits if (kit / name).exists()]
        if places:
            found[part] = places[0]
    if found and len(found) < len(lists):
        missing = next(name for part, name in lists.items() if part not in found)
        raise UserError(f"cars: {missing} is missing under {folder / 'devkit'}: half of the labels are in it")
    return found


def sop(folder: Path) -> Iterator[Entry]:
    """Ebay_train.txt and Ebay_test.txt: image_id class_id super_class_id path, under a header."""
    for side in ("train", "test"):
        file = folder / f"Ebay_{side}.txt"
        for row in list(table(file, 4))[1:]:
            yield Entry(row[3], number(row[1], file), side)


def inshop(folder: Path) -> Iterator[Entry]:
    """list_eval_partition.txt: image_name item_id evaluation_status, under a count and a header."""
    file = next(folder / name for name in MARKERS["inshop"] if (folder / name).exists())
    images = "Img/" if (folder / "Img" / "img").is_dir() else ""
    for name, item, side in list(table(file, 3, skip=1))[1:]:
        if side not in SIDES:
            raise UserError(f"{file}: evaluation_status={side}: allowed is train, query or gallery")
        yield Entry(f"{images}{name}", item, side)


def class_folders(folder: Path) -> Iterator[Entry]:
    """A folder of class folders of images; what is hidden is left out."""
    try:
        inside = sorted(one for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))
    except OSError as error:
        raise UserError(f"cannot read {folder} as a folder of class folders: {error.strerror}") from None
    if {"train", "test"} <= {one.name for one in inside}:
        raise UserError(f"{folder} has folders train and test, not classes: write a .csv with path,label,split")
    for inner in inside:
        for file in sorted(inner.rglob("*")):
            path = file.relative_to(folder)
            if file.suffix.lower() in SUFFIXES and not any(part.startswith(".") for part in path.parts):
                yield Entry(path.as_posix(), inner.name)


def csv_list(file: Path) -> Iterator[Entry]:
    """path,label[,split] under a header; paths start at the file's folder."""
    reader = csv.reader(io.StringIO(text(file)))
    try:
        rows = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise UserError(f"{file}, line {reader.line_num}: {error}") from None
    header = rows[0][1] if rows else []
    if sorted(header) not in (["label", "path"], ["label", "path", "split"]):
        raise UserError(f"{file}: the header is {','.join(header)}: allowed is path,label[,split]")
    seen = set()
    for line, row in rows[1:]:
        named = dict(zip(header, map(str.strip, row), strict=False))
        path, label, side = (named.get(name, "") for name in ("path", "label", "split"))
        if not path or not label or len(row) != len(header) or (side and side not in SIDES):
            raise UserError(f"{file}, line {line}: allowed is path,label[,{'|'.join(SIDES)}]")
        if posixpath.normpath(path) in seen:  # it would find itself
            raise UserError(f"{file}, line {line}: {path} is listed twice")
        seen.add(posixpath.normpath(path))
        yield Entry(path, label, side)


def table(file: Path, columns: int, skip: int = 0) -> Iterator[list[str]]:
    """Rows of a text file, split at spaces; the last column may hold some."""
    for place, line in enumerate(text(file).splitlines()[skip:], start=skip + 1):
        row = line.split(maxsplit=columns - 1)
        if row and len(row) != columns:
            raise UserError(f"{file}, line {place}: expected {columns} columns, found {line[:80]!r}")
        if row:
            yield [word.strip() for word in row]


def text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file}: {getattr(error, 'strerror', 'it is not UTF-8 text')}") from None


def number(word: str, file: Path) -> int:
    if not word.isdecimal():
        raise UserError(f"{file}: {word!r} is not a class id")
    return int(word)


def annotations(file: Path, *fields: str) -> list[dict[str, Any]]:
    """These fields of the rows of a Matlab struct array called `annotations`."""
    from scipy.io import loadmat

    try:
        return [{name: row[name] for name in fields} for row in loadmat(file, squeeze_me=True)["annotations"]]
    except Exception as error:  # scipy has no common one for files that are damaged or something else
        raise UserError(f"{file} is not the annotation file of Cars196: {error}") from None


READERS: Mapping[str, Callable[[Path], Iterator[Entry]]] = {
    "cub": cub,
    "cars": cars,
    "sop": sop,
    "inshop": inshop,
    "folder": class_folders,
    "csv": csv_list,
}
# A file or folder by which a dataset is known; "" is the place itself.
MARKERS: Mapping[str, tuple[str, ...]] = {
    "cub": ("images.txt",),
    "cars": ("car_ims", "cars_train", "train", "car_data", "AM General Hummer SUV 2000"),
    "sop": ("Ebay_train.txt",),
    "inshop": ("Eval/list_eval_partition.txt", "list_eval_partition.txt", "Anno/list_eval_partition.txt"),
    "folder": ("",),
    "csv": ("",),
}
