"""Tables on a terminal: they fit it, nothing is cut, and the caption is short."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.analysis.queries import Queries
from harness.spec.recipes import SKLEARN
from harness.store import Store
from harness.tables.build import build
from harness.tables.layout import Kind, Options, Table
from harness.tables.render.terminal import terminal
from tests.factories import USUAL, answered, cub, loss_row

HOSTILE = "[bold]\x1b[31m[/red] Mine"


def drawn(table: Table, width: int, *, styles: bool = False) -> str:
    console = Console(width=width, force_terminal=styles, color_system="standard" if styles else None, highlight=False)
    with console.capture() as captured:
        console.print(terminal(table, width))
    return captured.get()


def words(text: str) -> str:
    """Without the lines' ends."""
    return " ".join(text.split())


def stored(tmp_path: Path, runs: list[Any]) -> Queries:
    store = Store(tmp_path)
    for run in runs:
        store.put(run)
    return Queries(store)


def birds() -> list[Any]:
    names = {"group": "Group Loss", "normalized_softmax": "Normalized Softmax", "triplet": "Triplet"}
    runs = [
        replace(cub(name, 0.5 + seed / 100, seed=seed), title=title) for name, title in names.items() for seed in (0, 1)
    ]
    return [*runs, *(replace(run, trial=replace(run.trial, fold="val0", lr=0.1 * run.metrics["R@1"])) for run in runs)]


@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize("kind", ["losses", "backbones", "search"])
@pytest.mark.parametrize("published", ["beside", "rows"])
def test_a_table_fits_the_terminal_and_loses_nothing(width: int, kind: Kind, published: Any) -> None:
    (table,) = build(birds(), kind, Options(published))
    text = drawn(table, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for row in table.rows:
        for part in (part for cell in row.cells for part in cell.text.replace(",", " ").split()):
            assert part in words(text)
    assert "**" not in text
    assert "<ins>" not in text


def test_where_it_fits_a_row_is_a_line_and_where_not_columns_follow_below() -> None:
    (table,) = build(birds(), options=Options("beside"))
    lines = drawn(table, 200).splitlines()
    (wide,) = [line for line in lines if line.startswith("Triplet")]
    assert wide.count("50.0, 51.0 (") == 5
    narrow = drawn(table, 60)
    assert narrow.count("Triplet") == 3
    assert narrow.index("R@1") < narrow.index("R@8")


def test_the_caption_is_short_and_names_what_was_set() -> None:
    (table,) = build([replace(one, trial=replace(one.trial, epochs=1)) for one in USUAL])
    text = words(drawn(table, 80))
    assert "Protocol quick, but epochs = 1 (protocol: 4). Percent on test classes, 1 seed." in text
    assert "Budget per loss" in table.caption
    assert "Budget per loss" not in text


@pytest.mark.parametrize("kind", ["losses", "backbones"])
def test_a_terminal_names_a_recipe_that_is_not_the_usual_one(kind: Kind) -> None:
    by_sklearn = [replace(one, conventions={"NMI": str(SKLEARN)}) for one in USUAL]
    (table,) = build(by_sklearn, kind, options=Options(recipe="sklearn"))
    assert "NMI by the k-means recipe sklearn." in words(drawn(table, 80))
    (table,) = build(USUAL, kind)
    assert "recipe" not in words(drawn(table, 80))


@pytest.mark.parametrize(
    ("seeds", "sentence"),
    [
        (1, "± is the 95 % interval over test classes alone: it leaves out the randomness of training."),
        (2, "With two seeds both values are shown, without an interval."),
        (3, "± is the 95 % interval over test classes and seeds, of NMI over seeds."),
    ],
)
def test_one_sentence_is_on_the_intervals(tmp_path: Path, seeds: int, sentence: str) -> None:
    runs = [answered(name, seed) for name in ("group", "triplet") for seed in range(seeds)]
    (table,) = build(runs, queries=stored(tmp_path, runs))
    assert sentence in words(drawn(table, 80))
    assert ("±" in drawn(table, 200).partition("Percent")[0]) == (seeds != 2)
    assert ("bold: the best mean" in words(drawn(table, 80))) == (seeds == 3)


def test_datasets_come_one_at_a_time_with_their_own_notes() -> None:
    results = [cub("group", 0.6), cub("triplet", 0.5), cub("group", 0.7, dataset="cars", epochs=2)]
    first, second = build(results, options=Options(one_dataset=True))
    assert drawn(first, 80).startswith("CUB-200-2011 · losses · paper")
    assert drawn(second, 80).startswith("Cars196 · losses · paper")
    assert "Triplet" not in drawn(second, 80)
    assert "epochs" not in drawn(first, 80)
    assert "epochs = 2 (protocol: 60)" in words(drawn(second, 80))
    assert len(build(results)) == 1


def test_the_best_is_bold_and_a_title_is_text(tmp_path: Path) -> None:
    runs = [answered("group", seed, 0.8) for seed in range(3)] + [answered("triplet", seed, 0.4) for seed in range(3)]
    (table,) = build(runs, queries=stored(tmp_path, runs), options=Options(metrics=("R@1",)))
    text = drawn(table, 80, styles=True)
    best = table.rows[0].cells[0].text
    assert f"\x1b[1m{best}\x1b[0m" in text
    text = drawn(build([loss_row("group", HOSTILE, 0.7)])[0], 80, styles=True)
    assert "[bold]" in text
    assert "\x1b[31m" not in text
