"""The nouns of a table: Table, Row, Column, Cell."""

import re
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

from harness.analysis.budget import Budgets
from harness.analysis.queries import Queries
from harness.analysis.statistics import Sums
from harness.spec import percent
from harness.spec.recipes import LLOYD

Kind = Literal["losses", "ensembles", "backbones", "search"]
# Where the paper's numbers stand: beside ours in its settings, beside all of ours, in rows of their own, or nowhere.
Published = Literal["comparable", "beside", "rows", "none"]
Format = Literal["markdown", "latex", "html", "json", "csv"]  # csv: results, not tables; see render.data.csv

Over = Literal["", "classes", "seeds", "classes and seeds"]

PARAMETERS = "Params"  # a column that is no metric
BASELINES = "Baselines"  # the section of what is not trained; it is printed without a title
PUBLISHED = "Published"  # how the titles of the paper's sections begin


@dataclass(frozen=True)
class Options:
    """What a user may choose about tables."""

    published: Published = "comparable"
    metrics: tuple[str, ...] = ()  # the columns; empty for Recall@K and NMI
    recipe: str = LLOYD.name  # of NMI; rows that have none by it are footnoted
    one_dataset: bool = False  # a table per dataset, as a terminal wants it
    sort: str = ""  # the column that losses are sorted by; empty: by their names


@dataclass(frozen=True)
class Stored:
    """What is stored beside the results of a table."""

    budgets: Budgets  # of searches and experiments
    queries: Queries | None = None  # the values of each query; None: nothing is tested


@dataclass(frozen=True)
class Cell:
    """What a table says at one place."""

    text: str = "-"
    mean: float | None = None  # over seeds: a fraction
    half: float | None = None  # half the width of its 95 % interval
    over: Over = ""  # what the interval is over
    values: tuple[float, ...] = ()  # one per seed
    ids: tuple[str, ...] = ()  # of its runs
    best: bool = False  # the largest mean of its column, of those that are tested
    tied: bool = False  # the tests do not tell it apart from the best
    unpaired: bool = False  # it has enough seeds, but too few in common with the best, or other queries: not tested
    published: str = ""  # the paper's number, as printed
    sums: Sums | None = field(default=None, repr=False, compare=False)  # what it is tested by

    @property
    def difference(self) -> float | None:
        """In percentage points, ours minus the paper's."""
        return 100 * self.mean - float(self.published) if self.published and self.mean is not None else None

    @property
    def interval(self) -> str:
        """Half its width as text; empty without one."""
        return "" if self.half is None else percent(self.half)

    @property
    def comparison(self) -> str:
        """The paper's number and the difference, as text; empty if the paper has none."""
        return "" if self.difference is None else f"({self.published}, {self.difference:+z.1f})"


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
    """One protocol and one backbone, except `backbones`, which has all backbones."""

    kind: Kind | Literal["grid"]
    protocol: str
    backbone: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str
    dataset: str = ""  # of `search`, which has one table per dataset
    short: tuple[str, ...] = ()  # what a terminal says instead of the caption

    @property
    def title(self) -> str:
        return " · ".join(filter(None, (self.kind, self.protocol, self.backbone)))

    @property
    def slug(self) -> str:
        """In file names."""
        words = filter(None, (self.kind, self.dataset, self.protocol, self.backbone))
        return re.sub(r"[^\w.-]+", "-", "-".join(words))

    @property
    def stub(self) -> str:
        """What stands above the rows' labels."""
        return "Network" if self.kind == "backbones" else "Loss"

    @property
    def column_groups(self) -> list[tuple[str, int]]:
        """The datasets, and how many columns each has."""
        return [
            (group, len(list(columns))) for group, columns in groupby(self.columns, key=lambda column: column.group)
        ]

    def sections(self) -> list[tuple[str, list[tuple[Row, str]]]]:
        """Title and rows of each section, every row with its footnote mark. Baselines need no title."""
        marks, _ = self.footnotes()
        marked = zip(self.rows, marks, strict=True)
        sections = groupby(marked, key=lambda pair: pair[0].section)
        return [("" if title == BASELINES else title, list(rows)) for title, rows in sections]

    def footnotes(self) -> tuple[list[str], list[str]]:
        """A mark per row, which names its notes: [a,c], empty without any; and the notes, each once."""
        texts = dict.fromkeys(note for row in self.rows for note in row.notes)
        names = {text: letters(place) for place, text in enumerate(texts)}
        marks = [",".join(names[note] for note in texts if note in row.notes) for row in self.rows]
        return [f"[{mark}]" if mark else "" for mark in marks], [f"[{names[text]}] {text}" for text in texts]


def letters(place: int) -> str:
    """a, b, ..., z, aa, ...: numbers are for citations."""
    return (letters(place // 26 - 1) if place >= 26 else "") + chr(ord("a") + place % 26)
