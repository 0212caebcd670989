"""Help, version, and that looking is cheap."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Harness


def test_version_and_python_m(harness: Harness) -> None:
    assert harness("--version").out == "harness 0.1.0\n"
    run = subprocess.run([sys.executable, "-m", "harness", "--version"], capture_output=True, text=True)
    assert run.stdout == "harness 0.1.0\n"


@pytest.mark.parametrize(
    "command",
    [
        *(
            (),
            ("run",),
            ("tables",),
            ("ls",),
            ("show",),
            ("rm",),
            ("import",),
            ("status",),
            ("embed",),
            ("eval",),
            ("check-loss",),
        ),
        *(("data",), ("data", "check"), ("data", "download"), ("data", "cache"), ("data", "cache", "ls")),
        ("data", "cache", "rm"),
    ],
)
def test_every_command_has_help_with_an_example(harness: Harness, command: tuple[str, ...]) -> None:
    said = harness(*command, "--help")
    assert said.code == 0
    assert f"Example: harness {' '.join(command)}" in said.out


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
