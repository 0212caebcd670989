"""Which images a dataset has, of which classes, and on which side of the split; what identifies its files.

Classes are split, never images: the first half of the classes by id trains and the second half tests, unless the
dataset's own lists give the split. The image lists that come with CUB and Cars for classification put the same classes
on both sides; they are not read.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.data import contents, stamps
from harness.data.readers import LAYOUTS, Entry
from harness.data.stamps import Stamp
from harness.spec import Dataset, UserError

SPLITS = ({""}, {"train", "test"}, {"train", "query", "gallery"})  # the sides that a dataset's lists may name
MISSING = -1  # the size of a file that does not exist


@dataclass(frozen=True)
class Listing:
    """The images of a dataset; the first `train_classes` of its classes train, the others test."""

    folder: Path
    paths: tuple[str, ...]
    labels: tuple[int, ...]  # indices into `classes`
    classes: tuple[str, ...]
    train_classes: int
    queries: tuple[bool, ...] = ()  # whether each image is a query; empty: every test image is query and gallery
    split_seed: int = 0  # of the validation folds
    own_split: bool = False  # a user's own lists name the sides, which do not follow from the classes

    @cached_property
    def stamps(self) -> tuple[Stamp | None, ...]:
        """What the disk says of each file, looked up once; None if it is missing."""
        return tuple(stamps.look_up(self.folder, self.paths))

    def side(self, number: int) -> str:
        """The side that an image is on: train, test, query or gallery."""
        if self.labels[number] < self.train_classes:
            return "train"
        if not self.queries:
            return "test"
        return "query" if self.queries[number] else "gallery"

    def counts(self) -> dict[str, int]:
        train_images = sum(label < self.train_classes for label in self.labels)
        return {
            "train_classes": self.train_classes,
            "test_classes": len(self.classes) - self.train_classes,
            "train_images": train_images,
            "test_images": len(self.labels) - train_images,
            "query_images": sum(self.queries),
        }


def identify(dataset: Dataset, root: Path, say: Callable[[str], None] = lambda line: None) -> Dataset:
    """The dataset with the fingerprint of its files, with their counts if its configuration gives none, and with the
    digest of their contents if it is known: of a user's own they are read now, unless they were read before.

    A UserError if an image is listed twice, or if a user's own has two identical test images.
    """
    if dataset.layout == "embedded":
        return replace(dataset, fingerprint=dataset.sha256[:12])
    listing = read(dataset, root)
    for problem in links(dataset, listing):
        raise UserError(problem)
    counts: dict[str, Any] = {name: count for name, count in listing.counts().items() if not getattr(dataset, name)}
    if dataset.copies:
        digests = contents.known(dataset.name, listing)
    else:
        digests = contents.read(dataset.name, listing, say)
        for problem in copies(dataset, listing, digests):
            raise UserError(problem)
    sha256 = contents.sha256(digests) if digests else ""
    return replace(dataset, fingerprint=fingerprint(listing), sha256=sha256, **counts)


def read(dataset: Dataset, root: Path) -> Listing:
    """The dataset's images; a UserError if their counts are not those of its configuration."""
    listing = survey(dataset, root)
    for problem in miscounts(dataset, listing):
        raise UserError(problem)
    return listing


def survey(dataset: Dataset, root: Path) -> Listing:
    """The dataset's images, whatever their counts. Files are listed, not opened."""
    path = locate(dataset, root)
    folder = path if path.is_dir() else path.parent  # the paths in a .csv are relative to its folder
    reader = LAYOUTS[dataset.layout].reader
    assert reader is not None, "an embedded dataset has no files"
    return arrange(dataset, folder, reader(path))


def miscounts(dataset: Dataset, listing: Listing) -> Iterator[str]:
    """A sentence for each count that differs from the dataset's configuration."""
    for name, count in listing.counts().items():
        expected = getattr(dataset, name)
        if expected and expected != count:
            noun = name.replace("train_", "training ").replace("_", " ")
            yield f"{dataset.name}: expected {expected} {noun}, found {count} under {listing.folder}"


def locate(dataset: Dataset, root: Path) -> Path:
    """The dataset's folder: under the data root by its usual or its short name, or the data root itself."""
    folders = candidates(dataset, root)
    for folder in folders:
        if is_marked(dataset, folder):
            return folder
    raise UserError(absence(dataset, root))


def absence(dataset: Dataset, root: Path) -> str:
    """That a dataset is not there, and how to get it."""
    words = LAYOUTS[dataset.layout].words
    if Path(dataset.folder).is_absolute():
        return f"{dataset.name}: not found at {dataset.folder}; expected {words}"
    *folders, top = candidates(dataset, root)
    get = f"get it: harness data download {dataset.name}" if dataset.archives else f"see: harness show {dataset.name}"
    searched = f"{top} and its {', '.join(folder.name for folder in folders)}"
    return f"{dataset.name}: not found; searched {searched} for {words}; set --data-root or HARNESS_DATA, or {get}"


