"""Help, version, and that looking is cheap."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from harness import __version__
from harness.cli import app as app_module
from harness.cli.app import app
from tests.conftest import Harness


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command of the application, and every group of commands, by its words."""
    group = group or typer.main.get_command(app)
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


def test_version_and_python_m(harness: Harness) -> None:
    assert harness("--version").out == f"harness {__version__}\n"
    run = subprocess.run([sys.executable, "-m", "harness", "--version"], capture_output=True, text=True)
    assert run.stdout == f"harness {__version__}\n"


def test_each_command_has_a_file_of_its_own() -> None:
    files = {file.stem.strip("_") for file in Path(app_module.__file__).parent.glob("*.py")}
    words = {path[0].replace("-", "_") for path in commands() if path}
    assert len(words) > 10
    assert words <= files


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_every_command_has_help_with_an_example(harness: Harness, words: tuple[str, ...]) -> None:
    said = harness(*words, "--help")
    assert said.code == 0
    assert f"Example: harness {' '.join(words)}" in said.out


def test_light_commands_import_neither_torch_nor_ray_nor_scipy(small: Path, harness: Harness, tmp_path: Path) -> None:
    harness("run", "--losses", "none", "--dataset", "blobs")
    code = (
        "import sys; sys.argv = ['harness', *{arguments}]\n"
        "from harness.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {{'torch', 'ray', 'timm', 'scipy', 'sklearn', 'matplotlib'}} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    helps = (["--help"], ["run", "--help"], ["figures", "--help"], ["report", "--help"])
    for arguments in (*helps, ["tables"], ["ls", "runs"], ["ls", "datasets"]):
        environment = {**os.environ, "HARNESS_RESULTS": str(tmp_path / "results")}
        subprocess.run([sys.executable, "-c", code.format(arguments=arguments)], check=True, env=environment)
