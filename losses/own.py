"""A user's own loss: the text of its file and of the modules beside it that it imports, and their import from memory.

A worker on another machine has the text alone. Modules of one loss are apart from those of all others, so that two
losses may each have a `helper` of their own, and an edited one is imported anew. Nothing here imports torch.
"""

import ast
import builtins
import hashlib
import importlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from losses import LossError

Sources = Mapping[str, str]  # path relative to the loss's folder -> text; the loss's own file is the first
# These are never taken from beside a loss: a file that is called like them means the real ones when it imports them.
RESERVED = frozenset({"harness", "losses", *sys.stdlib_module_names})
MOST_BYTES = 1_000_000


def collect(file: Path) -> Sources:
    """The text of a loss's file and of the modules beside it that it imports, directly or not. Nothing is run: the
    import statements say what is needed. A LossError if a file cannot be read or is not Python."""
    folder, entry = file.resolve().parent, file.name
    sources = {entry: read(file)}
    waiting = [entry]
    while waiting:
        path = waiting.pop()
        package = () if path == entry else Path(path).parent.parts
        for module in imported(path, sources[path], package):
            for found in files_of(folder, module):
                if found not in sources:
                    sources[found] = read(folder / found)
                    waiting.append(found)
        if sum(len(text.encode()) for text in sources.values()) > MOST_BYTES:
            raise LossError(f"it imports more than {MOST_BYTES:,} bytes from its folder; install that as a package")
    return sources


def read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LossError(f"{file.name} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def imported(path: str, text: str, package: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The modules that a file may import, as parts of their names: `from a import b` may mean a module a.b. `package`:
    where the file lies."""
    try:
        tree = ast.parse(text, path)
    except (SyntaxError, ValueError) as error:
        raise LossError(f"{type(error).__name__}: {error}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
            yield from (name for name in names if name[0] not in RESERVED)
        elif isinstance(node, ast.ImportFrom):
            module = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                if node.level > len(package) + 1:
                    continue  # outside of the loss's folder
                module = (*package[: len(package) + 1 - node.level], *module)
            elif module[0] in RESERVED:
                continue
            yield from ((*module, alias.name) for alias in node.names)


def files_of(folder: Path, module: Sequence[str]) -> Iterator[str]:
    """The files beside a loss that importing a module reads: packages on the way, and the module."""
    if {"site-packages", "dist-packages"} & set(folder.parts):
        return  # what is installed there has versions of its own
    for depth in range(1, len(module) + 1):
        path = "/".join(module[:depth])
        if (folder / path / "__init__.py").is_file():
            yield f"{path}/__init__.py"
        elif (folder / f"{path}.py").is_file():
            yield f"{path}.py"
            return
        elif not (folder / path).is_dir():
            return


def version(sources: Sources) -> str:
    """12 hexadecimal digits: of the loss's file, if it imports nothing beside it; else of all files."""
    texts = list(sources.values())
    return digest(texts[0] if len(texts) == 1 else json.dumps(dict(sources), sort_keys=True))[:12]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def load(sources: Sources) -> ModuleType:
    """Import a loss's file from memory. It is a package of a name of its own, the modules beside it are in it."""
    stem = re.sub(r"\W", "_", Path(next(iter(sources))).stem)
    package = f"_loss_{stem}_{version(sources)}"
    if package in sys.modules:
        return sys.modules[package]
    finder = Beside(package, sources)
    sys.meta_path.append(finder)
    try:
        return importlib.import_module(package)
    except BaseException:
        sys.meta_path.remove(finder)
        raise


class Beside(MetaPathFinder, InspectLoader):
    """Finds and runs the modules of one loss. They import each other by their plain names, so their `__import__` looks
    into the package first. The loss's own file is not among them: it may be called like what it imports."""

    def __init__(self, package: str, sources: Sources) -> None:
        self.package, self.sources = package, sources
        self.entry, *beside = sources
        self.heads = {path.partition("/")[0].removesuffix(".py") for path in beside} - RESERVED

    def path_of(self, name: str) -> str | None:
        """The file of a module; empty for a folder without an __init__.py."""
        if name == self.package:
            return self.entry
        path = name.removeprefix(f"{self.package}.").replace(".", "/")
        for file in (f"{path}/__init__.py", f"{path}.py"):
            if file in self.sources and file != self.entry:
                return file
        return "" if any(file.startswith(f"{path}/") for file in self.sources) else None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self.package and not name.startswith(f"{self.package}."):
            return None
        file = self.path_of(name)
        if file is None:
            return None
        is_package = name == self.package or not file.endswith(".py") or file.endswith("/__init__.py")
        return ModuleSpec(name, self, origin=file, is_package=is_package)

    def get_source(self, fullname: str) -> str:
        """Tracebacks show its lines."""
        return self.sources.get(self.path_of(fullname) or "", "")

    def exec_module(self, module: ModuleType) -> None:
        path = self.path_of(module.__name__) or ""
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": self.import_}
        exec(compile(self.get_source(module.__name__), path, "exec"), vars(module))

    def import_(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> ModuleType:
        """What an import statement calls."""
        head = name.partition(".")[0]
        if level or head not in self.heads:
            return builtins.__import__(name, globals, locals, fromlist, level)
        module = builtins.__import__(f"{self.package}.{name}", globals, locals, fromlist)
        return module if fromlist else sys.modules[f"{self.package}.{head}"]
