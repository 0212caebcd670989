"""Where a number comes from: the command as it was typed."""

import sys

import PIL
import pytest

from harness import provenance


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["/usr/local/bin/harness", "run"], "harness run"),
        (["/somewhere/harness/__main__.py", "run", "--name", "two words"], "python -m harness run --name 'two words'"),
        (["mine.py"], "mine.py"),
    ],
)
def test_the_command_can_be_typed_again(monkeypatch: pytest.MonkeyPatch, argv: list[str], command: str) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    assert provenance.origin()["command"] == command


def test_a_record_names_the_version_of_what_decodes_the_images() -> None:
    assert provenance.versions()["pillow"] == PIL.__version__
