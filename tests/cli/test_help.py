"""Help, version, and that looking is cheap."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from harness import __version__
from harness.cli import main
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
    assert {path[0].replace("-", "_") for path in commands() if path} == {name.strip("_") for name in main.COMMANDS}


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_every_command_has_help_with_an_example(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    said = harness(*words, "--help")
    assert said.code == 0
    assert f"Example: harness {' '.join(words)}" in said.out
    assert max(map(len, said.out.splitlines())) <= width
    assert not re.search(r"…|[a-z ]\.\.\.", said.out)  # nothing is cut; ID... and V1,V2,... are forms
    assert not re.search(r"<|\.{4}|[{}]", said.out)  # no types of Python, no ID...}...
    assert harness(*words, "-h").out == said.out


@pytest.mark.parametrize("group", [[], ["data"], ["data", "cache"]], ids=" ".join)
def test_a_group_of_commands_alone_prints_its_help(harness: Harness, group: list[str]) -> None:
    said = harness(*group)
    assert said.code == 0
    assert said.out == harness(*group, "--help").out


def test_help_lists_the_commands_in_the_order_of_use(harness: Harness) -> None:
    lines = harness("--help").out.splitlines()
    headings = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert headings == [
        "Run:",
        "Look at results:",
        "Work with stored runs:",
        "Losses, data and weights:",
        "Options:",
    ]
    assert lines[lines.index("Run:") + 1].split()[0] == "run"


def test_the_options_of_run_stand_under_headings(harness: Harness) -> None:
    text = harness("run", "--help").out
    starts = [text.index(f"\n{heading}:\n") for heading in ("What to compare", "Search and repetition", "Results")]
    assert starts == sorted(starts)
    assert starts[0] < text.index("\n  --losses NAMES") < starts[1] < text.index("\n  --trials N") < starts[2]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("harness sh", "show"),
        ("harness run --losses group,tri", "group,triplet"),
        ("harness run --dataset blo", "blobs"),
        ("harness tables --protocol ti", "tiny"),
        ("harness run --set warm", "warmup_epochs="),
        ("harness ls pro", "protocols"),
    ],
)
def test_the_shell_completes(
    small: Path, monkeypatch: pytest.MonkeyPatch, harness: Harness, line: str, offered: str
) -> None:
    monkeypatch.setenv("_HARNESS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    assert harness().out.split() == [offered]


def test_the_shell_completes_ids(small: Path, monkeypatch: pytest.MonkeyPatch, harness: Harness) -> None:
    harness("run", "--losses", "none", "--dataset", "blobs")
    ids = [line.split()[0] for line in harness("ls", "runs").out.splitlines()[2:]]
    monkeypatch.setenv("_HARNESS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"harness show {ids[0][:6]}")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert harness().out.split() == [ids[0]]


def test_light_commands_import_neither_torch_nor_ray(small: Path, harness: Harness, tmp_path: Path) -> None:
    """Help and lists do not import scipy either, which the tests of tables need."""
    harness("run", "--losses", "none", "--dataset", "blobs")
    code = (
        "import sys; sys.argv = ['harness', *{arguments}]\n"
        "from harness.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {{'torch', 'ray', 'timm', 'sklearn', 'matplotlib', *{more}}} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    environment = {**os.environ, "HARNESS_RESULTS": str(tmp_path / "results")}
    helps = (["--help"], ["run", "--help"], ["figures", "--help"], ["report", "--help"])
    ids = [line.split()[0] for line in harness("ls", "runs").out.splitlines()[2:]]
    for arguments in (*helps, ["ls", "runs"], ["ls", "datasets"], ["tables"], ["compare", *ids]):
        more = [] if arguments[0] in ("tables", "compare") else ["numpy", "scipy"]
        script = code.format(arguments=arguments, more=more)
        subprocess.run([sys.executable, "-c", script], check=True, env=environment)
