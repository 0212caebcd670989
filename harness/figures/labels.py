"""Names beside points, none over another name or point. All lengths are inches on the paper."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from harness.figures import style

DISTANCES = tuple(0.07 + 0.008 * n * n for n in range(14))  # from the point, nearest first
TURNS = 16  # directions
LED = 0.12  # from this distance on a thin line leads to the point
EDGE = 0.02  # around letters
OWN, OTHERS = 0.04, 0.1  # a name keeps away from its own point and, so that none takes it for theirs, from others

Spot = tuple[float, float]


@dataclass(frozen=True)
class Named:
    """A point in the units of the axes; `half`: it has a bar so far up and down."""

    x: float
    y: float
    name: str
    colour: str
    half: float = 0.0


@dataclass(frozen=True)
class Place:
    """Where a name might stand: the box it fills, and the line that leads from it to its point."""

    box: Bbox
    line: tuple[Spot, Spot]

    @property
    def distance(self) -> float:
        return math.dist(*self.line)

    @property
    def led(self) -> bool:
        return self.distance >= LED


@dataclass
class Sheet:
    """What is on the paper already."""

    free: Bbox  # the axes
    markers: list[Bbox]
    placed: list[Place]

    def harm(self, place: Place, own: int | None) -> float:
        """The cost of a place for a name: what it hides, whether it seems to name another point, what its line crosses,
        and how far away it is. The weights keep names from hiding each other if there is any room."""
        others = [box for number, box in enumerate(self.markers) if number != own]
        solid = [other.box for other in self.placed] + [box.padded(OWN) for box in self.markers]
        hidden = sum(_common(place.box, box) for box in solid) + _outside(place.box, self.free)
        confused = sum(_common(place.box, box.padded(OTHERS)) for box in others)
        crossed = sum(other.led and _crosses(other.line, place.box) for other in self.placed)
        if place.led:
            crossed += sum(_crosses(place.line, box.padded(OWN)) for box in others)
            crossed += sum(_crosses(place.line, other.box) for other in self.placed)
        return 1000 * hidden + 30 * confused + crossed + place.distance


def name_points(figure: Figure, axes: Axes, points: Sequence[Named], level: tuple[float, str] | None = None) -> None:
    """Greedy, the most crowded point first. `level`: the height and name of a horizontal line, named at an end."""
    figure.draw_without_rendering()  # the axes have their place now
    low_x, low_y, high_x, high_y = (float(edge) / figure.dpi for edge in axes.get_window_extent().extents)
    at = [_on_paper(figure, axes, point.x, point.y) for point in points]
    bars = [
        abs(_on_paper(figure, axes, point.x, point.y + point.half)[1] - y)
        for point, (_, y) in zip(points, at, strict=True)
    ]
    markers = [Bbox.from_extents(x, y - bar, x, y + bar) for (x, y), bar in zip(at, bars, strict=True)]
    sheet = Sheet(Bbox.from_extents(low_x, low_y, high_x, high_y), markers, [])
    if level:
        height = _on_paper(figure, axes, 0, level[0])[1]
        drawn = Bbox.from_extents(low_x, height - 0.008, high_x, height + 0.008)
        sheet.placed.append(Place(drawn, ((low_x, height), (low_x, height))))
        ends = _ends(level[1], height, sheet.free)
        best = min(ends, key=lambda place: round(sheet.harm(place, None), 4))
        sheet.placed.append(best)
        _write(figure, level[1], best, style.GREY)
    for number in sorted(range(len(points)), key=lambda number: _room(at[number], at)):
        point = points[number]
        harms = [(sheet.harm(place, number), place) for place in _ways(point.name, at[number])]
        best = min(harms, key=lambda pair: round(pair[0], 4))[1]
        sheet.placed.append(best)
        _write(figure, point.name, best, point.colour)


def _write(figure: Figure, name: str, place: Place, colour: str) -> None:
    x, y = place.box.x0 + EDGE, place.box.y0 + 0.25 * place.box.height  # the letters' foot
    figure.text(x, y, name, color=colour, fontsize=style.SMALL, transform=figure.dpi_scale_trans)
    if place.led:
        xs, ys = zip(*place.line, strict=True)
        figure.add_artist(Line2D(xs, ys, color=colour, linewidth=0.4, transform=figure.dpi_scale_trans))


def _ways(name: str, at: Spot) -> Iterator[Place]:
    """Around a point; of each distance right, left, above and below come first."""
    width, height = _size(name)
    turns = sorted(range(TURNS), key=lambda turn: (turn % (TURNS // 4) != 0, turn % (TURNS // 2) != 0, turn))
    for distance in DISTANCES:
        for turn in turns:
            across, up = (round(wave(2 * math.pi * turn / TURNS), 6) for wave in (math.cos, math.sin))
            x, y = at[0] + distance * across, at[1] + distance * up
            # the side that faces the point touches (x, y)
            left = x - width * (0.0 if across > 0.3 else 1.0 if across < -0.3 else 0.5)
            low = y - height * (0.0 if up > 0.3 else 1.0 if up < -0.3 else 0.5)
            yield Place(Bbox.from_bounds(left, low, width, height), ((x, y), at))


def _ends(name: str, height: float, free: Bbox) -> Iterator[Place]:
    """Above and below the ends of a horizontal line, the right one first."""
    width, tall = _size(name)
    for left in (free.x1 - width, free.x0 + 0.03):
        for low in (height + 0.01, height - tall - 0.01):
            yield Place(Bbox.from_bounds(left, low, width, tall), ((left, height), (left, height)))


def _size(name: str) -> tuple[float, float]:
    return style.inches(name) + 2 * EDGE, style.LINE


def _on_paper(figure: Figure, axes: Axes, x: float, y: float) -> Spot:
    spot = axes.transData.transform((x, y)) / figure.dpi
    return float(spot[0]), float(spot[1])


def _room(at: Spot, points: Iterable[Spot]) -> float:
    """How much room a point has: little among many others."""
    return sum(min(1.0, math.dist(at, other)) for other in points)


def _crosses(line: tuple[Spot, Spot], box: Bbox) -> bool:
    (x, y), (to_x, to_y) = line
    return any(box.contains(x + (to_x - x) * step / 10, y + (to_y - y) * step / 10) for step in range(11))


def _common(box: Bbox, other: Bbox) -> float:
    shared = Bbox.intersection(box, other)
    return float(shared.width * shared.height) if shared is not None else 0.0


def _outside(box: Bbox, other: Bbox) -> float:
    return float(box.width * box.height) - _common(box, other)
