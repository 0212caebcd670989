"""Which images a dataset has, of which classes, and on which side of the split: a reader for each layout.

Classes are split, never images: the first half of the classes by id trains, the second tests, or the dataset's own
lists say which. The image lists that come with CUB and Cars for classification put the same classes on both sides;
they are not read.
"""

import csv
import hashlib
import io
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.spec import Dataset, UserError

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
SIDES = ("train", "test", "query", "gallery")
SPLITS = ({""}, {"train", "test"}, {"train", "query", "gallery"})  # what a dataset's lists may say
MISSING = -1  # the size of a file that is not there


@dataclass(frozen=True)
class Entry:
    """An image: its path under the dataset's folder, its class, and its side if the dataset's own lists give one."""

    path: str
    label: int | str
    side: str = ""


@dataclass(frozen=True)
class Listing:
    """The images of a dataset; the first `train_classes` of its classes train, the others test."""

    folder: Path
    paths: tuple[str, ...]
    labels: tuple[int, ...]  # index `classes`
    classes: tuple[str, ...]
    train_classes: int
    queries: tuple[bool, ...] = ()  # which images are; empty: every test image is one, and in the gallery
    split_seed: int = 0  # of the validation folds

    def counts(self) -> dict[str, int]:
        training = sum(label < self.train_classes for label in self.labels)
        return {
            "train_classes": self.train_classes,
            "test_classes": len(self.classes) - self.train_classes,
            "train_images": training,
            "test_images": len(self.labels) - training,
            "query_images": sum(self.queries),
        }


def identify(dataset: Dataset, root: Path) -> Dataset:
    """The dataset with the fingerprint of what lies there, and its counts where they were not known."""
    if dataset.layout == "embedded":
        return replace(dataset, fingerprint=dataset.sha256[:12])
    found = read(dataset, root)
    counts: dict[str, Any] = {name: count for name, count in found.counts().items() if not getattr(dataset, name)}
    return replace(dataset, fingerprint=fingerprint(found), **counts)


def read(dataset: Dataset, root: Path) -> Listing:
    """The dataset's images, their numbers asserted."""
    found = survey(dataset, root)
    for problem in miscounts(dataset, found):
        raise UserError(problem)
    return found


def survey(dataset: Dataset, root: Path) -> Listing:
    """The dataset's images, however many there are. Files are listed, not opened."""
    place = locate(dataset, root)
    folder = place if place.is_dir() else place.parent  # a CSV's paths start beside it
    return arrange(dataset, folder, READERS[dataset.layout](place))


def miscounts(dataset: Dataset, found: Listing) -> Iterator[str]:
    """Where the numbers are not those of the dataset's configuration, in words."""
    for name, count in found.counts().items():
        expected = getattr(dataset, name)
        if expected and expected != count:
            what = name.replace("train_", "training ").replace("_", " ")
            yield f"{dataset.name}: expected {expected} {what}, found {count} under {found.folder}"


def locate(dataset: Dataset, root: Path) -> Path:
    """The dataset's folder: under the data root by its usual or its short name, or the data root itself."""
    found = next(filter(partial(marked, dataset), places(dataset, root)), None)
    if found is not None:
        return found
    looked = ", ".join(map(str, places(dataset, root)))
    wanted = " or ".join(filter(None, MARKERS[dataset.layout]))
    if Path(dataset.folder).is_absolute():
        raise UserError(f"{dataset.name}: nothing at {looked}" + (f" with {wanted}" if wanted else ""))
    ways = f"{f'harness data download {dataset.name}; or ' if dataset.archives else ''}by hand: {dataset.manual}"
    raise UserError(
        f"{dataset.name}: no data; looked for {wanted} in {looked}. If it is elsewhere: --data-root DIR or "
        f"HARNESS_DATA. To get it: {ways}"
    )


def is_there(dataset: Dataset, root: Path) -> bool:
    return any(marked(dataset, place) for place in places(dataset, root))


def places(dataset: Dataset, root: Path) -> list[Path]:
    if Path(dataset.folder).is_absolute():
        return [Path(dataset.folder)]
    return [(root / dataset.folder).absolute(), (root / dataset.name).absolute(), root.absolute()]


def marked(dataset: Dataset, place: Path) -> bool:
    return any((place / marker).exists() for marker in MARKERS[dataset.layout])


def arrange(dataset: Dataset, folder: Path, entries: Iterable[Entry]) -> Listing:
    """Classes in order, those that train first; a UserError where one class is on both sides."""
    entries = list(entries)
    if not entries:
        raise UserError(f"{dataset.name}: no images under {folder}")
    classes = sorted({entry.label for entry in entries}, key=natural)
    training = {entry.label for entry in entries if entry.side == "train"}
    testing = {entry.label for entry in entries if entry.side not in ("", "train")}
    if both := training & testing:
        raise UserError(
            f"{dataset.name}: class {min(both, key=natural)} has images on both sides of the split under {folder}; "
            "the split must be by classes"
        )
    sides = {entry.side for entry in entries}
    if sides not in SPLITS:
        raise UserError(
            f"{dataset.name}: split must say train or test of every image, or train, query or gallery; "
            f"under {folder} it says {', '.join(sorted(side or 'nothing' for side in sides))}"
        )
    if training:
        classes = sorted(training, key=natural) + sorted(testing, key=natural)
    half = len(training) or dataset.train_classes or -(-len(classes) // 2)
    if not 2 <= half <= len(classes) - 2:
        raise UserError(
            f"{dataset.name}: {len(classes)} classes under {folder}, of which {half} are to train; "
            "each side of the split needs 2"
        )
    place = {label: index for index, label in enumerate(classes)}
    return Listing(
        folder,
        tuple(entry.path for entry in entries),
        tuple(place[entry.label] for entry in entries),
        tuple(map(str, classes)),
        half,
        tuple(entry.side == "query" for entry in entries) if "query" in sides else (),
        dataset.split_seed,
    )


def natural(label: int | str) -> tuple[Any, ...]:
    """Order by id: numbers as numbers, also inside names (2.sparrow before 10.gull)."""
    words = re.split(r"(\d+)", str(label))
    return *((0, int(word), "") if word.isdecimal() else (1, 0, word) for word in words if word), (-1, 0, str(label))


def fingerprint(listing: Listing) -> str:
    """12 hex digits of what the listing says and how large the files are: a resized copy is another dataset."""
    hashed = hashlib.sha256()
    queries = listing.queries or (False,) * len(listing.paths)
    rows = zip(listing.paths, listing.labels, queries, sizes(listing), strict=True)
    for path, label, query, size in rows:
        hashed.update(f"{path}\t{listing.classes[label]}\t{query}\t{size}\n".encode(errors="surrogateescape"))
    hashed.update(f"{listing.train_classes} {listing.split_seed}".encode())
    return hashed.hexdigest()[:12]


def sizes(listing: Listing) -> list[int]:
    """Bytes of each file. Many at once: on a network drive each question takes its time."""

    def size(path: str) -> int:
        try:
            return (listing.folder / path).stat().st_size
        except OSError:
            return MISSING

    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(size, listing.paths, chunksize=256))


# --- readers: a folder to its entries ---


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
