"""Draws the two pictures of docs/architecture.md: `python docs/draw.py` writes docs/pictures/*.svg."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

LIGHT, HEAVY, PLAIN = "#dbeafe", "#fde8d0", "#f1f3f5"  # imports no torch; imports torch; everything else
INK, QUIET = "#1f2933", "#5b6770"
HEIGHT = 50


# The arrows of the first picture: the imports that show the architecture, not all there are. A test checks that each
# exists.
IMPORTS = (
    ("cli", "report"),
    ("cli", "request"),
    ("cli", "figures"),
    ("cli", "execution"),
    ("report", "tables"),
    ("tables", "analysis"),
    ("tables", "commands"),
    ("analysis", "plan"),
    ("request", "commands"),
    ("commands", "plan"),
    ("plan", "config"),
    ("figures", "analysis"),
    ("figures", "commands"),
    ("figures", "data"),
    ("figures", "evaluation"),
    ("execution", "training"),
    ("training", "data"),
    ("training", "evaluation"),
    ("training", "backbones"),
    ("training", "losses"),
    ("evaluation", "storage"),
)
IMPORTED_WHEN_CALLED = (("request", "data"),)


@dataclass(frozen=True)
class Box:
    """A rectangle with a name and one line below it, its centre at x, its top at y."""

    name: str
    note: str
    x: int
    y: int
    width: int = 130
    fill: str = LIGHT
    number: str = ""

    def svg(self) -> str:
        left = self.x - self.width // 2
        parts = [
            f'<rect x="{left}" y="{self.y}" width="{self.width}" height="{HEIGHT}" rx="6" fill="{self.fill}"'
            f' stroke="{QUIET}"/>',
            text(self.x, self.y + 21, self.name, 14, INK, bold=True),
            text(self.x, self.y + 39, self.note, 11, QUIET),
        ]
        if self.number:
            parts.append(f'<circle cx="{left}" cy="{self.y}" r="10" fill="{INK}"/>')
            parts.append(text(left, self.y + 4, self.number, 11, "#ffffff", bold=True))
        return "\n".join(parts)


def text(x: int, y: int, words: str, size: int, fill: str, *, bold: bool = False, anchor: str = "middle") -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}" text-anchor="{anchor}"{weight}>{escape(words)}</text>'
    )


def arrow(path: str, *, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<path d="{path}" fill="none" stroke="{QUIET}" stroke-width="1.4" marker-end="url(#tip)"{dashes}/>'


def down(start: Box, end: Box, *, dashed: bool = False) -> str:
    """From the bottom of one box to the top of another below it."""
    top, bottom = start.y + HEIGHT, end.y - 2
    middle = (top + bottom) // 2
    return arrow(f"M {start.x} {top} C {start.x} {middle}, {end.x} {middle}, {end.x} {bottom}", dashed=dashed)


def across(start: Box, end: Box) -> str:
    """From the right side of one box to the left side of the next in its row."""
    y = start.y + HEIGHT // 2
    return arrow(f"M {start.x + start.width // 2} {y} L {end.x - end.width // 2 - 3} {y}")


def drawing(width: int, height: int, title: str, parts: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" font-family="Helvetica, Arial, sans-serif">\n<title>{escape(title)}</title>\n'
        f'<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M 0 0 L 10 5 L 0 10 z" fill="{QUIET}"/></marker></defs>\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>\n'
    )
    return head + "\n".join(parts) + "\n</svg>\n"


def legend(x: int, y: int, entries: dict[str, str]) -> list[str]:
    parts = []
    for words, fill in entries.items():
        parts.append(f'<rect x="{x}" y="{y}" width="16" height="16" rx="3" fill="{fill}" stroke="{QUIET}"/>')
        parts.append(text(x + 24, y + 13, words, 12, INK, anchor="start"))
        x += 50 + 6 * len(words)
    return parts


def packages() -> str:
    boxes = [
        Box("cli", "one file per command", 470, 20, 180),
        Box("report", "one HTML page", 90, 115),
        Box("request", "options to Experiment", 265, 115, 150),
        Box("figures", "PNG and PDF", 470, 115, 130, HEAVY),
        Box("execution", "Ray, local, progress", 750, 115, 160, HEAVY),
        Box("tables", "rows, captions, layout", 90, 210, 150),
        Box("training", "the loop; trial to Result", 750, 210, 170, HEAVY),
        Box("analysis", "select, score, compare", 90, 310, 150),
        Box("commands", "result to command", 355, 310, 140),
        Box("data", "images, folds", 500, 310, 110, HEAVY),
        Box("evaluation", "Recall@K, MAP@R, NMI", 645, 310, 150, HEAVY),
        Box("backbones", "networks, weights", 800, 310, 130, HEAVY),
        Box("losses", "torch only", 930, 310, 100, HEAVY),
        Box("store", "results on disk", 90, 410),
        Box("plan", "Experiment to trials", 265, 410, 150),
        Box("storage", "checkpoints, weights", 645, 410, 150),
        Box("config", "configs/*.toml, losses", 265, 505, 150),
        Box("spec", "the nouns: Experiment, Trial, Job, Result, UserError", 450, 600, 860),
    ]
    by = {box.name: box for box in boxes}
    arrows = [down(by[above], by[below]) for above, below in IMPORTS]
    arrows += [
        arrow(f"M {by[name].x} {by[name].y + HEIGHT} L {by[name].x} {by['spec'].y - 2}")
        for name in ("store", "config", "storage")
    ]
    arrows += [down(by[above], by[below], dashed=True) for above, below in IMPORTED_WHEN_CALLED]
    words = {"imports no torch": LIGHT, "imports torch": HEAVY}
    notes = [text(440, 683, "dashed: imported only when it is called", 12, INK, anchor="start")]
    return drawing(
        1000, 705, "The packages and what they import", [*arrows, *map(Box.svg, boxes), *legend(20, 670, words), *notes]
    )


def lane(y: int, height: int, name: str, x: int = 26) -> str:
    return (
        f'<rect x="12" y="{y}" width="976" height="{height}" rx="8" fill="{PLAIN}"/>\n'
        f"{text(x, y + 20, name, 12, QUIET, bold=True, anchor='start')}"
    )


def walk() -> str:
    driver = [
        Box("cli/run.py", "parses the options", 100, 60, 150, LIGHT, "1"),
        Box("request.py", "a checked Experiment", 300, 60, 160, LIGHT, "2"),
        Box("plan.py", "trials, named by hash", 505, 60, 160, LIGHT, "3"),
        Box("store.py", "drops what is stored", 705, 60, 150, LIGHT, "4"),
        Box("execution/", "a Job per trial", 900, 60, 140, HEAVY, "5"),
    ]
    worker = [
        Box("data/", "decoded images, folds", 105, 200, 160, HEAVY, "6"),
        Box("backbones/", "network and weights", 305, 200, 150, HEAVY, "7"),
        Box("losses/", "the loss, its knobs", 500, 200, 150, HEAVY, "8"),
        Box("training/", "epochs and checkpoints", 700, 200, 160, HEAVY, "9"),
        Box("evaluation/", "Recall@K, MAP@R, NMI", 895, 200, 160, HEAVY, "10"),
    ]
    listeners = [
        Box("store.py", "one JSON per result", 895, 340, 150, LIGHT, "11"),
        Box("analysis/", "best of the search", 690, 340, 150, LIGHT, "12"),
        Box("plan.py", "final runs", 500, 340, 130, LIGHT, "13"),
        Box("again from 4", "now on test classes", 300, 340, 150, "#ffffff"),
    ]
    tables = [
        Box("store.py", "every result", 100, 480, 140, LIGHT, "14"),
        Box("analysis/", "select, group, score", 300, 480, 160, LIGHT, "15"),
        Box("tables/", "rows, footnotes, captions", 510, 480, 175, LIGHT, "16"),
        Box("tables/render/", "Markdown, LaTeX, HTML", 735, 480, 180, LIGHT, "17"),
    ]
    rows = [driver, worker, tables]
    arrows = [across(one, other) for row in rows for one, other in pairwise(row)]
    arrows += [
        arrow("M 900 110 C 900 165, 105 135, 105 197"),
        arrow("M 895 250 L 895 337"),
        arrow("M 820 365 L 768 365"),
        arrow("M 615 365 L 568 365"),
        arrow("M 435 365 L 378 365"),
    ]
    notes = [text(885, 288, "Progress, then the Result", 11, QUIET, anchor="end")]
    lanes = [
        lane(20, 105, "harness run: the driver"),
        lane(160, 105, "a worker: one trial, here or on another node", 180),
        lane(300, 105, "harness run: the driver, as results arrive"),
        lane(440, 105, "harness tables, at any time"),
    ]
    parts = [*lanes, *arrows, *(box.svg() for row in (*rows, listeners) for box in row), *notes]
    return drawing(1000, 560, "One trial, from the command line to the table", parts)


PICTURES = {"packages": packages, "walk": walk}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (Path(__file__).parent / "pictures" / f"{name}.svg").write_text(draw(), encoding="utf-8")
