"""A table on a terminal: as wide as the terminal, never wider."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.constrain import Constrain
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

from harness.spec import printable
from harness.tables.layout import Cell, Table

LONGEST = 100  # characters of a line of text: longer ones are hard to read
NARROWEST = 16  # of the column of labels


def terminal(table: Table, width: int) -> Group:
    """Title, rows, the short caption and the footnotes."""
    title = " · ".join([*(group for group, _ in table.column_groups), table.title])
    _, notes = table.footnotes()
    parts: list[RenderableType] = [text(title, "bold"), "", *blocks(table, width)]
    for words in filter(None, [" ".join(table.short), *notes]):
        parts += ["", Constrain(text(words), min(width, LONGEST))]
    return Group(*parts, "")


def blocks(table: Table, width: int) -> Iterator[Grid | Text]:
    """All columns if they fit: with labels, then the parts of cells, in several lines if need be. Else as many columns
    as fit, and the others below, with the labels again."""
    every = range(len(table.columns))
    for stacked in (False, True):
        for labels in (width // 3, NARROWEST):
            whole = grid(table, every, labels, stacked=stacked)
            if fits(whole, width):
                yield whole
                return
    places: list[int] = []
    for place in every:
        if places and not fits(grid(table, [*places, place], NARROWEST, stacked=True), width):
            yield grid(table, places, NARROWEST, stacked=True)
            yield Text()
            places = []
        places.append(place)
    yield grid(table, places, NARROWEST, stacked=True)


def grid(table: Table, places: Sequence[int], labels: int, *, stacked: bool) -> Grid:
    """The columns at these places, and the labels in a column that is at most so wide."""
    drawn = Grid(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    drawn.add_column(table.stub, overflow="fold", max_width=labels)
    for place in places:
        justify: JustifyMethod = "left" if is_wordy(table, place) else "right"
        name = table.columns[place].name
        head = text(name.replace(" ", "\n") if stacked else name)
        drawn.add_column(head, justify=justify, overflow="fold")
    for number, (title, rows) in enumerate(table.sections()):
        if number:
            drawn.add_section()
        if title:
            drawn.add_row(text(title, "italic"))
        for row, mark in rows:
            drawn.add_row(text(row.label + mark), *(cell_text(row.cells[place], stacked=stacked) for place in places))
    return drawn


def fits(drawn: Grid, width: int) -> bool:
    """Whether no cell has to be broken."""
    console = Console(width=10_000)  # asked for more than there is: rich measures nothing wider than its console
    return Measurement.get(console, console.options, drawn).maximum <= width


def is_wordy(table: Table, place: int) -> bool:
    """Whether a column holds sentences or lists."""
    cells = [row.cells[place] for row in table.rows]
    return any(cell.mean is None and ", " in cell.text for cell in cells)


def cell_text(cell: Cell, *, stacked: bool) -> Text:
    """The number, its interval and the published one: in a line, or below each other."""
    number = cell.text.replace(", ", ",\n") if stacked else cell.text
    parts = [text(number, "bold" if cell.best else "underline" if cell.tied else "")]
    parts += [text(part, "dim") for part in (cell.interval and f"± {cell.interval}", cell.comparison) if part]
    return Text("\n" if stacked else " ").join(parts)


def text(words: str, style: str = "") -> Text:
    """Words as they are: neither markup nor control characters."""
    return Text(printable(words), style)
