"""Queries and their nearest test images, right ones framed green, wrong ones orange (the paper's Fig. 3)."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.evaluation.neighbours import rank_all
from harness.figures import style
from harness.figures.groups import Group
from harness.figures.pictures import EmbeddedImages, chosen, load
from harness.figures.registry import Drawing, Sources
from harness.spec import UserError

NEIGHBOURS = 4
QUERIES = 6
BLOCK = 2**22  # distances at once
FRAMES = "green: the query's class, orange and dashed: another"
ALLOWED = "must be random:SEED, worst, or indices like 3,17,256"

EDGE = 0.04  # inches: around the heading
LEFT, GAP, BREAK, TOP = 0.36, 0.06, 0.12, 0.34  # inches: for indices, between images, beside the queries, for headings


@dataclass(frozen=True)
class Neighbours:
    """A query and its nearest images, nearest first: rows of the embeddings."""

    query: int
    nearest: tuple[int, ...]
    right: tuple[bool, ...]


def retrieval(group: Group, sources: Sources) -> Iterator[Drawing]:
    """A picture for each loss, from its run with the lowest seed."""
    lines, remark = chosen("retrieval", group, sources)
    for line in lines:
        images = load(line.runs[0], sources)
        rows = [neighbours(images, query) for query in pick(images, sources.queries)]
        note = group.note([images.run], described(sources.queries), FRAMES, remark)
        part = f"{line.loss}-worst" if sources.queries == "worst" else line.loss
        yield Drawing(picture(images, rows, f"{group.title}: {line.title}", note), part)


def described(queries: str) -> str:
    kind = "with the most wrong images before a right one" if queries == "worst" else queries
    return f"queries {kind}, their index among the test images at the left"


def pick(images: EmbeddedImages, text: str) -> list[int]:
    """The rows to search for, as --queries names them."""
    everything = range(len(images.labels))
    allowed = list(everything) if images.queries is None else images.queries.nonzero().flatten().tolist()
    if text == "worst":
        return worst(images, QUERIES)
    kind, _, seed = text.partition(":")
    if kind == "random" and seed.isdigit():
        return sorted(random.Random(int(seed)).sample(allowed, min(QUERIES, len(allowed))))
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() for word in words):
        raise UserError(f"--queries {text}: {ALLOWED}")
    for word in words:
        if int(word) not in everything:
            raise UserError(f"--queries {word}: must be 0 to {len(everything) - 1}, an image of the test half")
        if images.queries is not None and not images.queries[int(word)]:
            raise UserError(f"--queries {word}: is an image of the gallery; the first query is {allowed[0]}")
    return [int(word) for word in words]


def neighbours(images: EmbeddedImages, query: int, count: int = NEIGHBOURS) -> Neighbours:
    """The nearest images as evaluation ranks them: by distance in float64, then by index, without the query itself."""
    if images.queries is None:
        places, itself = torch.arange(len(images.labels)), query
        most = len(places) - 1
    else:
        places, itself = (~images.queries).nonzero().flatten(), None
        most = len(places)
    ranked = rank_all(images.embeddings[query], images.embeddings[places], itself)[: min(count, most)]
    nearest = places[ranked].tolist()
    return Neighbours(query, tuple(nearest), tuple(bool(images.labels[row] == images.labels[query]) for row in nearest))


def worst(images: EmbeddedImages, count: int) -> list[int]:
    """The queries with the most wrong images before the first right one. Ties go to the query whose first right image
    is farthest behind its first wrong one, then to the lower index. A query without a right image does not count."""
    rows = torch.arange(len(images.labels))
    queries, gallery = (rows, rows) if images.queries is None else (rows[images.queries], rows[~images.queries])
    ranked: list[tuple[int, float, int]] = []
    points = images.embeddings.double()
    half = points[gallery].square().sum(dim=1) / 2
    for part in queries.split(max(1, BLOCK // len(gallery))):
        far = half - points[part] @ points[gallery].T  # half the squared distance, without the query's own norm
        itself = part[:, None] == gallery
        right = (images.labels[part][:, None] == images.labels[gallery]) & ~itself
        first = far.masked_fill(~right, math.inf).amin(dim=1)
        others = far.masked_fill(right | itself, math.inf)
        wrong = (others < first[:, None]).sum(dim=1)
        margin = first - others.amin(dim=1)
        there = right.any(dim=1).tolist()
        keys = zip((-wrong).tolist(), (-margin).tolist(), part.tolist(), strict=True)
        ranked += [key for key, counts in zip(keys, there, strict=True) if counts]
    return [query for _, _, query in sorted(ranked)[:count]]


def picture(images: EmbeddedImages, rows: list[Neighbours], title: str, text: str) -> Figure:
    columns = 1 + max(len(row.nearest) for row in rows)
    side = (style.COLUMN - LEFT - BREAK - GAP * columns) / columns
    lines = style.wrapped(title, style.COLUMN - 3 * EDGE, style.TITLE)
    heading, top = "\n".join(lines), TOP + (len(lines) - 1) * 1.2 * style.TITLE / 72
    height = top + len(rows) * (side + GAP)
    figure = style.sheet(height, arranged=False)
    style.note(figure, text)
    width, total = style.COLUMN, figure.get_figheight()

    def spot(row: int, column: int) -> tuple[float, float]:
        """The lower left corner of an image, in inches."""
        return LEFT + column * (side + GAP) + BREAK * (column > 0), total - top - row * (side + GAP) - side

    def write(x: float, y: float, words: str, **how: Any) -> None:
        figure.text(x / width, y / total, words, fontsize=style.SMALL, **how)

    figure.text(EDGE / width, (total - 0.04) / total, heading, fontsize=style.TITLE, weight="bold", va="top")
    for column in range(columns):
        left, bottom = spot(0, column)
        name = "query" if column == 0 else str(column)
        write(left + side / 2, bottom + side + 0.03, name, ha="center", va="bottom")
    for number, row in enumerate(rows):
        left, bottom = spot(number, 0)
        write(left - 0.05, bottom + side / 2, str(row.query), ha="right", va="center", color=style.GREY)
        for column, (image, right) in enumerate(zip((row.query, *row.nearest), (None, *row.right), strict=True)):
            left, bottom = spot(number, column)
            axes = figure.add_axes((left / width, bottom / total, side / width, side / total))
            axes.imshow(images.picture(image))
            frame(axes, right)
    return figure


def frame(axes: Axes, right: bool | None) -> None:
    """Green if right, orange and dashed if wrong: seen in grey too. The query has a thin black one."""
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    colour = {None: "black", True: style.RIGHT, False: style.WRONG}[right]
    axes.spines[:].set(visible=True, color=colour, linewidth=0.5 if right is None else 1.8)
    if right is False:
        axes.spines[:].set(linestyle=(0, (2.2, 1)), capstyle="butt")
