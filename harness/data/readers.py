"""The layouts in which datasets lie on disk, and the reader of each: a folder to the images listed there."""

import csv
import io
import posixpath
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.spec import UserError, shortened

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
SIDES = ("train", "test", "query", "gallery")
LONGEST_LABEL = 1000  # characters; Python reads no number of more than 4,300 digits


@dataclass(frozen=True)
class Entry:
    """An image: its path under the dataset's folder, its class, and its side if the dataset's own lists give one."""

    path: str
    label: int | str
    side: str = ""


@dataclass(frozen=True)
class Layout:
    """How the files of a dataset lie."""

    words: str  # what the layout consists of
    markers: tuple[str, ...] = ()  # any of these marks the dataset's folder; "" is the folder or file itself
    reader: Callable[[Path], Iterator[Entry]] | None = None  # None: the dataset ships with the package
    lists: tuple[str, ...] = ()  # the files it reads beside the images


def cub(folder: Path) -> Iterator[Entry]:
    """images.txt and image_class_labels.txt, both `image_id value`."""
    file = folder / "image_class_labels.txt"
    labels = {row[0]: row[1] for row in table(file, 2)}
    for image, path in table(folder / "images.txt", 2):
        if image not in labels:
            raise UserError(f"{file}: no class for image {image}; images.txt lists it")
        yield Entry(f"images/{path}", class_id(labels[image], file))


def cars(folder: Path) -> Iterator[Entry]:
    """Cars196 in the forms it is found in: one list of all images, the devkit's two lists, or class folders.

    The order of classes differs between them, but not which 98 come first.
    """
    if (folder / "cars_annos.mat").exists() and (folder / "car_ims").is_dir():
        for row in annotations(folder / "cars_annos.mat", "relative_im_path", "class"):
            yield Entry(str(row["relative_im_path"]), int(row["class"]))
        return
    lists = devkit(folder)
    if not lists:
        yield from car_folders(folder)
    for part, file in lists.items():
        inner = f"{part}/{part}" if (folder / part / part).is_dir() else part  # some archives unpack like this
        for row in annotations(file, "fname", "class"):
            yield Entry(f"{inner}/{row['fname']}", int(row["class"]))


DEVKIT = {"cars_train": "cars_train_annos.mat", "cars_test": "cars_test_annos_withlabels.mat"}
KITS = ("devkit/", "", "car_devkit/devkit/")


def devkit(folder: Path) -> dict[str, Path]:
    """Image folder -> its list. The test list with labels is not part of the devkit, so it may lie beside it."""
    lists: dict[str, Path] = {}
    for part, name in DEVKIT.items():
        for kit in KITS:
            if part not in lists and (folder / kit / name).exists():
                lists[part] = folder / kit / name
    for part, name in DEVKIT.items():
        if lists and part not in lists:
            raise UserError(f"cars: {name} is missing under {folder / 'devkit'}; it holds half of the labels")
    return lists


def car_folders(folder: Path) -> Iterator[Entry]:
    """Class folders, perhaps inside car_data/, perhaps divided into train/ and test/ as for classification."""
    for images, labels in (("car_ims", "cars_annos.mat"), ("cars_train", "devkit/cars_train_annos.mat")):
        if (folder / images).is_dir():
            raise UserError(f"cars: {labels} is missing under {folder}; it holds the labels of {images}/")
    inner = next(name for name in ("car_data/car_data/", "car_data/", "") if (folder / name).is_dir())
    parts = [f"{inner}{side}/" for side in ("train", "test") if (folder / inner / side).is_dir()]
    for part in parts or [inner]:
        for entry in class_folders(folder / part):
            yield replace(entry, path=f"{part}{entry.path}")


def sop(folder: Path) -> Iterator[Entry]:
    """Ebay_train.txt and Ebay_test.txt: image_id class_id super_class_id path, under a header."""
    for side in ("train", "test"):
        file = folder / f"Ebay_{side}.txt"
        for row in list(table(file, 4))[1:]:
            yield Entry(row[3], class_id(row[1], file), side)


INSHOP_LISTS = ("Eval/list_eval_partition.txt", "list_eval_partition.txt", "Anno/list_eval_partition.txt")


def inshop(folder: Path) -> Iterator[Entry]:
    """list_eval_partition.txt: image_name item_id evaluation_status, under a count and a header."""
    file = next(folder / name for name in INSHOP_LISTS if (folder / name).exists())
    images = "Img/" if (folder / "Img" / "img").is_dir() else ""
    for name, item, side in list(table(file, 3, skip=1))[1:]:
        if side not in SIDES:
            raise UserError(f"{file}: evaluation_status={side}: must be train, query or gallery")
        yield Entry(f"{images}{name}", item, side)


