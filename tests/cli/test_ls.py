"""`harness ls`: every listing, on terminals of any width."""

import io
import shutil
import sys
from pathlib import Path

import pytest

import losses
from harness.cli import listing
from harness.spec import SETTINGS
from tests.conftest import Harness

KINDS = ["losses", "datasets", "protocols", "settings", "runs"]


@pytest.mark.parametrize("kind", KINDS)
def test_ls_lists(small: Path, harness: Harness, kind: str) -> None:
    harness("run", "--losses", "none", "--dataset", "blobs")
    said = harness("ls", kind)
    assert said.code == 0
    expected = {
        "losses": "proxy_nca",
        "datasets": "blobs",
        "protocols": "tiny",
        "settings": "warmup_epochs",
        "runs": "pixels",
    }
    assert expected[kind] in said.out
    assert harness("ls", kind[:3]).out == said.out


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("kind", KINDS)
def test_no_listing_is_wider_than_the_terminal(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, kind: str, width: int
) -> None:
    """With the shipped configuration and the results of the repository."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(width))
    assert shutil.get_terminal_size().columns == width
    folder = Path(__file__).parents[2] / "results"
    said = harness("ls", kind, "--results", str(folder))
    assert said.code == 0
    assert max(map(len, said.out.splitlines())) <= width


def test_a_wide_column_is_wrapped_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    text = "a sentence of ten words that does not fit so"
    listing.print_rows([{"name": "first", "what": text}], ["name", "what"])
    lines = screen.getvalue().splitlines()
    assert lines[2:] == ["first  a sentence of ten words that does", "       not fit so"]


class Terminal(io.StringIO):
    """Standard output that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_plug_in_that_is_broken_is_listed_all_the_same(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    broken = EntryPoint("mine", "nowhere:Mine", "harness.losses")
    monkeypatch.setattr(losses, "plugins", lambda: {"mine": broken})
    losses.names.cache_clear()
    try:
        said = harness("ls", "losses")
    finally:
        losses.names.cache_clear()
    assert said.code == 0
    assert "installed: nowhere:Mine" in said.out
    assert "triplet" in said.out


def test_settings_are_listed_with_their_meaning_limits_and_values(harness: Harness) -> None:
    text = harness("ls", "settings").out
    for name, setting in SETTINGS.items():
        assert f"\n{name}" in text
        assert setting.meaning.replace("`", "") in " ".join(text.split())
    assert "allowed: an integer >= 0; value: 60 (counted, paper), 3 (cpu), 100 (fair), 4 (quick), 70 (released)" in text
