"""`harness ls`: every listing, on terminals of any width."""

import io
import shutil
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import losses
from harness.cli import listing
from harness.cli.runs import differences
from harness.spec import SETTINGS
from tests.conftest import Harness
from tests.factories import a_result, a_trial

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


def test_runs_are_listed_with_their_kind_their_date_and_what_differs(small: Path, harness: Harness) -> None:
    words = ("run", "--losses", "triplet", "--dataset", "blobs", "--seeds", "2")
    changed = ("--set", "epochs=2", "--set", "triplet.margin=0.3")
    assert harness(*words, *changed, "--ensemble", "2", "--name", "two seeds").code == 0
    assert harness(*words, "--trials", "1", "--name", "a search").code == 0
    said = harness("ls", "runs", "--losses", "triplet")
    names, _, *rows = said.out.splitlines()
    assert " ".join(names.split()) == "id date kind loss dataset fold protocol backbone seed R@1 name differs"
    assert sorted(row.split()[3] for row in rows) == ["ensemble", "run", "run", "run", "run", "search"]
    assert all(row.endswith("epochs=2 margin=0.3") == ("a search" not in row) for row in rows)
    assert all(("two seeds" in row) == ("epochs=2" in row) for row in rows)  # the ensemble too
    assert all(row.split()[1] == time.strftime("%Y-%m-%d") for row in rows)
    (only,) = harness(
        "ls", "runs", "--losses", "triplet", "--name", "a search", "--where", "fold=val0"
    ).out.splitlines()[2:]
    assert "search" in only
    best = harness("ls", "runs", "--sort", "R@1").out.splitlines()
    scores = [(" test " in line, float(line[best[0].index("R@1") :].split()[0])) for line in best[2:]]
    assert scores == sorted(scores, reverse=True)
    assert {on_test for on_test, _ in scores} == {True, False}
    assert harness("ls", "runs", "--sort", "date").code == 0
    assert "no order named 'size'" in harness("ls", "runs", "--sort", "size").err
    refused = harness("ls", "losses", "--since", "1d")
    assert (refused.code, "choose among runs" in refused.err) == (2, True)


def test_what_all_runs_share_is_said_once_on_a_terminal(
    small: Path, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness("run", "--losses", "none", "--dataset", "blobs")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    head, names, *_ = harness("ls", "runs").out.splitlines()
    assert head == "dataset blobs, protocol tiny, backbone test_efficientnet, fold test, seed 0"
    assert names.split() == ["id", "date", "kind", "loss", "R@1"]


def test_what_differs_stands_below_a_row_where_the_terminal_is_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    listing.print_rows([{"id": "abc", "differs": "epochs=1 margin=0.3 crop=32"}], ["id", "differs"], below="differs")
    assert screen.getvalue().splitlines() == ["id", "---", "abc", "    epochs=1", "    margin=0.3", "    crop=32"]


def test_an_id_stays_whole_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    row = {"id": "c24f4d318634", "date": "2026-11-19 06:17", "backbone": "tf_efficientnet_lite0", "R@1": "45.8"}
    print_rows = partial(listing.print_rows, [{**row, "differs": "lr=1"}], [*row, "differs"], below="differs")
    print_rows(aside=["backbone"])
    assert screen.getvalue().splitlines()[2:] == [
        "c24f4d318634  2026-11-19 06:17  45.8",
        "    tf_efficientnet_lite0: lr=1",
    ]
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "53")
    print_rows()
    assert screen.getvalue().splitlines()[2:] == [
        "c24f4d318634  2026-11-19  tf_efficientnet_lite0  45.8",
        "              06:17",
        "    lr=1",
    ]


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
    assert (
        "allowed: an integer >= 0; value: 60 (counted, paper), 3 (cpu), 100 (fair), 4 (quick), 70 (released)"
        in " ".join(text.split())
    )


def test_weights_that_are_not_the_protocols_differ_except_of_raw_pixels() -> None:
    package = a_result(a_trial(weights="package"))
    assert "weights" not in differences(package)
    assert differences(replace(package, trial=a_trial(weights="none"))).startswith("weights=none")
    pixels = a_trial(weights="none", backbone="pixels", loss="none", knobs={})
    assert "weights" not in differences(replace(package, trial=pixels))
