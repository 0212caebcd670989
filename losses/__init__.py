"""The losses: the folder is the registry, losses/<name>.py holds the loss called <name>.

A file holds a loss if it defines, at its top level, a class that derives directly from `Loss`; other files are helpers.
Importing this package, `names` and `facts` do not import torch; `get` does.
"""

import ast
import importlib
import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from losses.base import Loss

FOLDER = Path(__file__).parent
# What a loss learns from. classification: a weight vector per class; proxy: learned points that stand for classes;
# pair: the images of a batch alone, of which two must be of one class and two of different classes.
Family = Literal["classification", "proxy", "pair"]
RESERVED = ("all", "none")  # what `--losses all` and a baseline's trial say in place of a loss


class LossError(ValueError):
    """A loss that is unknown, or a file or an installed package that does not define one as it should."""


class UnknownLossError(LossError):
    """A name that is not among the known ones."""

    def __init__(self, name: str, known: Iterable[str], where: str = "") -> None:
        self.name = name
        self.known = list(known)
        self.where = where
        super().__init__(f"no loss{where} named {name!r}; known: {', '.join(self.known) or 'none'}")


@dataclass(frozen=True)
class Facts:
    """What a loss's class states about itself, read from its source."""

    class_name: str
    title: str
    cite: str
    bibtex: str  # one entry, starting in the first column
    family: str
    version: int
    added: dict[str, Any]  # knobs added after records existed: the value that means "as before"
    head_dim: int = 0  # of a method that builds its own head: its published dimension
    extras: str = ""  # what a method has that a loss has not

    @property
    def key(self) -> str:
        """The key of the BibTeX entry: kim2020proxy."""
        entry = re.match(r"@\w+\{([^,\s]+),", self.bibtex)
        return entry[1] if entry else ""


@cache
def names() -> tuple[str, ...]:
    """Every registered loss, alphabetically: those of this package and those of installed packages."""
    return tuple(sorted({*shipped(), *plugins()}))


@cache
def shipped() -> tuple[str, ...]:
    """The losses of this package, alphabetically."""
    return tuple(sorted(file.stem for file in FOLDER.glob("*.py") if _classes(file)))


@cache
def plugins() -> dict[str, EntryPoint]:
    """Losses of installed packages: entry points of the group `harness.losses`. They cannot replace a loss of ours."""
    points = entry_points(group="harness.losses")
    taken = {*RESERVED, *shipped()}
    return {point.name: point for point in points if point.name.isidentifier() and point.name not in taken}


@cache
def bridged() -> tuple[str, ...]:
    """The losses that pytorch-metric-learning exports, and their base classes, read from its source without importing
    it; empty if it is not installed. losses/pml.py says which of them can be trained here."""
    spec = find_spec("pytorch_metric_learning")
    files = [Path(folder) / "losses" / "__init__.py" for folder in (spec and spec.submodule_search_locations) or ()]
    nodes = [node for file in files if file.is_file() for node in ast.parse(file.read_text(encoding="utf-8")).body]
    return tuple(alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names)


@cache
def facts(name: str) -> Facts:
    """What the loss called `name`, of this package, states about itself."""
    definition = _definition(name)
    values = {
        target.id: node.value
        for node in definition.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    strings = {
        name: value.value
        for name, value in values.items()
        if isinstance(value, ast.Constant) and isinstance(value.value, str)
    }
    for fact in ("title", "cite", "bibtex"):
        if fact not in strings:
            raise LossError(f'losses/{name}.py: {definition.name} has no {fact}; write {fact} = "..." in its class')
    version = ast.literal_eval(values["version"]) if "version" in values else 1
    added = ast.literal_eval(values["added"]) if "added" in values else {}
    bibtex = inspect.cleandoc(strings["bibtex"])
    family = strings.get("family", "pair")
    head_dim = ast.literal_eval(values["head_dim"]) if "head_dim" in values else 0
    extras = strings.get("extras", "")
    about = (strings["title"], strings["cite"], bibtex, family, version, added, head_dim, extras)
    stated = Facts(definition.name, *about)
    if not stated.key:
        raise LossError(f"losses/{name}.py: bibtex is not a BibTeX entry; it must begin like @article{{doe2026loss,")
    return stated


@cache
def defaults(name: str) -> dict[str, Any]:
    """The knobs of a loss of this package that have a default, read from its source."""
    for node in _definition(name).body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            knobs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            return {knob.arg: ast.literal_eval(value) for knob, value in knobs if value is not None}
    return {}


def get(name: str, sources: Mapping[str, str] | None = None) -> "type[Loss]":
    """The class of the loss called `name`: a registered one, or pml:CircleLoss.

    With the texts of a user's own file and of the modules it imports (losses/own.py), `name` is <file>.<class>.
    """
    if sources or name.startswith("pml:") or name in plugins():
        from losses.torch_state import kept

        with kept():  # importing it may change torch's settings for everybody
            return _from_elsewhere(name, sources)
    if name not in names():
        raise UnknownLossError(name, names())
    class_name = facts(name).class_name  # an incomplete loss fails here, not when its results are tabulated
    loss: type[Loss] = getattr(importlib.import_module(f"losses.{name}"), class_name)
    return loss


@cache
def _classes(file: Path) -> tuple[ast.ClassDef, ...]:
    """The classes at a file's top level that derive directly from Loss, read without running the file."""
    body = ast.parse(file.read_text(encoding="utf-8"), str(file)).body
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    return tuple(node for node in classes if "Loss" in {ast.unparse(base).split(".")[-1] for base in node.bases})


def classes_in(file: Path) -> list[str]:
    """The names of the losses that a file defines, as far as can be read without running it."""
    try:
        return [node.name for node in _classes(file)]
    except (OSError, SyntaxError, ValueError):
        return []


def _definition(name: str) -> ast.ClassDef:
    """The one class that losses/<name>.py defines."""
    if name not in shipped():
        raise UnknownLossError(name, shipped(), " in this package")
    classes = _classes(FOLDER / f"{name}.py")
    if len(classes) > 1:
        defined = ", ".join(node.name for node in classes)
        raise LossError(f"losses/{name}.py defines {len(classes)} losses ({defined}); a file may define one")
    return classes[0]


def _from_elsewhere(name: str, sources: Mapping[str, str] | None) -> "type[Loss]":
    if sources:
        return _own(name, tuple(sources.items()))
    if name.startswith("pml:"):
        from losses.pml import bridge

        return bridge(name.removeprefix("pml:"))
    return _plugin(name)


def _plugin(name: str) -> "type[Loss]":
    from losses.base import Loss

    loaded = plugins()[name].load()
    if not (isinstance(loaded, type) and issubclass(loaded, Loss)):
        raise LossError(f"the loss {name} of an installed package: {plugins()[name].value} is not a Loss")
    return loaded


@cache
def _own(name: str, files: tuple[tuple[str, str], ...]) -> "type[Loss]":
    from losses import own
    from losses.base import Loss

    stem, _, class_name = name.rpartition(".")
    module = own.load(dict(files))
    defined = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Loss) and value is not Loss
    }
    if class_name not in defined:
        if isinstance(vars(module).get(class_name), type):
            raise LossError(f"{class_name} is not a loss: write class {class_name}(Loss), with Loss of losses.base")
        raise UnknownLossError(class_name, defined, f" in {stem}.py")
    return defined[class_name]
