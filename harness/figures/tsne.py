"""A t-SNE map of a run's test images, compact clusters enlarged at its corners (as in the paper's supplement)."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle
from PIL import Image, ImageOps

from harness.figures import style
from harness.figures.groups import Group
from harness.figures.pictures import chosen, load
from harness.figures.registry import Drawing, Sources

MOST = 2500  # images
ENLARGED = 16  # of a cluster at most
LEAST = 3  # images a cluster has
DEFAULT = "group"  # the loss whose map is drawn if there are several

HEIGHT, CORNER, MARGIN = 5.0, 1.3, 0.04  # inches: of the map, the side of an enlarged cluster, the edge around
TITLE = 0.25
DPI = 300
CLUSTER_COLOURS = tuple(colour for colour in style.COLOURS if colour != style.WRONG)


@dataclass(frozen=True)
class Cluster:
    """Images around the middle of a class, and the corner they are enlarged in: right or left, upper or lower."""

    label: int
    rows: tuple[int, ...]
    centre: tuple[float, float]
    corner: tuple[bool, bool]


@dataclass(frozen=True)
class Map:
    """Images on a map: row i of each is image i."""

    places: np.ndarray  # (n, 2), the middle at 0, the longer side 1
    labels: np.ndarray
    pictures: list[Image.Image]

    @property
    def thumbnail(self) -> float:
        """The side of an image in inches: so small that the images would cover the map about once."""
        return min(0.4, max(0.09, 0.9 * HEIGHT / math.sqrt(len(self.pictures))))


@dataclass(frozen=True)
class Paper:
    """The sheet a map is drawn on, measured in inches from its lower left corner."""

    axes: Axes
    bottom: float  # of the map; below it stands the note
    top: float
    spots: np.ndarray  # (n, 2): the middle of each image


def tsne(group: Group, sources: Sources) -> Iterator[Drawing]:
    """The map of one loss: that of --loss, else the Group Loss, else the first; from its run with the lowest seed."""
    lines, remark = chosen("tsne", group, sources)
    line = next((line for line in lines if line.loss == DEFAULT), lines[0])
    embedded = load(line.runs[0], sources)
    rows = sample(embedded.labels.numpy(), MOST)
    labels = embedded.labels.numpy()[rows]
    pictures = [Image.fromarray(embedded.picture(row)) for row in rows.tolist()]
    images = Map(project(embedded.embeddings[rows].double().numpy()), labels, pictures)
    how = f"t-SNE of {len(rows)} of {len(embedded.labels)} test images, {len(set(labels.tolist()))} classes"
    note = group.note([embedded.run], how, "dashed: of another class than its cluster", remark)
    yield Drawing(draw(f"{group.title}: {line.title}", images, note), line.loss)


def sample(labels: np.ndarray, most: int) -> np.ndarray:
    """Rows of whole classes, in a fixed order, until there are `most`. A class that would fill half of them is cut."""
    order = sorted(set(labels.tolist()))
    random.Random(0).shuffle(order)
    rows: list[int] = []
    for label in order:
        members = np.flatnonzero(labels == label)[: max(1, most // 2)]
        if len(rows) + len(members) <= most:
            rows += members.tolist()
    return np.array(sorted(rows))


def project(embeddings: np.ndarray) -> np.ndarray:
    """(n, 2), the middle at 0, the longer side 1."""
    from sklearn.manifold import TSNE  # slow to import

    perplexity = min(30.0, (len(embeddings) - 1) / 3)
    places = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(embeddings)
    low, high = places.min(axis=0), places.max(axis=0)
    return (places - (low + high) / 2) / (high - low).max()


def clusters(places: np.ndarray, labels: np.ndarray) -> list[Cluster]:
    """The most compact class in each quarter of the map. Of the n images nearest to a class of n, the share of its own
    counts; ties go to the class farthest out."""
    best: dict[tuple[bool, bool], tuple[float, float, int, Cluster]] = {}
    middle = np.median(places, axis=0)
    for label in sorted(set(labels.tolist())):
        own = labels == label
        count = int(own.sum())
        if count < LEAST:
            continue
        centre = np.median(places[own], axis=0)
        away = np.linalg.norm(places - centre, axis=1)
        nearest = np.argsort(away, kind="stable")[:count]
        corner = (bool(centre[0] > middle[0]), bool(centre[1] > middle[1]))
        rank = (-float(own[nearest].mean()), -float(np.abs(centre - middle).min()), label)
        if corner not in best or rank < best[corner][:3]:
            rows = tuple(nearest[:ENLARGED].tolist())
            best[corner] = (*rank, Cluster(label, rows, (float(centre[0]), float(centre[1])), corner))
    return [best[corner][3] for corner in sorted(best)]


def draw(title: str, images: Map, note: str) -> Figure:
    figure = style.sheet(HEIGHT, style.PAGE, arranged=False)
    style.note(figure, note)
    top = figure.get_figheight()
    bottom = top - HEIGHT
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, style.PAGE), ylim=(0, top))
    axes.set_axis_off()
    middle = np.array([style.PAGE / 2, top - TITLE - (HEIGHT - TITLE) / 2])
    spots = middle + spread_out(images.places, images.thumbnail)
    canvas = paste(images.pictures, spots - [0, bottom], images.thumbnail)
    axes.imshow(canvas, extent=(0, style.PAGE, bottom, top), aspect="auto", zorder=0)
    paper = Paper(axes, bottom, top, spots)
    for colour, cluster in zip(CLUSTER_COLOURS, clusters(images.places, images.labels), strict=False):
        enlarge(paper, images, cluster, colour)
    words = "\n".join(style.wrapped(title, style.PAGE - 0.2, style.TITLE))
    axes.text(style.PAGE / 2, top - 0.05, words, ha="center", va="top", weight="bold", fontsize=style.TITLE)
    return figure


def spread_out(places: np.ndarray, small: float) -> np.ndarray:
    """Inches from the middle of the paper: as large as possible without an image outside the paper or in a corner."""
    wide, high = style.PAGE / 2 - MARGIN - small / 2, (HEIGHT - TITLE) / 2 - MARGIN - small / 2
    scale = min(wide / np.abs(places[:, 0]).max(), high / np.abs(places[:, 1]).max())
    free = [wide - CORNER - small / 2, high - CORNER - small / 2]
    while (np.abs(places) * scale > free).all(axis=1).any():
        scale *= 0.99
    return places * scale


def paste(pictures: list[Image.Image], spots: np.ndarray, small: float) -> np.ndarray:
    """The map as one image, each picture with its middle at its spot, in inches from below."""
    canvas = Image.new("RGB", (round(style.PAGE * DPI), round(HEIGHT * DPI)), "white")
    for picture, (x, y) in zip(pictures, (spots * DPI).tolist(), strict=True):
        fitted = ImageOps.contain(picture, (round(small * DPI), round(small * DPI)))
        canvas.paste(fitted, (round(x - fitted.width / 2), round(canvas.height - y - fitted.height / 2)))
    return np.asarray(canvas)


def enlarge(paper: Paper, images: Map, cluster: Cluster, colour: str) -> None:
    """A cluster's images on a raster in their corner, a circle where they lie, and a line between the two."""
    right, upper = cluster.corner
    x = style.PAGE - CORNER - MARGIN if right else MARGIN
    y = paper.top - CORNER - MARGIN if upper else paper.bottom + MARGIN
    axes, rows = paper.axes, list(cluster.rows)
    side = math.ceil(math.sqrt(len(rows)))
    cell = CORNER / side
    axes.add_patch(Rectangle((x, y), CORNER, CORNER, facecolor="white", edgecolor=colour, linewidth=1, zorder=3))
    for row, (column, level) in zip(rows, raster(paper.spots[rows], side), strict=True):
        width, height = images.pictures[row].size
        w, h = (0.92 * cell * length / max(width, height) for length in (width, height))
        corner = (x + (column + 0.5) * cell - w / 2, y + (level + 0.5) * cell - h / 2)
        extent = (corner[0], corner[0] + w, corner[1], corner[1] + h)
        axes.imshow(np.asarray(images.pictures[row]), extent=extent, aspect="auto", zorder=4)
        if images.labels[row] != cluster.label:
            frame = Rectangle(corner, w, h, fill=False, edgecolor=style.WRONG, linewidth=1.2, linestyle="--", zorder=5)
            axes.add_patch(frame)
    middle = paper.spots[rows].mean(axis=0)
    radius = float(np.linalg.norm(paper.spots[rows] - middle, axis=1).max()) + images.thumbnail / 2
    axes.add_patch(Circle((middle[0], middle[1]), radius, fill=False, edgecolor=colour, linewidth=1, zorder=2))
    end = np.array([x if right else x + CORNER, y if upper else y + CORNER])
    way = end - middle
    start = middle + way / np.linalg.norm(way) * radius
    axes.plot([start[0], end[0]], [start[1], end[1]], color=colour, linewidth=0.6, marker="", zorder=2)


def raster(spots: np.ndarray, side: int) -> list[tuple[int, int]]:
    """A cell of a side x side raster for each spot, no two in one: the assignment with the least sum of squared
    distances, so that the spots keep their arrangement."""
    from scipy.optimize import linear_sum_assignment

    low, high = spots.min(axis=0), spots.max(axis=0)
    scaled = (spots - low) / np.maximum(high - low, 1e-12) * (side - 1)
    cells = [(column, level) for column in range(side) for level in range(side)]
    ways = ((scaled[:, None] - np.array(cells)) ** 2).sum(axis=2)
    _, taken = linear_sum_assignment(ways)
    return [cells[number] for number in taken.tolist()]
