"""What stored records look like: a table of fields per kind of record, which every file is held to when it is read.

Only types are checked, and ranges that no version of the harness ever leaves. What a user may ask for today is another
question, which Field answers: a limit that is tightened there makes no stored record unreadable. Unknown fields are
those of a newer version: they are passed over.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.spec.metrics import METRICS

LARGEST = 1e15  # of seconds, images and parameters: sums and products of them stay finite
ROUNDING = 1e-6  # a fraction that is computed may lie so far outside of 0 to 1
ROUNDING_COSINE = 1e-3  # a mean cosine so far outside of -1 to 1: it is computed from distances, and has 4 digits
MOST_FOLDS = 100
LONGEST_NAME = 255  # bytes: file systems allow no longer one
DEEPEST = 16  # lists and tables inside each other, in a field that this version does not know


@dataclass(frozen=True)
class Kind:
    """A single value."""

    words: str  # what it must be
    fits: Callable[[Any], bool]


@dataclass(frozen=True)
class List:
    """Any number of values of one kind."""

    of: "Shape"


@dataclass(frozen=True)
class Table:
    """Fields by their name. `families`: those of names that match a pattern. `others`: what a field with another name
    must be; its name matches `names`."""

    needed: Mapping[str, "Shape"] = field(default_factory=dict)
    optional: Mapping[str, "Shape"] = field(default_factory=dict)
    families: Mapping[str, "Shape"] = field(default_factory=dict)
    others: "Shape | None" = None
    names: str = r".*"


Shape = Kind | List | Table


def is_number(value: Any) -> bool:
    """A finite number. True and false are no numbers, and an integer may be too large to compute with."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and is_number(value)


def is_text(value: Any) -> bool:
    """Text that can be written: half of a surrogate pair cannot."""
    return isinstance(value, str) and not re.search(r"[\ud800-\udfff]", value)


def is_name(value: Any) -> bool:
    """The name of a file or folder; a loss's may have a colon."""
    return is_text(value) and bool(re.fullmatch(r"(?!\.+$)[\w.:-]+", value)) and len(value.encode()) <= LONGEST_NAME


def is_path(value: Any) -> bool:
    """The path of a file inside a storage."""
    return is_text(value) and bool(value) and not value.startswith("/") and ".." not in value.split("/")


def is_version(value: Any) -> bool:
    return is_whole(value) or is_text(value)


def is_plain(value: Any, depth: int = DEEPEST) -> bool:
    """Anything that can be written as JSON and is not nested too deeply."""
    if isinstance(value, list | tuple):
        return depth > 0 and all(is_plain(item, depth - 1) for item in value)
    if isinstance(value, dict):
        return depth > 0 and all(is_text(key) and is_plain(item, depth - 1) for key, item in value.items())
    return value is None or isinstance(value, bool) or is_text(value) or is_number(value)


def number(least: float, most: float, words: str) -> Kind:
    return Kind(words, lambda value: is_number(value) and least <= value <= most)


def matching(pattern: str, words: str) -> Kind:
    return Kind(words, lambda value: is_text(value) and re.fullmatch(pattern, value) is not None)


def or_null(kind: Kind) -> Kind:
    return Kind(f"{kind.words} or null", lambda value: value is None or kind.fits(value))


NUMBER = Kind("a finite number", is_number)
FRACTION = number(-ROUNDING, 1 + ROUNDING, "a number from 0 to 1")
COSINE = number(-1 - ROUNDING_COSINE, 1 + ROUNDING_COSINE, "a number from -1 to 1")
AMOUNT = number(0, LARGEST, f"a number from 0 to {LARGEST:g}")
WHOLE = Kind("an integer", is_whole)
COUNT = Kind(f"an integer from 0 to {LARGEST:g}", lambda value: is_whole(value) and 0 <= value <= LARGEST)
BOOLEAN = Kind("true or false", lambda value: isinstance(value, bool))
FOLDS = Kind(f"an integer from 1 to {MOST_FOLDS}", lambda value: is_whole(value) and 1 <= value <= MOST_FOLDS)
TEXT = Kind("text", is_text)
NAME = Kind("a name of letters, digits and . : _ -", is_name)
VERSION = Kind("an integer or text", is_version)
PLAIN = Kind("plain JSON", is_plain)
ID = matching(r"[0-9a-f]{12}", "an id of 12 hexadecimal digits")
SHA256 = matching(r"[0-9a-f]{64}", "a checksum of 64 hexadecimal digits")
PATH = Kind("a relative path without ..", is_path)
SOURCE = r"(\w+/)*[\w.-]+\.py"  # the path of a file of a user's own loss: relative, without ..
METRIC = r"R@[1-9]\d{0,17}|(?!R@).{1,100}"  # the name of a metric
CURVE_METRIC = rf"(train )?({'|'.join(metric.pattern for metric in METRICS)})"  # of one that is known, in a curve

ARTIFACTS = ("embeddings", "weights")  # what a result may have in the storage, in the folder of that name
SHARED_ARTIFACT = "pretrained"  # other trials begin with it, so it is not taken over from elsewhere


def artifact(folder: str) -> Table:
    """A file of a result. One outside of its folder could be a checkpoint, from which another trial would go on."""
    path = matching(rf"{folder}/(?!\.)[\w.-]+", f"a file in {folder}/")
    return Table(needed={"path": path, "sha256": SHA256})


