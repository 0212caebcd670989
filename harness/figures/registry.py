"""Stored results and embeddings -> the paper's figures, as PNG and PDF. Each figure's module is imported when it is
drawn."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from harness.figures.groups import Group, filename, groups

if TYPE_CHECKING:
    from harness.storage import Storage

__all__ = ["FIGURES", "FORMATS", "Asked", "draw", "groups"]

FORMATS = ("png", "pdf")

# name -> the module whose function of that name draws it
FIGURES = {
    "retrieval": "retrieval",
    "grid": "grid",
    "curves": "plots",
    "overfitting": "plots",
    "tsne": "tsne",
    "search": "plots",
    "cost": "plots",
    "ensemble": "plots",
}


@dataclass(frozen=True)
class Asked:
    """What pictures need beside results: the embeddings, the images, and which of them to show."""

    storage: "Storage"
    data_root: Path
    queries: str = "random:0"
    loss: str | None = None
    report: Callable[[int, int], None] = lambda done, total: None  # images that go to the cache


def draw(name: str, group: Group, asked: Asked, folder: Path, formats: Sequence[str] = FORMATS) -> Iterator[Path]:
    """The files of one figure of one group, as they are written. A UserError says what it lacks and what makes it."""
    from harness.figures import style

    function = getattr(import_module(f"harness.figures.{FIGURES[name]}"), name)
    with style.looks():
        for what, figure in function(group, asked):
            yield from style.save(figure, folder, f"{filename(what)}-{group.slug}", formats)
