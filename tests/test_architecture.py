"""Imports point one way: every Python file is parsed, imports inside functions included."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import harness
import losses

ROOT = Path(harness.__file__).parent
LOSSES = Path(losses.__file__).parent

# What each package or module of harness/ may import from the others. DESIGN: spec < config < plan < commands; the light
# side is analysis < tables < report; the heavy side is data, backbones, evaluation < training < execution.
LIGHT = {
    "spec",
    "sources",
    "protocols",
    "config",
    "draws",
    "plan",
    "commands",
    "pages",
    "assignments",
    "request",
    "store",
    "analysis",
    "tables",
    "report",
}
ALLOWED: dict[str, set[str]] = {
    "spec": {"losses"},
    "protocols": {"spec", "losses"},
    "config": {"spec", "protocols", "losses", "data"},  # of data only the light readers
    "draws": {"spec", "losses"},
    "plan": {"spec", "config", "draws", "losses"},
    "pages": {"spec", "config", "losses"},
    "commands": {"spec", "config", "plan", "losses"},
    "assignments": {"spec", "losses"},
    "request": {
        "spec",
        "protocols",
        "config",
        "plan",
        "commands",
        "assignments",
        "store",
        "storage",
        "data",
        "backbones",
        "losses",
    },
    "shadowed": set(),
    "files": {"spec"},
    "store": {"spec", "files"},
    "sources": {"spec", "files", "store", "losses"},
    "storage": {"spec", "files"},
    "merging": {"spec", "sources", "store", "storage"},
    "provenance": {"spec", "losses"},
    "analysis": {"spec", "config", "plan", "provenance", "store", "sources", "losses"},
    "data": {"spec", "storage", "files"},
    "backbones": {"spec", "storage", "files"},
    "evaluation": {"spec", "storage"},
    "training": {"spec", "storage", "provenance", "data", "backbones", "evaluation", "losses"},
    "execution": {
        "commands",
        "spec",
        "files",
        "config",
        "plan",
        "store",
        "sources",
        "storage",
        "provenance",
        "analysis",
        "request",
        "data",
        "backbones",
        "evaluation",
        "training",
        "losses",
    },
    "tables": {"spec", "config", "plan", "commands", "store", "analysis", "losses"},
    "figures": {"spec", "files", "config", "plan", "commands", "storage", "analysis", "data", "evaluation"},
    "report": {"spec", "config", "plan", "commands", "store", "analysis", "tables", "figures"},
}
ANYTHING = {"__init__", "__main__", "api", "cli"}  # the Python interface and the command line come last


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def unit(file: Path) -> str:
    """The package or module of harness/ that a file belongs to."""
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(file: Path) -> Iterator[str]:
    """The full names of what a file imports; `from a import b` gives a.b, since b may be a module."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(name: str) -> str | None:
    """The unit that an imported name belongs to: a unit of harness/, `losses`, or None for somebody else's."""
    head, *rest = name.split(".")
    if head == "losses":
        return "losses"
    if head != "harness" or not rest or not ((ROOT / rest[0]).exists() or (ROOT / f"{rest[0]}.py").exists()):
        return None
    return rest[0]


@pytest.mark.parametrize("file", files(ROOT), ids=lambda file: str(file.relative_to(ROOT)))
def test_a_file_imports_only_what_may_stand_below_it(file: Path) -> None:
    if unit(file) in ANYTHING:
        return
    allowed = {*ALLOWED[unit(file)], unit(file)}
    wrong = {name for name in imported(file) if ours(name) not in {None, *allowed}}
    assert not wrong, f"{file.relative_to(ROOT)} imports {sorted(wrong)}; allowed is {sorted(allowed)}"


@pytest.mark.parametrize("file", files(ROOT), ids=lambda file: str(file.relative_to(ROOT)))
def test_only_the_ray_files_import_ray(file: Path) -> None:
    if file.parent.name == "execution" and file.name.startswith("ray_"):
        return
    assert not [name for name in imported(file) if name.split(".")[0] == "ray"]


@pytest.mark.parametrize(
    "file", [file for file in files(ROOT) if unit(file) in LIGHT], ids=lambda file: str(file.relative_to(ROOT))
)
def test_the_light_side_imports_no_torch(file: Path) -> None:
    heavy = {"torch", "torchvision", "timm", "ray", "sklearn"}
    assert not [name for name in imported(file) if name.split(".")[0] in heavy]


@pytest.mark.parametrize("file", files(LOSSES), ids=lambda file: file.name)
def test_losses_know_nothing_of_the_harness(file: Path) -> None:
    assert not [name for name in imported(file) if name.split(".")[0] == "harness"]


@pytest.mark.parametrize("file", [file for file in files(ROOT) if file.name == "__init__.py"], ids=str)
def test_a_packages_init_is_a_docstring(file: Path) -> None:
    if file.parent in (ROOT, ROOT / "spec"):  # the Python interface; the nouns, re-exported
        return
    (node,) = ast.parse(file.read_text(encoding="utf-8")).body
    assert isinstance(node, ast.Expr)
    assert ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize("file", files(ROOT / "cli"), ids=lambda file: file.name)
def test_commands_print_through_one_function(file: Path) -> None:
    """`say` lets no control character through to a terminal."""
    if file.name == "output.py":
        return
    calls = [node.func for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    assert "print" not in {call.id for call in calls if isinstance(call, ast.Name)}, "use harness.cli.output.say"


def test_the_test_itself_sees_imports_inside_functions(tmp_path: Path) -> None:
    file = tmp_path / "sample.py"
    file.write_text("def f():\n    from harness.execution import run\n    import harness.cli.app\n")
    assert [ours(name) for name in imported(file)] == ["execution", "cli"]