def class_folders(folder: Path) -> Iterator[Entry]:
    """A folder of class folders of images; hidden files and folders are ignored."""
    try:
        classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise UserError(f"cannot read {folder} as a folder of class folders: {error.strerror}") from None
    if {"train", "test"} <= {path.name for path in classes}:
        raise UserError(f"{folder}: contains train/ and test/, not class folders; list the images in a .csv instead")
    if not classes:
        images = sum(path.suffix.lower() in SUFFIXES for path in folder.iterdir())
        if images:
            raise UserError(f"{folder}: its {images} images lie in no class folder; give each class its own")
    for inner in classes:
        for file in sorted(inner.rglob("*")):
            path = file.relative_to(folder)
            if file.suffix.lower() in SUFFIXES and not any(part.startswith(".") for part in path.parts):
                yield Entry(path.as_posix(), inner.name)


def csv_list(file: Path) -> Iterator[Entry]:
    """path,label[,split] under a header; paths are relative to the file's folder."""
    reader = csv.reader(io.StringIO(text(file)))
    try:
        rows = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise UserError(f"{file}, line {reader.line_num}: {error}") from None
    header = rows[0][1] if rows else []
    if sorted(header) not in (["label", "path"], ["label", "path", "split"]):
        raise UserError(f"{file}: the header is {','.join(header)[:80]!r}; must be path,label or path,label,split")
    seen = set()
    for line, row in rows[1:]:
        values = dict(zip(header, map(str.strip, row), strict=False))
        path, label, side = (values.get(name, "") for name in ("path", "label", "split"))
        if side and side not in SIDES:
            raise UserError(f"{file}, line {line}: split={shortened(side)}: must be one of {', '.join(SIDES)}")
        if len(label) > LONGEST_LABEL:
            raise UserError(
                f"{file}, line {line}: label={shortened(label)}: must have at most {LONGEST_LABEL} characters"
            )
        if not path or not label or len(row) != len(header):
            raise UserError(f"{file}, line {line}: {','.join(row)[:80]!r}: must be path,label[,{'|'.join(SIDES)}]")
        if posixpath.normpath(path) in seen:  # as a query it would retrieve itself
            raise UserError(f"{file}, line {line}: {path} is listed twice; list every image once")
        seen.add(posixpath.normpath(path))
        yield Entry(path, label, side)


def table(file: Path, columns: int, skip: int = 0) -> Iterator[list[str]]:
    """The rows of a text file, split at spaces; the last column may contain spaces."""
    for number, line in enumerate(text(file).splitlines()[skip:], start=skip + 1):
        row = line.split(maxsplit=columns - 1)
        if row and len(row) != columns:
            raise UserError(f"{file}, line {number}: expected {columns} columns, found {line[:80]!r}")
        if row:
            yield [word.strip() for word in row]


def text(file: Path) -> str:
    require_file(file)
    try:
        content = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file}: {getattr(error, 'strerror', 'it is not UTF-8 text')}") from None
    before, nul, _ = content.partition("\0")
    if nul:
        raise UserError(f"cannot read {file}: line {before.count(chr(10)) + 1} contains a NUL byte")
    return content


def require_file(file: Path) -> None:
    """A UserError for what is there and no file, such as a pipe: reading it might never end."""
    if file.exists() and not file.is_file() and not file.is_dir():
        raise UserError(f"cannot read {file}: it is not a file")


def class_id(word: str, file: Path) -> int:
    if not word.isdecimal() or len(word) > LONGEST_LABEL:
        raise UserError(f"{file}: {shortened(word)!r} is not a class id; must be a whole number")
    return int(word)


def annotations(file: Path, *fields: str) -> list[dict[str, Any]]:
    """These fields of the rows of a Matlab struct array called `annotations`."""
    from scipy.io import loadmat

    require_file(file)
    try:
        return [{name: row[name] for name in fields} for row in loadmat(file, squeeze_me=True)["annotations"]]
    except Exception as error:  # scipy raises a different kind for each way in which a file is damaged
        raise UserError(f"{file} is not the annotation file of Cars196: {error}") from None


LAYOUTS: Mapping[str, Layout] = {
    "embedded": Layout(
        "nothing: the dataset ships with the package",
    ),
    "cub": Layout(
        "images.txt, image_class_labels.txt and images/",
        ("images.txt",),
        cub,
        ("images.txt", "image_class_labels.txt", "classes.txt"),
    ),
    "cars": Layout(
        "car_ims/ and cars_annos.mat; cars_train/, cars_test/ and devkit/; or class folders",
        ("car_ims", "cars_train", "train", "car_data", "AM General Hummer SUV 2000"),
        cars,
        ("cars_annos.mat", *(f"{kit}{name}" for kit in KITS for name in DEVKIT.values())),
    ),
    "sop": Layout(
        "Ebay_train.txt, Ebay_test.txt and the images they list",
        ("Ebay_train.txt",),
        sop,
        ("Ebay_train.txt", "Ebay_test.txt"),
    ),
    "inshop": Layout(
        "list_eval_partition.txt (or in Eval/ or Anno/) and img/ (or in Img/)",
        INSHOP_LISTS,
        inshop,
        INSHOP_LISTS,
    ),
    "folder": Layout(
        "class folders of images",
        ("",),
        class_folders,
    ),
    "csv": Layout(
        "a list path,label[,split] with a header",
        ("",),
        csv_list,
    ),
}
