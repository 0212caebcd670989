"""The paper's numbers beside ours and in rows of their own."""

from dataclasses import replace
from typing import Any

import pytest

import losses
from harness.analysis import reference
from harness.spec import Result
from harness.tables.build import KINDS, build
from harness.tables.layout import Options
from harness.tables.losses import SECTIONS
from harness.tables.render.data import csv
from harness.tables.render.latex import latex
from harness.tables.render.markdown import markdown
from tests.factories import a_result, a_trial, cub, loss_row
from tests.tables.reading import cell

BESIDE = Options("beside")


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


def test_published_numbers_of_other_settings_are_left_out_and_can_be_asked_for() -> None:
    ask = "Elezi et al., ECCV 2020, has numbers for other settings: --published beside shows them."
    small = cub("triplet", 0.4, crop=128)
    (table,) = build([cub("group", 0.64), small])
    assert [cell(table, row).published for row in range(2)] == ["65.5", ""]
    assert ask in table.caption
    assert ask in table.short
    assert not any("Not the paper's setting" in note for row in table.rows for note in row.notes)
    (asked,) = build([cub("group", 0.64), small], options=BESIDE)
    assert [cell(asked, row).published for row in range(2)] == ["65.5", "42.5"]
    for options in (BESIDE, Options("none"), Options("rows"), Options(metrics=("MAP@R",))):
        metrics = {"R@1": 0.4, "MAP@R": 0.2}
        assert ask not in build([replace(small, metrics=metrics)], options=options)[0].caption
    assert ask not in build([cub("group", 0.64)])[0].caption
    assert ask not in build([cub("arcface", 0.6, crop=128)])[0].caption  # the paper has no such number


def test_a_dataset_that_the_paper_has_not_is_named_where_its_numbers_are_asked_for() -> None:
    said = "Elezi et al., ECCV 2020, has no numbers for Emoji."
    emoji = a_result(a_trial(fold="test"))
    for kind in ("losses", "backbones"):
        for options in (BESIDE, Options("rows")):
            (table,) = build([emoji], kind, options)
            assert said in table.caption
            assert said in table.short
        assert "no numbers" not in build([emoji], kind)[0].caption
        assert "no numbers" not in build([cub("group", 0.64)], kind, BESIDE)[0].caption


def test_a_resized_copy_is_not_what_the_paper_used() -> None:
    (table,) = build([cub("triplet", 0.4, fingerprint="3a0a7d5606cf")], options=BESIDE)
    assert table.rows[0].notes == ("Not the paper's setting: images = short side 160 px (paper: as published).",)
    assert not cell(build([cub("triplet", 0.4, fingerprint="3a0a7d5606cf")])[0], 0).published


def test_the_papers_own_method_goes_by_its_name() -> None:
    pair = [cub("group", 0.7, seed=seed) for seed in range(2)]
    joined = replace(pair[0], ensemble=2, members=tuple(one.id for one in pair))
    for kind in KINDS:
        for table in build([*pair, joined], kind, Options("rows")):
            assert not any("Ours" in row.label + row.section for row in table.rows)
    assert "Group Loss" in [row.label for row in build(pair, options=Options("rows"))[0].rows]
    assert "Group Loss 2-ensemble" in [
        row.label for row in build([*pair, joined], "ensembles", Options("rows"))[0].rows
    ]
    assert "Ours" not in csv(pair)


def test_a_row_without_the_papers_setting_says_in_what_it_differs() -> None:
    (table,) = build([cub("group", 0.6, backbone="resnet50", crop=128, weights="none", dim=64)], options=BESIDE)
    note, _ = table.rows[0].notes
    assert note.startswith("Not the paper's setting: ")
    assert "backbone = resnet50 (paper: bn_inception)" in note
    assert "crop = 128 (paper: 227)" in note
    assert "weights = none (paper: ImageNet)" in note
    assert "dim = 64 (paper: none or 512)" in note
    assert "resize" not in note
    assert build([cub("arcface", 0.6, crop=128)], options=BESIDE)[0].rows[0].notes == ()  # the paper has no such number


def test_what_the_user_set_differently_from_the_papers_protocol_is_noted() -> None:
    (table,) = build([cub("triplet", 0.3, epochs=1, optimizer="rmsprop")], options=BESIDE)
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
    (table,) = build([cub(loss, 0.5, **changes)], options=BESIDE)
    assert cell(table, 0).published
    notes = [note for note in table.rows[0].notes if note.startswith("Not")]
    assert notes == ([f"Not the paper's setting: {noted}."] if noted else [])


