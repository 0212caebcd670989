"""The nouns of a table: Table, Row, Column, Cell."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """What a table says at one place."""

    text: str = "-"
    mean: float | None = None  # over seeds: a fraction
    half: float | None = None  # half the width of its 95 % interval; None with a single seed
    values: tuple[float, ...] = ()  # one a seed
    best: bool = False  # the largest mean of its column
    level: bool = False  # not significantly different from it
    published: str = ""  # the paper's number, as printed

    @property
    def difference(self) -> float | None:
        """In percentage points, ours less the paper's."""
        return 100 * self.mean - float(self.published) if self.published and self.mean is not None else None


@dataclass(frozen=True)
class Column:
    group: str  # the dataset as people call it
    name: str  # a metric, or what else stands there
    dataset: str = ""  # as the configuration calls it


@dataclass(frozen=True)
class Row:
    label: str
    cells: tuple[Cell, ...]
    section: str = ""
    key: str | None = None  # of its BibTeX entry
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """One protocol and one backbone, but for `backbones`, which has all."""

    kind: str  # losses | ensembles | backbones | search
    protocol: str
    backbone: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str
    dataset: str = ""  # of `search`: it has a table for each

    @property
    def title(self) -> str:
        return " · ".join(filter(None, (self.kind, self.protocol, self.backbone)))

    @property
    def slug(self) -> str:
        words = filter(None, (self.kind, self.dataset, self.protocol, self.backbone))
        return re.sub(r"[^\w.-]+", "-", "-".join(words))

    @property
    def stub(self) -> str:
        """What stands above the rows' labels."""
        return "Network" if self.kind == "backbones" else "Loss"

    def footnotes(self) -> tuple[list[str], list[str]]:
        """A mark for each row that has notes, and the notes: rows of which the same is to be said share them."""
        texts = list(dict.fromkeys(" ".join(row.notes) for row in self.rows if row.notes))
        marks = {text: f"[{letters(place)}]" for place, text in enumerate(texts)}
        return [marks.get(" ".join(row.notes), "") for row in self.rows], [f"{marks[text]} {text}" for text in texts]


def letters(place: int) -> str:
    """a, b, ..., z, aa, ...: numbers are for citations."""
    return (letters(place // 26 - 1) if place >= 26 else "") + chr(ord("a") + place % 26)
