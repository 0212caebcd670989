"""`harness tables`: formats, files and kinds."""

import shlex
from pathlib import Path

import pytest

from harness.cli import run_summary, screen, tables
from tests.conftest import Harness

QUICK = ("run", "--losses", "group,triplet", "--dataset", "blobs")


def test_tables_in_every_format_and_to_files(small: Path, harness: Harness, tmp_path: Path) -> None:
    harness(*QUICK)
    assert r"\toprule" in harness("tables", "--format", "latex").out
    assert harness("tables", "--format", "csv").out.startswith("source,id,title")
    assert "MAP@R" in harness("tables", "--metrics", "MAP@R,R@1").out
    assert "R@3" in harness("tables", "--metrics", "R@3").out  # no record states it; the values of the queries do
    assert ",R@3," in harness("tables", "--metrics", "R@3", "--format", "csv").out
    for form, ending in (("markdown", "md"), ("latex", "tex"), ("csv", "csv"), ("json", "json"), ("html", "html")):
        said = harness("tables", "--format", form, "--out", str(tmp_path / "out"))
        written = Path(said.out.splitlines()[0])
        assert written.suffix == f".{ending}"
        assert written.read_text() == harness("tables", "--format", form).out
    assert (tmp_path / "out" / "references.bib").exists()
    alone = harness("tables", "--format", "latex", "--standalone").out
    assert alone.startswith(r"\documentclass")


def test_a_terminal_gets_drawn_tables_and_a_pipe_markdown(
    small: Path, harness: Harness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    piped = harness(*QUICK)
    assert piped.out.startswith("### Blobs")
    monkeypatch.setenv("COLUMNS", "80")
    for module in (screen, tables, run_summary):
        monkeypatch.setattr(module, "on_terminal", lambda: True)
    for words in (QUICK, ("tables",), ("tables", "--table", "search"), (*QUICK, "--grid", "samples_per_class=2,3")):
        drawn = harness(*words).out
        assert drawn.startswith("Blobs · ")
        assert "───" in drawn
        assert max(map(len, drawn.splitlines())) <= 80
        assert "###" not in drawn
    assert harness("tables", "--format", "markdown").out.startswith("### Blobs")
    text = " ".join(harness("tables", "--table", "search").out.split())
    assert text.endswith("Budgets and all details: harness tables --table search --format markdown")
    monkeypatch.setenv("HARNESS_RESULTS", "elsewhere")
    folder = str((tmp_path / "results").rename(tmp_path / f"results-{'of-last-week-' * 8}"))  # wider than the terminal
    command = harness("tables", "--results", folder).out.rpartition("Budgets and all details:")[2].replace("\\\n", " ")
    assert shlex.split(command) == ["harness", "tables", "--results", folder, "--format", "markdown"]
    monkeypatch.setenv("HARNESS_RESULTS", folder)
    words = ("--published", "rows", "--losses", "triplet", "--where", "seed=0", "--where", "triplet.margin=0.2")
    text = " ".join(harness("tables", *words).out.replace("\\\n", " ").split())
    assert text.endswith(f"all details: harness tables {' '.join(words)} --format markdown")


def test_all_tables_are_those_that_have_something_to_show(small: Path, harness: Harness) -> None:
    harness(*QUICK)
    titles = [line for line in harness("tables", "--table", "all").out.splitlines() if line.startswith("###")]
    assert [title.split(" · ")[1] for title in titles] == ["losses", "backbones", "search"]
    assert "Params" in harness("tables", "--table", "backbones").out
    assert "--published" in harness("tables", "--help").out
    assert (
        harness("tables", "--published", "none").out == harness("tables", "--published", "rows").out
    )  # none for blobs
