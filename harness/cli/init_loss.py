"""`harness init-loss`: a file with a loss to start from."""

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.app import INPUTS, app
from harness.cli.output import say
from harness.files import write_whole, writing
from harness.spec import UserError

# CONTRIBUTING shows it too, and a test keeps the two the same.
TEMPLATE = '''\
"""Images of a class close together, those of other classes beyond a margin."""

from typing import Annotated

from torch import Tensor

from losses.base import Loss, Positive, Range, squared_distances, unit


class MyLoss(Loss):
    """L = mean over pairs of d2 if of one class, of [ margin - d2 ]+ if not,
    d2 the squared Euclidean distance of unit-length embeddings."""

    title = "My loss"  # in tables
    cite = "me, 2026"
    family = "pair"  # it compares images of a batch; others are proxy and classification
    space = {"margin": Range(0.1, 2.0, log=True)}  # what random search may vary

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        margin: Annotated[Positive, "squared distance at which other classes are far enough"] = 1.0,
    ) -> None:
        super().__init__(num_classes, dim)
        self.margin = margin

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        d2 = squared_distances(unit(embeddings))
        same = labels[:, None] == labels
        return (d2 * same).mean() + ((self.margin - d2).relu() * ~same).mean()
'''


@app.command("init-loss", epilog="Example: harness init-loss mine.py", rich_help_panel=INPUTS)
def init_loss(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write, e.g. mine.py.")],
) -> None:
    """Write a loss to start from. It has a knob, a search range and a docstring, and it passes `harness check-loss`."""
    if file.suffix != ".py" or not file.stem.isidentifier():
        raise UserError(f"{file}: must be a Python file, e.g. {file.parent / 'mine.py'}")
    if file.exists():
        raise UserError(f"{file}: exists already; choose another name")
    with writing(file):
        write_whole(file, TEMPLATE.encode())
    name = f"{'' if file.is_absolute() else './'}{file}:MyLoss"
    say(f"wrote {file}; check it, look at it, and compare it:")
    for command in (f"check-loss {name}", f"show {name}", f"run --losses group,{name}"):
        say(f"  harness {command}")
