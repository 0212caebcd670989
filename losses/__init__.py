"""The losses: the folder is the registry, losses/<name>.py holds the loss called <name>.

Importing this package does not import torch; `get` does.
"""

import hashlib
import importlib
import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from losses.base import Loss

_NOT_LOSSES = {"__init__", "base", "contract", "pml", "space"}


@cache
def names() -> tuple[str, ...]:
    """Every registered loss, alphabetically: the folder's, and those of installed packages."""
    own = {file.stem for file in Path(__file__).parent.glob("*.py")} - _NOT_LOSSES
    return tuple(sorted({*own, *plugins()}))


@cache
def plugins() -> dict[str, EntryPoint]:
    """Losses of installed packages: entry points of the group `harness.losses`. The folder's names are taken."""
    folder = Path(__file__).parent
    found = entry_points(group="harness.losses")
    taken = {"all", "none", *(file.stem for file in folder.glob("*.py"))}
    return {one.name: one for one in found if one.name.isidentifier() and one.name not in taken}


def _plugin(name: str) -> "type[Loss]":
    from losses.base import Loss

    found = plugins()[name].load()
    if not (isinstance(found, type) and issubclass(found, Loss)):
        raise KeyError(f"the entry point {name!r} of {plugins()[name].value} is not a Loss")
    return found


def get(name: str, source: str = "") -> "type[Loss]":
    """The class of the loss called `name`: the one Loss its file defines.

    With the source of a user's own file, `name` is <file>.<class> and the file is run as it is.
    """
    from losses.base import Loss

    if source:
        return _from_source(name, source)
    if name.startswith("pml:"):
        from losses.pml import bridge

        return bridge(name.removeprefix("pml:"))
    if name not in names():
        raise KeyError(f"no loss named {name!r}; known: {', '.join(names())}")
    if name in plugins():
        return _plugin(name)
    module = importlib.import_module(f"losses.{name}")
    (found,) = (
        item
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, Loss) and item.__module__ == module.__name__
    )
    return found


@cache
def _from_source(name: str, source: str) -> "type[Loss]":
    from losses.base import Loss

    stem, _, wanted = name.rpartition(".")
    # A name that can be nobody else's, entered so that its classes can be pickled and its dataclasses resolved.
    module = ModuleType(f"_loss_{stem}_{hashlib.sha256(source.encode()).hexdigest()[:12]}")
    sys.modules[module.__name__] = module
    exec(compile(source, f"{stem}.py", "exec"), vars(module))
    found = vars(module).get(wanted)
    if not (isinstance(found, type) and issubclass(found, Loss)):
        own = [key for key, item in vars(module).items() if isinstance(item, type) and issubclass(item, Loss)]
        raise KeyError(
            f"{stem}.py defines no loss named {wanted!r}; it has: {', '.join(set(own) - {'Loss'}) or 'none'}"
        )
    return found
