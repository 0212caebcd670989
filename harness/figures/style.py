"""How every figure looks: its width, letters, colours, the note in its corner, and the files it is saved to."""

import io
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import text_to_path

from harness.files import write_whole, writing

COLUMN = 3.4  # inches: the width of a column of a paper
PAGE = 6.8  # of both
GREY = "0.4"
SMALL = 7  # points: nothing is smaller
TITLE = 8
LINE = 1.2 * SMALL / 72  # inches: the height of a line of small letters

# Okabe and Ito's, which the colour-blind can tell apart, without its yellow, which is invisible on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
RIGHT, WRONG = COLOURS[2], COLOURS[1]
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")  # for print in grey, and for an eighth loss

RC: dict[str, Any] = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "figure.titlesize": 8,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.5,
    "grid.linewidth": 0.4,
    "axes.grid": True,
    "grid.color": "0.9",
    "axes.axisbelow": True,
    "image.interpolation": "nearest",
    "text.parse_math": False,  # a title is whatever its author wrote: a $ in it is a dollar
    "pdf.fonttype": 42,  # letters that can be searched, and that every publisher takes
    "svg.hashsalt": "harness",  # the same names inside every time
    "savefig.dpi": 300,
}
METADATA: dict[str, dict[str, Any]] = {  # same data, same file
    "png": {"Software": None},
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
}


@dataclass(frozen=True)
class Look:
    colour: str
    marker: str


def looks() -> Any:
    """A context in which figures are drawn and saved in this style."""
    return rc_context(RC)  # type: ignore[arg-type]


def look(loss: str, losses: Sequence[str]) -> Look:
    """A colour and a marker; both repeat, but not together before 70 losses."""
    place = losses.index(loss)
    return Look(COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)])


def words(title: str, width: int = 30) -> str:
    """A title, printable and in lines that are not too long."""
    text = " ".join("".join(c if c.isprintable() else " " for c in title).split())
    return "\n".join(textwrap.wrap(text, width)) or text


def title(figure: Figure, axes: Axes, text: str) -> None:
    """A title above the axes, which names the dataset; the figure grows to make room."""
    lines = wrapped(text, figure.get_figwidth() - 0.3, TITLE)
    figure.set_figheight(figure.get_figheight() + len(lines) * LINE * TITLE / SMALL)
    axes.set_title("\n".join(lines), loc="left", fontsize=TITLE, weight="bold")


def sheet(height: float, width: float = COLUMN, *, arranged: bool = True) -> Figure:
    """`arranged`: axes, legend and note make room for each other."""
    return Figure(figsize=(width, height), layout="constrained" if arranged else None)


def note(figure: Figure, text: str) -> None:
    """A note in small grey letters in the lower left corner; the figure grows to make room."""
    lines = wrapped(text, figure.get_figwidth() - 0.08)
    figure.set_figheight(figure.get_figheight() + (len(lines) + 0.5) * LINE)
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=SMALL, color=GREY, linespacing=1.1)


def wrapped(text: str, width: float, size: float = SMALL) -> list[str]:
    """Lines of letters of this size, at most `width` inches long."""
    lines = [""]
    for word in pieces(words(text, max(1, len(text))).split(), width * SMALL / size):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and inches(longer) * size / SMALL > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def pieces(words: Iterable[str], width: float) -> Iterator[str]:
    """The words, those that are longer than a line in parts."""
    for word in words:
        while inches(word) > width and len(word) > 1:
            fits = max(1, int(len(word) * width / inches(word)) - 1)
            yield word[:fits]
            word = word[fits:]
        yield word


def inches(text: str) -> float:
    """The length of small letters, of the longest line. A title may be empty, or of letters that are not seen."""
    font = FontProperties(size=SMALL)
    lines = text.split("\n")
    return max(float(text_to_path.get_text_width_height_descent(line, font, ismath=False)[0]) for line in lines) / 72


def legend(figure: Figure, entries: Iterable[tuple[Artist, str]]) -> None:
    """A legend above the axes, in two columns if they fit; the figure grows to make room."""
    handles, labels = zip(*entries, strict=True)
    # a label that begins with _ would be left out
    labels = tuple(f" {label}" if label.startswith("_") else label for label in labels)
    columns = 2 if max(map(inches, labels)) < figure.get_figwidth() / 2 - 0.4 else 1
    rows = -(-len(labels) // columns)
    heights = [max(label.count("\n") + 1 for label in labels[row::rows]) for row in range(rows)]
    figure.set_figheight(figure.get_figheight() + sum(heights) * LINE)
    figure.legend(
        handles,
        labels,
        loc="outside upper left",
        ncols=columns,
        frameon=False,
        handlelength=1.8,
        columnspacing=1.2,
        labelspacing=0.25,
        borderaxespad=0.2,
    )


def key(look: Look) -> Line2D:
    """What stands for a loss in a legend."""
    return Line2D([], [], color=look.colour, marker=look.marker)


def save(figure: Figure, folder: Path, name: str, formats: Sequence[str]) -> list[Path]:
    files = [folder / f"{name}.{ending}" for ending in formats]
    with writing(f"to {folder}"):
        for file, ending in zip(files, formats, strict=True):
            picture = io.BytesIO()
            figure.savefig(picture, format=ending, metadata=METADATA[ending])
            write_whole(file, picture.getvalue())
    return files
