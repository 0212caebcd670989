"""The paper's numbers beside ours and in rows of their own."""

from dataclasses import replace
from typing import Any

import pytest

from harness.tables.build import build
from harness.tables.layout import Options
from harness.tables.render.latex import latex
from harness.tables.render.markdown import markdown
from tests.factories import cub, loss_row
from tests.tables.reading import cell


def test_the_published_number_stands_beside_with_the_difference() -> None:
    (table,) = build([cub("group", 0.640), cub("triplet", 0.430)])
    assert [row.label for row in table.rows] == ["group", "triplet"]
    assert cell(table, 0).published == "65.5"
    assert cell(table, 0).difference == pytest.approx(-1.5)
    assert "64.0 (65.5, -1.5)" in markdown(table)
    assert "43.0 (42.5, +0.5)" in markdown(table)
    assert r"{\scriptsize (65.5, $-$1.5)}" in latex(table)
    assert "In brackets: the number published in Elezi et al., ECCV 2020, and ours minus published" in table.caption
    # it is the paper's setting; what is wrong with the number itself is said
    assert [row.notes for row in table.rows] == [("The published R@1: two passages of the text give 64.3.",), ()]


def test_a_row_without_the_papers_setting_says_in_what_it_differs() -> None:
    (table,) = build([cub("group", 0.6, backbone="resnet50", crop=128, weights="none", dim=64)])
    note, _ = table.rows[0].notes
    assert note.startswith("Not the paper's setting: ")
    assert "backbone = resnet50 (paper: bn_inception)" in note
    assert "crop = 128 (paper: 227)" in note
    assert "weights = none (paper: ImageNet)" in note
    assert "dim = 64 (paper: none or 512)" in note
    assert "resize" not in note
    assert build([cub("arcface", 0.6, crop=128)])[0].rows[0].notes == ()  # the paper has no such number


def test_what_the_user_set_differently_from_the_papers_protocol_is_noted() -> None:
    (table,) = build([cub("triplet", 0.3, epochs=1, optimizer="rmsprop")])
    (note,) = table.rows[0].notes
    assert "epochs = 1 (protocol: 60)" in note
    assert "optimizer = rmsprop (protocol: adam)" in note


@pytest.mark.parametrize(
    ("loss", "changes", "noted"),
    [
        ("triplet", {"weights": "file:52deb4733abc"}, ""),
        ("triplet", {"weights": "file:0123456789ab"}, "weights = file:0123456789ab (paper: ImageNet)"),
        ("triplet", {"weights": "hub:tv_in1k"}, ""),
        ("triplet", {"weights": "hub:fb_swsl_ig1b_ft_in1k"}, "weights = hub:fb_swsl_ig1b_ft_in1k (paper: ImageNet)"),
        ("margin", {"backbone": "resnet50"}, ""),
        ("margin", {}, "backbone = bn_inception (paper: resnet50)"),
        ("soft_triple", {}, "dim = none (paper: 512)"),
        ("soft_triple", {"dim": 512}, ""),
    ],
)
def test_a_number_is_compared_with_the_setting_it_was_made_in(loss: str, changes: dict[str, Any], noted: str) -> None:
    (table,) = build([cub(loss, 0.5, **changes)])
    assert cell(table, 0).published
    notes = [note for note in table.rows[0].notes if note.startswith("Not")]
    assert notes == ([f"Not the paper's setting: {noted}."] if noted else [])


def test_a_misprint_is_noted_beside_our_number_too() -> None:
    pair = [cub("group", 0.7, seed=seed, dataset="cars") for seed in range(2)]
    joined = replace(pair[0], ensemble=2, members=tuple(one.id for one in pair))
    (table,) = build([*pair, joined], "ensembles")
    assert cell(table, 1, "NMI").published == "91.1"
    assert any("swapped" in note for note in table.rows[1].notes)
    assert "An n-ensemble's score is the mean over all subsets of n networks." in table.caption


def test_published_rows_stand_above_ours_in_their_sections() -> None:
    (table,) = build([cub("group", 0.64)], options=Options("rows"))
    assert len(table.rows) == 10 + 1
    assert table.rows[0].label == "Triplet"
    assert "Published (Elezi et al., ECCV 2020)" in table.rows[0].section
    assert [one.text for one in table.rows[9].cells] == ["65.5", "77.0", "85.0", "91.3", "69.0"]
    assert table.rows[-1].section == "Losses, measured here"
    assert not any(one.published for row in table.rows for one in row.cells)
    assert [one.text for one in table.rows[8].cells] == ["46.6", "58.6", "70.0", "-", "-"]  # bias triplet: as printed
    assert any("64.3" in note for note in table.rows[9].notes)
    assert len(build([cub("group", 0.64)], options=Options("none"))[0].rows) == 1


def test_datasets_come_in_the_papers_order_side_by_side() -> None:
    results = [cub("group", 0.6, dataset="sop"), cub("group", 0.5), cub("triplet", 0.4), loss_row("group", "x", 0.7)]
    results[-1] = replace(
        results[-1], trial=replace(results[-1].trial, **{"protocol": "paper", "backbone": "bn_inception"})
    )
    (table,) = build([replace(one, title=one.trial.loss) for one in results])
    assert list(dict.fromkeys(column.group for column in table.columns)) == [
        "CUB-200-2011",
        "Stanford Online Products",
        "Emoji",
    ]
    assert [row.label for row in table.rows] == ["group", "triplet"]
    assert cell(table, 1).text == "40.0"
    assert table.rows[1].cells[-1].text == "-"