TRIAL = Table(  # its settings are Fields, and know their types
    needed={
        "dataset": NAME,
        "dataset_version": WHOLE,
        "fingerprint": TEXT,
        "protocol": TEXT,
        "loss": NAME,
        "loss_version": VERSION,
        "knobs": Table(others=PLAIN),
    },
    optional={"teacher": ID},
    others=PLAIN,
)

CONDITIONS = Table(
    optional={
        "packages": Table(others=or_null(TEXT)),
        "device_type": or_null(TEXT),
        "device": or_null(TEXT),
        "threads": or_null(COUNT),
    },
    others=PLAIN,
)

PROVENANCE = Table(
    optional={
        "command": or_null(TEXT),
        "commit": or_null(TEXT),
        "harness": or_null(TEXT),
        "python": or_null(TEXT),
        **CONDITIONS.optional,
        "platform": or_null(TEXT),
        "node": or_null(TEXT),
        "data": or_null(TEXT),
        "data_sha256": or_null(TEXT),
        "copies": or_null(COUNT),
        "weights_file": or_null(TEXT),
        "weights_sha256": or_null(TEXT),
        "bad_images_skipped": COUNT,
        "sources": Table(others=SHA256, names=SOURCE),
        "attempts": List(CONDITIONS),  # if they differ, all of them
        "pid": or_null(COUNT),
        "finished": or_null(TEXT),
        "purpose": or_null(TEXT),
        "scheduler": or_null(TEXT),
        "pretraining": Table(needed={"id": ID, "seconds": AMOUNT}),
        "teacher": Table(needed={"id": ID, "title": TEXT, "seconds": AMOUNT, "images": AMOUNT}),
    },
    others=PLAIN,
)

RESULT = Table(
    needed={
        "id": ID,
        "trial": Table(),  # TRIAL, which Trial.from_json checks
        "title": TEXT,
        "cite": TEXT,
        "metrics": Table(others=FRACTION, names=METRIC),  # R@1 but for a pre-training: Result.from_json checks
        "conventions": Table(others=TEXT),
        "curve": List(
            Table(
                needed={"epoch": COUNT},
                optional={"images": AMOUNT, "images_per_second": AMOUNT, "loss": NUMBER, "cosine": COSINE},
                families={CURVE_METRIC: FRACTION},
                others=number(-LARGEST, LARGEST, "a number"),
            )
        ),
        "seconds": Table(needed={"total": AMOUNT}, others=AMOUNT),
        "parameters": COUNT,
        "artifacts": Table(
            optional={kind: artifact(kind) for kind in (*ARTIFACTS, SHARED_ARTIFACT)},
            others=Table(needed={"path": PATH, "sha256": SHA256}),  # a newer version's
        ),
        "provenance": PROVENANCE,
    },
    optional={
        "ensemble": COUNT,
        "members": List(ID),
        "recipe": TEXT,
        "queries": Table(optional={"count": COUNT, "without_match": COUNT, "sha256": SHA256}),
    },
)

EXPERIMENT = Table(
    needed={
        "id": ID,
        "command": TEXT,
        "made": TEXT,
        "dataset": NAME,
        "protocol": TEXT,
        "select": matching(METRIC, "the name of a metric"),
        "folds": FOLDS,
        "trials": COUNT,
        "seeds": COUNT,
        "scheduler": TEXT,
        "settings": Table(others=PLAIN),
        "space": Table(others=Table(others=TEXT)),
        "search": List(ID),
        "grid": List(ID),
        "final": List(ID),
        "baseline": List(ID),
        "chosen": Table(others=Table(others=PLAIN)),
    },
    optional={"select_epochs": BOOLEAN, "name": TEXT},
)

STOPPED = Table(
    needed={
        "id": ID,
        "trial": Table(),  # as in RESULT
        "epochs": COUNT,
        "metrics": Table(others=FRACTION, names=METRIC),
    },
)

FAILURE = Table(needed={"name": TEXT, "error": TEXT, "log": TEXT})


def check(value: Any, shape: Shape, place: str = "") -> None:
    """A ValueError if a value does not have this shape: where, what is there, and what must be."""
    if isinstance(shape, Kind):
        if not shape.fits(value):
            raise ValueError(f"{place}={shown(value)} must be {shape.words}")
    elif isinstance(shape, List):
        if not isinstance(value, list | tuple):
            raise ValueError(f"{place}={shown(value)} must be a list")
        for item in value:
            check(item, shape.of, place)
    else:
        _check_table(value, shape, place)


def _check_table(value: Any, table: Table, place: str) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{place}={shown(value)} must be a table")
    missing = [name for name in table.needed if name not in value]
    if missing:
        raise ValueError(f"{place or 'it'} has no {missing[0]}")
    for name, item in value.items():
        shape = table.needed.get(name) or table.optional.get(name) or _family(name, table) or table.others
        if shape is None:
            continue
        if not is_text(name) or not re.fullmatch(table.names, name, re.DOTALL):
            raise ValueError(f"{place} has a field of the name {shown(name)}, which is none")
        check(item, shape, f"{place}.{name}" if place else name)


def _family(name: Any, table: Table) -> Shape | None:
    shapes = (shape for pattern, shape in table.families.items() if re.fullmatch(pattern, str(name)))
    return next(shapes, None)


def shown(value: Any) -> str:
    """A value in an error message: not longer than a line, and without control characters."""
    try:
        text = ascii(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits
        return type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."
