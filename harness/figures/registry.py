"""The registry of figures, and how one is drawn. Each figure's module is imported when it is drawn."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from harness.figures.groups import Group, filename
from harness.spec import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from harness.analysis.queries import Queries
    from harness.storage import Storage

Format = Literal["png", "pdf", "svg"]
FORMATS: tuple[Format, ...] = get_args(Format)
USUAL: tuple[Format, ...] = ("png", "pdf")


@dataclass(frozen=True)
class Figure:
    module: str  # of harness.figures; its function of the figure's name draws it
    shows: str  # its caption
    needs: str  # the results it is drawn from
    options: tuple[str, ...] = ()  # of the `harness run` that makes those
    several: bool = False  # it compares losses: one alone is not enough
    epochs: bool = False  # one epoch is not enough


FIGURES: Mapping[str, Figure] = {
    "retrieval": Figure(
        "retrieval",
        shows="Queries of the test classes and the nearest images: right ones framed green, wrong ones orange.",
        needs="final runs with embeddings",
    ),
    "grid": Figure(
        "grid",
        shows="The score over a grid of settings or knobs, in percentage points below its best cell.",
        needs="grid runs",
        options=("--grid", "samples_per_class=2,4", "--grid", "lr=0.0001,0.001"),
    ),
    "training": Figure(
        "plots",
        shows="The training loss of every epoch, each loss on a scale of its own.",
        needs="final runs of two epochs or more",
        epochs=True,
    ),
    "curves": Figure(
        "plots",
        shows="Recall@1 on test classes after every epoch.",
        needs="final runs with curves of two epochs or more",
        epochs=True,
        options=("--curves", "--seeds", "3"),
    ),
    "overfitting": Figure(
        "plots",
        shows="Recall@1 on training and on test classes after every epoch: the gap is overfitting.",
        needs="final runs with curves of two epochs or more",
        epochs=True,
        options=("--curves", "--seeds", "3"),
    ),
    "tsne": Figure(
        "tsne",
        shows="Test images by t-SNE of their embeddings.",
        needs="final runs with embeddings",
    ),
    "search": Figure(
        "plots",
        shows="The best validation score to expect of n trials of random search.",
        needs="random-search trials",
        options=("--trials", "10"),
    ),
    "pairwise": Figure(
        "pairwise",
        shows="Differences in Recall@1 on test classes between all pairs of losses, and which are significant.",
        needs="final runs of two losses with 3 seeds",
        several=True,
        options=("--seeds", "3"),
    ),
    "cost": Figure(
        "plots",
        shows="Recall@1 on test classes against training time.",
        needs="final runs",
    ),
    "ensemble": Figure(
        "plots",
        shows="Recall@1 on test classes of ensembles, by the number of networks.",
        needs="ensembles",
        options=("--seeds", "3", "--ensemble", "2,3"),
    ),
}


@dataclass(frozen=True)
class Sources:
    """What pictures need beside results: embeddings, values of queries, images, and which of them to show."""

    storage: "Storage"
    per_query: "Queries"
    data_root: Path
    queries: str = "random:0"
    loss: str | None = None
    report: Callable[[int, int], None] = lambda done, total: None  # images decoded into the cache, of how many


@dataclass(frozen=True)
class Drawing:
    """What the function of a figure draws: some figures have several."""

    canvas: "Canvas"
    part: str = ""  # tells a figure's drawings apart: a loss, or what is varied


@dataclass(frozen=True)
class Drawn:
    """A drawing in its files."""

    figure: str
    part: str
    files: tuple[Path, ...]  # one per format


def missing(name: str, group: Group) -> UserError:
    """What a figure lacks, and the command that makes it."""
    figure = FIGURES[name]
    return group.missing(figure.needs, figure.options, several=figure.several, epochs=figure.epochs)


def draw(name: str, group: Group, sources: Sources, folder: Path, formats: Sequence[str] = USUAL) -> Iterator[Drawn]:
    """The drawings of one figure of one group, each when its files are written. A UserError says what is missing."""
    from harness.figures import style

    function = getattr(import_module(f"harness.figures.{FIGURES[name].module}"), name)
    with style.looks():
        for drawing in function(group, sources):
            stem = "-".join(filter(None, (name, filename(drawing.part), group.slug)))
            yield Drawn(name, drawing.part, tuple(style.save(drawing.canvas, folder, stem, formats)))