def exists(dataset: Dataset, root: Path) -> bool:
    return any(is_marked(dataset, folder) for folder in candidates(dataset, root))


def candidates(dataset: Dataset, root: Path) -> list[Path]:
    """The folders that may be the dataset's, in the order in which they are tried."""
    if Path(dataset.folder).is_absolute():
        return [Path(dataset.folder)]
    return [(root / dataset.folder).absolute(), (root / dataset.name).absolute(), root.absolute()]


def is_marked(dataset: Dataset, folder: Path) -> bool:
    return any((folder / marker).exists() for marker in LAYOUTS[dataset.layout].markers)


def arrange(dataset: Dataset, folder: Path, entries: Iterable[Entry]) -> Listing:
    """The entries as a Listing: classes in order, training classes first. A UserError if they cannot be split so."""
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
        said = ", ".join(sorted(side or "nothing for some images" for side in sides))
        raise UserError(
            f"{dataset.name}: the split under {folder} says {said}; must say train of some images, and test (or "
            "query and gallery) of the others"
        )
    if training:
        classes = sorted(training, key=natural) + sorted(testing, key=natural)
    train_classes = len(training) or dataset.train_classes or -(-len(classes) // 2)
    if not 2 <= train_classes <= len(classes) - 2:
        raise UserError(
            f"{dataset.name}: the split under {folder} has {train_classes} training and {len(classes) - train_classes} "
            "test classes; each side needs at least 2"
        )
    index = {label: number for number, label in enumerate(classes)}
    return Listing(
        folder,
        tuple(entry.path for entry in entries),
        tuple(index[entry.label] for entry in entries),
        tuple(map(str, classes)),
        train_classes,
        tuple(entry.side == "query" for entry in entries) if "query" in sides else (),
        dataset.split_seed,
        own_split=bool(training) and dataset.is_own,
    )


def natural(label: int | str) -> tuple[Any, ...]:
    """Order by id: numbers as numbers, also inside names (2.sparrow before 10.gull)."""
    words = [word for word in re.split(r"(\d+)", str(label)) if word]
    keys = [(0, int(word), "") if word.isdecimal() else (1, 0, word) for word in words]
    return (*keys, (-1, 0, str(label)))


def fingerprint(listing: Listing) -> str:
    """12 hex digits of every image's path, class, side and size: a resized copy is another dataset.

    Unless a user's own lists name the sides, they follow from the classes, their order and the number that train.
    """
    digest = hashlib.sha256()
    queries = listing.queries or (False,) * len(listing.paths)
    for number, (path, label, stamp) in enumerate(zip(listing.paths, listing.labels, listing.stamps, strict=True)):
        side = listing.side(number) if listing.own_split else queries[number]
        size = MISSING if stamp is None else stamp.size
        digest.update(f"{path}\t{listing.classes[label]}\t{side}\t{size}\n".encode(errors="surrogateescape"))
    digest.update(f"{listing.train_classes} {listing.split_seed}".encode())
    return digest.hexdigest()[:12]


def unmatched(dataset: Dataset, listing: Listing) -> Iterator[str]:
    """A sentence if no test image has another one of its class to find."""
    tested = [(label, listing.side(number)) for number, label in enumerate(listing.labels)]
    queries = {label for label, side in tested if side == "query"}
    if listing.queries:
        if not queries & {label for label, side in tested if side == "gallery"}:
            yield f"{dataset.name}: no query under {listing.folder} has an image of its class in the gallery"
    elif max(Counter(label for label, side in tested if side == "test").values()) < 2:
        yield f"{dataset.name}: every test class under {listing.folder} has a single image; nothing can be retrieved"


def links(dataset: Dataset, listing: Listing) -> Iterator[str]:
    """A sentence for each image that is listed under two names: as a query it would find itself."""
    for one, other in stamps.same_files(listing.folder, listing.paths, listing.stamps):
        yield (
            f"{dataset.name}: {one} and {other} are one file under {listing.folder}; "
            "list every image once: as a query it would find itself"
        )


def copies(dataset: Dataset, listing: Listing, digests: contents.Digests) -> Iterator[str]:
    """A sentence for each test image that is identical to another one."""
    for one, other in contents.copies(listing, digests):
        yield (
            f"{dataset.name}: {one} and {other} under {listing.folder} are identical: as a query, one would find the "
            "other; remove one of them, or say copies = true in a .toml if both belong to the dataset"
        )
