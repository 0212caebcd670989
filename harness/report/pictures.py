"""Every figure of a report, drawn as a PNG; and what is missing for those that cannot be drawn."""

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.figures.groups import Group, groups
from harness.figures.registry import FIGURES, Drawn, Sources, draw
from harness.spec import ExperimentRecord, Result, UserError


@dataclass(frozen=True)
class Picture:
    figure: str  # a name of the registry of figures
    subject: str  # dataset, protocol and backbone; of some figures also the loss or what is varied
    png: bytes


@dataclass(frozen=True)
class Missing:
    """A figure that cannot be drawn, and why: the command that makes its results is named."""

    figure: str
    reason: str


def draw_all(
    results: Iterable[Result], sources: Sources, experiments: Iterable[ExperimentRecord] = (), sort: str = ""
) -> tuple[list[Picture], list[Missing]]:
    """Every figure of every dataset, protocol and backbone."""
    pictures: list[Picture] = []
    missing: list[Missing] = []
    parts = groups(results, experiments, sort=sort)
    with tempfile.TemporaryDirectory() as folder:
        for name in FIGURES:
            for group in parts:
                try:
                    pictures += [picture(drawn, group) for drawn in draw(name, group, sources, Path(folder), ["png"])]
                except UserError as error:
                    missing.append(Missing(name, str(error)))
    return pictures, missing


def picture(drawn: Drawn, group: Group) -> Picture:
    (file,) = drawn.files
    subject = " · ".join(filter(None, (group.dataset, group.protocol, group.backbone, drawn.part)))
    return Picture(drawn.figure, subject, file.read_bytes())