def test_a_misprint_is_noted_beside_our_number_too() -> None:
    pair = [cub("group", 0.7, seed=seed, dataset="cars") for seed in range(2)]
    joined = replace(pair[0], ensemble=2, members=tuple(one.id for one in pair))
    (table,) = build([*pair, joined], "ensembles", BESIDE)
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


def a_method(loss: str, knobs: dict[str, Any] | None = None, **changes: Any) -> Result:
    facts = losses.facts(loss)
    return replace(a_result(a_trial(loss=loss, knobs=knobs or {}, **changes)), title=facts.title, cite=facts.cite)


def test_methods_stand_in_the_sections_of_the_papers_table_2() -> None:
    names = ("divide_conquer", "bier", "rkd", "hierarchical_triplet", "margin", "bias_triplet", "triplet")
    (table,) = build([a_method(name) for name in names], "ensembles")
    assert "n-ensemble" not in f"{table.caption} {' '.join(table.short)}"  # there is none
    assert [(row.section, row.label) for row in table.rows] == [
        ("Loss+Sampling", "Hierarchical Triplet"),
        ("Loss+Sampling", "Margin"),
        ("Teacher-Student", "RKD"),
        ("Loss+Ensembles", "BIER"),
        ("Loss+Ensembles", "Divide and Conquer"),
    ]
    assert build([a_method("margin"), a_method("bias_triplet")], "ensembles") == []


def test_the_sections_are_in_the_papers_order() -> None:
    printed = dict.fromkeys(row.section for row in reference.published("ensembles"))
    assert [section for section in SECTIONS if section in printed] == [name for name in printed if name in SECTIONS]


def test_a_method_is_footnoted_with_what_a_loss_has_not() -> None:
    (table,) = build([a_method("bias_triplet"), a_method("abe"), a_method("triplet")])
    notes = {row.label: " ".join(row.notes) for row in table.rows}
    assert "Our reading of the published idea: its form is public, its calibration is not." in notes["Bias Triplet"]
    assert "the part behind them runs once per learner" in notes["ABE"]
    assert "learner" not in notes["Triplet"]


def test_a_method_is_compared_with_its_own_row() -> None:
    for loss, knobs, dataset, value in (
        ("abe", {"learners": 2}, "cub", "55.7"),
        ("abe", {"learners": 8}, "cub", "60.6"),
        ("bier", {}, "sop", "72.7"),
        ("ranked_list", {}, "cub", "57.4"),
        ("bias_triplet", {}, "cub", "46.6"),
    ):
        number = reference.number(a_method(loss, knobs, dataset=dataset), "R@1")
        assert number is not None
        assert number.text == value, loss
    assert reference.number(a_method("abe", {"learners": 3}, dataset="cub"), "R@1") is None


def test_a_method_of_its_published_dimension_differs_from_its_row_in_no_dimension() -> None:
    for loss in ("bier", "a_bier", "hdc", "abe", "divide_conquer"):
        knobs = {"learners": 8} if loss == "abe" else {}
        method = a_method(loss, knobs, dataset="cub", dim=losses.facts(loss).head_dim)
        different = reference.differences(method)
        assert different, loss
        assert "dim" not in [difference.setting for difference in different], loss
    narrow = reference.differences(a_method("hdc", dataset="cub", dim=512))
    assert ("dim", 512, (384,)) in [(one.setting, one.value, one.expected) for one in narrow]


def test_what_is_suspected_of_published_methods_is_marked_as_not_verified() -> None:
    notes = {(row.method, row.dataset, row.metric): row.note for row in reference.published("ensembles") if row.note}
    exchanged = notes["BIER 6", "cars", "R@1"], notes["HDC 3", "cars", "R@1"]
    assert all(note.startswith("not verified: this row on Cars196 looks exchanged with that of") for note in exchanged)
    suspected = ("BIER 6", "A-BIER 6", "HDC 3", "ABE 8", "D and C 8", "DE-DSP")
    assert all(note.startswith("not verified: ") for (method, *_), note in notes.items() if method in suspected)
    assert {method for method, *_ in notes} >= set(suspected)
