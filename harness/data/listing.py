"""Which images a dataset has, of which classes, and on which side of the split: a reader for each layout.

Classes are split, never images: the first half of the classes by id trains, the second tests, or the dataset's own
lists say which. The image lists that come with CUB and Cars for classification put the same classes on both sides;
they are not read.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.data.readers import MARKERS, READERS, Entry
from harness.spec import Dataset, UserError

SPLITS = ({""}, {"train", "test"}, {"train", "query", "gallery"})  # what a dataset's lists may say
MISSING = -1  # the size of a file that is not there


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
