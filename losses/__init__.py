"""The losses: the folder is the registry, losses/<name>.py holds the loss called <name>.

Importing this package does not import torch; `get` does.
"""

import importlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from losses.base import Loss

_NOT_LOSSES = {"__init__", "base", "space"}


@cache
def names() -> tuple[str, ...]:
    """Every registered loss, alphabetically."""
    return tuple(sorted(file.stem for file in Path(__file__).parent.glob("*.py") if file.stem not in _NOT_LOSSES))


def get(name: str) -> "type[Loss]":
    """The class of the loss called `name`: the one Loss its file defines."""
    from losses.base import Loss

    if name not in names():
        raise KeyError(f"no loss named {name!r}; known: {', '.join(names())}")
    module = importlib.import_module(f"losses.{name}")
    (found,) = (
        item
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, Loss) and item.__module__ == module.__name__
    )
    return found
