"""Tables: who stands where, what is bold, intervals, escaping."""

import json
import math
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.analysis import reference
from harness.spec import UserError
from harness.tables import build as tables
from harness.tables import render
from harness.tables import rows as measured
from harness.tables.layout import letters
from tests.factories import NETWORK, USUAL, a_result, a_trial, baseline, cub, loss_row


def columns(table: tables.Table) -> list[str]:
    return [column.name for column in table.columns]


def cell(table: tables.Table, row: int, metric: str = "R@1") -> tables.Cell:
    return table.rows[row].cells[columns(table).index(metric)]


def test_baselines_come_first_then_losses_and_columns_are_in_order() -> None:
    (table,) = tables.build(USUAL)
    assert [row.label for row in table.rows] == ["Raw pixels", "Untrained network", "Group Loss", "Triplet"]
    assert columns(table) == ["R@1", "R@2", "R@10", "NMI"]


def test_metrics_on_request() -> None:
    (table,) = tables.build([a_result()], metrics=["MAP@R", "R@1"])
    assert columns(table) == ["MAP@R", "R@1"]
    with pytest.raises(UserError, match="no metric named 'MAP@r'; did you mean 'MAP@R'"):
        tables.build([a_result()], metrics=["MAP@r"])


def test_validation_results_are_not_in_the_table() -> None:
    assert tables.build([a_result(a_trial(fold="val0"))]) == []


def test_the_best_is_bold_and_only_the_best() -> None:
    text = render.markdown(tables.build(USUAL)[0])
    assert text.count("**") == 2 * 4
    assert "**70.0**" in text
    assert "| Triplet           |     60.0 |" in text


def test_a_row_whose_epoch_was_chosen_on_test_classes_is_marked_even_where_all_are() -> None:
    leaked = [replace(one, trial=replace(one.trial, checkpoint="best-test")) for one in USUAL[:2]]
    for form in (render.markdown, render.latex, render.html):
        text = form(tables.build([*leaked, *USUAL[2:]])[0])
        assert text.count("Its epoch was chosen on test classes.") == 1  # said once, and marked at both
        assert text.replace("\\", "").replace("{[}", "[").replace("{]}", "]").count("[a]") == 3
    assert "test classes." not in "".join(tables.build(USUAL)[0].rows[0].notes)


def test_copies_of_a_dataset_never_share_a_column() -> None:
    other = [replace(one, trial=replace(one.trial, fingerprint="0123456789ab")) for one in USUAL[:1]]
    (table,) = tables.build([*USUAL, *other])
    assert list(dict.fromkeys(column.group for column in table.columns)) == [
        "Emoji (version 1, 0123456789ab)",
        "Emoji (version 1, abc)",
    ]
    labels = [row.label for row in table.rows]
    triplet, group = (table.rows[labels.index(label)] for label in ("Triplet", "Group Loss"))
    assert [one.text for one in triplet.cells][::4] == ["60.0", "60.0"]
    assert [one.text for one in group.cells][::4] == ["-", "70.0"]


def test_a_row_with_images_left_out_or_nmi_by_another_recipe_says_so() -> None:
    skipped = replace(USUAL[0], provenance={"bad_images_skipped": 3})
    other = replace(USUAL[1], conventions={"NMI": "by hand"})
    text = render.markdown(tables.build([skipped, other, *USUAL[2:]])[0])
    assert "3 images could not be read and were left out." in text
    assert "Its NMI: by hand." in text
    assert "NMI" not in render.markdown(tables.build([skipped, other, *USUAL[2:]], metrics=["R@1"])[0])


def test_raw_pixels_of_another_size_can_be_told_apart() -> None:
    other = replace(baseline("pixels", 0.3), trial=replace(baseline("pixels", 0.3).trial, resize=32, crop=32))
    labels = [row.label for row in tables.build([*USUAL, other])[0].rows if row.label.startswith("Raw")]
    assert len(set(labels)) == 2


def test_protocols_and_backbones_never_share_a_table_but_pixels_accompany_each() -> None:
    results = [
        *USUAL,
        loss_row("group", "Group Loss", 0.2, backbone="resnet18"),
        loss_row("group", "Group Loss", 0.3, protocol="other"),
    ]
    built = tables.build(results)
    assert [(t.protocol, t.backbone, len(t.rows)) for t in built] == [
        ("other", NETWORK, 1),
        ("quick", "resnet18", 2),
        ("quick", NETWORK, 4),
    ]
    assert built[1].rows[0].label == "Raw pixels"
    chosen = tables.select(results, backbone="resnet18", protocol="quick", dataset="emoji")
    assert [row.label for row in tables.build(chosen)[0].rows] == ["Raw pixels", "Group Loss"]


def test_a_filter_that_matches_nothing_names_what_there_is() -> None:
    with pytest.raises(UserError, match=r"no protocol with results named 'quik'; did you mean 'quick'"):
        tables.select(USUAL, protocol="quik")


def test_seeds_are_joined_to_a_mean_and_a_t_interval() -> None:
    values = [0.60, 0.62, 0.67]
    results = [loss_row("group", "Group Loss", value, seed=seed) for seed, value in enumerate(values)]
    (table,) = tables.build(results)
    (row,) = table.rows
    mean = sum(values) / 3
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / 2)
    t = 4.302652729911275  # two degrees of freedom, 97.5 %, from a printed table
    found = row.cells[0]
    assert len(found.values) == 3
    assert found.mean == pytest.approx(mean)
    assert found.half == pytest.approx(t * deviation / math.sqrt(3), rel=1e-6)
    text = render.markdown(table)
    assert f"**{100 * mean:.1f}** ± {100 * found.half:.1f}" in text
    assert "over 3 seeds" in text


def test_with_one_seed_no_interval_is_claimed() -> None:
    (table,) = tables.build(USUAL)
    assert all(cell.half is None for row in table.rows for cell in row.cells)
    assert "±" not in render.markdown(table)
    assert "1 seed" in render.markdown(table)
    assert "With one seed nothing can be said of the significance of differences." in render.markdown(table)


def test_what_is_not_significantly_worse_than_the_best_is_underlined() -> None:
    """Welch by hand: means 0.70 and 0.69, both with deviations of 0.02 over 3 seeds: t = 0.01 / 0.0163 = 0.61 with 4
    degrees of freedom, far below 2.78. Against 0.50, t = 12."""
    spread = (-0.02, 0.0, 0.02)
    results = [
        loss_row(name, name, mean + by, seed=seed)
        for name, mean in (("group", 0.70), ("triplet", 0.69), ("margin", 0.50))
        for seed, by in enumerate(spread)
    ]
    (table,) = tables.build(results)
    group, margin, triplet = (cell(table, row) for row in range(3))
    assert (group.best, group.level) == (True, False)
    assert (triplet.best, triplet.level) == (False, True)
    assert (margin.best, margin.level) == (False, False)
    assert "<ins>69.0</ins>" in render.markdown(table)
    assert r"\underline{69.0}" in render.latex(table)
    assert "<u>69.0</u>" in render.html(table)
    assert "<ins>50.0" not in render.markdown(table)


def test_a_row_with_one_seed_is_not_called_level() -> None:
    results = [loss_row("group", "group", 0.70 + seed / 100, seed=seed) for seed in range(3)]
    (table,) = tables.build([*results, loss_row("triplet", "triplet", 0.70)])
    assert not cell(table, 1).level


def test_two_configurations_of_a_loss_are_two_rows_that_say_how_they_differ() -> None:
    two = [loss_row("triplet", "Triplet", 0.6), loss_row("triplet", "Triplet", 0.5, knobs={"margin": 0.1}, lr=1e-4)]
    rows = tables.build(two)[0].rows
    assert [row.label for row in rows] == [
        "Triplet (lr = 0.0001, margin = 0.1)",
        f"Triplet (lr = {a_trial().lr}, margin = 0.2)",
    ]


def test_a_row_trained_otherwise_is_footnoted() -> None:
    odd = loss_row("proxy_nca", "Proxy-NCA", 0.9, epochs=50)
    (table,) = tables.build([*USUAL, odd])
    text = render.markdown(table)
    assert "Proxy-NCA[a]" in text
    assert rf"\[a\] Otherwise than the rest: epochs = 50, others {a_trial().epochs}." in text
    assert "Triplet[" not in text


def test_baselines_seen_otherwise_and_losses_of_another_version_can_be_told_apart() -> None:
    other = replace(baseline(NETWORK, 0.3), trial=replace(baseline(NETWORK, 0.3).trial, resize=32, crop=32))
    text = render.markdown(tables.build([*USUAL, other])[0])
    assert "Untrained network[a]" in text
    assert "resize = 32, others 64; crop = 32, others 64" in text
    versions = [loss_row("group", "Mine", 0.5, loss_version=version) for version in ("abc", "def")]
    labels = [row.label for row in tables.build(versions)[0].rows]
    assert labels == ["Mine (loss_version = abc)", "Mine (loss_version = def)"]


def test_a_missing_metric_is_a_dash_and_never_the_best() -> None:
    other = replace(loss_row("group", "Group Loss", 0.7), metrics={"R@1": 0.7})
    text = render.latex(tables.build([loss_row("triplet", "Triplet", 0.6), other])[0])
    assert r"Group Loss~\cite{elezi2020group} & \textbf{70.0} & - & - & - \\" in text


HOSTILE = r"[50% of_{a} & #1 $x$ ~^\ <script>|`x`* λ漢"


def test_whatever_a_title_holds_is_text() -> None:
    table = tables.build([loss_row("group", HOSTILE, 0.7)])[0]
    specials = r"{[}50\% of\_\{a\} \& \#1 \$x\$ \textasciitilde{}\textasciicircum{}\textbackslash{} "
    assert specials + r"\textless{}script\textgreater{}" in render.latex(table)
    assert r"\<script\>\|\`x\`\*" in render.markdown(table)
    assert "&lt;script&gt;" in render.html(table)
    assert "<script>" not in render.html(table)


# --- the paper's numbers ---


def test_the_published_number_stands_beside_with_the_difference() -> None:
    (table,) = tables.build([cub("group", 0.640), cub("triplet", 0.430)])
    assert [row.label for row in table.rows] == ["group", "triplet"]
    assert cell(table, 0).published == "65.5"
    assert cell(table, 0).difference == pytest.approx(-1.5)
    assert "**64.0** (65.5, -1.5)" in render.markdown(table)
    assert "43.0 (42.5, +0.5)" in render.markdown(table)
    assert r"{\scriptsize (65.5, $-$1.5)}" in render.latex(table)
    assert "In brackets: the number published in Elezi et al., ECCV 2020" in table.caption
    # it is the paper's setting; what is wrong with the number itself is said
    assert [row.notes for row in table.rows] == [("The published R@1: two passages of the text give 64.3.",), ()]


def test_a_row_that_has_not_the_papers_setting_says_in_what() -> None:
    (table,) = tables.build([cub("group", 0.6, backbone="resnet50", crop=128, weights="none", dim=64)])
    note, _ = table.rows[0].notes
    assert note.startswith("Not the paper's setting: ")
    for part in ("backbone resnet50 (paper: bn_inception)", "crop 128 (paper: 227)", "weights none (paper: ImageNet)"):
        assert part in note
    assert "dim 64 (paper: None or 512)" in note
    assert "resize" not in note
    assert tables.build([cub("arcface", 0.6, crop=128)])[0].rows[0].notes == ()  # the paper has no such number


def test_what_was_set_otherwise_than_the_papers_protocol_says_is_noted() -> None:
    (table,) = tables.build([cub("triplet", 0.3, epochs=1, optimizer="rmsprop")])
    (note,) = table.rows[0].notes
    assert "epochs 1 (protocol: 60)" in note
    assert "optimizer rmsprop (protocol: adam)" in note


@pytest.mark.parametrize(
    ("loss", "changes", "noted"),
    [
        ("triplet", {"weights": "file:52deb4733abc"}, ""),
        ("triplet", {"weights": "file:0123456789ab"}, "weights file:0123456789ab (paper: ImageNet)"),
        ("triplet", {"weights": "hub:tv_in1k"}, ""),
        ("triplet", {"weights": "hub:fb_swsl_ig1b_ft_in1k"}, "weights hub:fb_swsl_ig1b_ft_in1k (paper: ImageNet)"),
        ("margin", {"backbone": "resnet50"}, ""),
        ("margin", {}, "backbone bn_inception (paper: resnet50)"),
        ("soft_triple", {}, "dim None (paper: 512)"),
        ("soft_triple", {"dim": 512}, ""),
    ],
)
def test_a_number_is_compared_with_the_setting_it_was_made_in(loss: str, changes: dict[str, Any], noted: str) -> None:
    (table,) = tables.build([cub(loss, 0.5, **changes)])
    assert cell(table, 0).published
    notes = [note for note in table.rows[0].notes if note.startswith("Not")]
    assert notes == ([f"Not the paper's setting: {noted}."] if noted else [])


def test_a_misprint_is_noted_beside_our_number_too() -> None:
    pair = [cub("group", 0.7, seed=seed, dataset="cars") for seed in range(2)]
    joined = replace(pair[0], ensemble=2, members=tuple(one.id for one in pair))
    (table,) = tables.build([*pair, joined], "ensembles")
    assert cell(table, 1, "NMI").published == "91.1"
    assert any("swapped" in note for note in table.rows[1].notes)
    assert "An ensemble's number is the mean over all choices" in table.caption
    assert "Of numbers with one value nothing can be said" in table.caption


def test_published_rows_stand_above_ours_in_their_sections() -> None:
    (table,) = tables.build([cub("group", 0.64)], published="rows")
    assert len(table.rows) == 10 + 1
    assert table.rows[0].label == "Triplet"
    assert "Published (Elezi et al., ECCV 2020)" in table.rows[0].section
    assert [one.text for one in table.rows[9].cells] == ["65.5", "77.0", "85.0", "91.3", "69.0"]
    assert table.rows[-1].section == "Losses, measured here"
    assert "The best mean measured here is bold." in table.caption
    assert not any(one.published for row in table.rows for one in row.cells)
    assert [one.text for one in table.rows[8].cells] == ["46.6", "58.6", "70.0", "-", "-"]  # bias triplet: as printed
    assert any("64.3" in note for note in table.rows[9].notes)
    assert len(tables.build([cub("group", 0.64)], published="none")[0].rows) == 1


def test_datasets_come_in_the_papers_order_side_by_side() -> None:
    results = [cub("group", 0.6, dataset="sop"), cub("group", 0.5), cub("triplet", 0.4), loss_row("group", "x", 0.7)]
    results[-1] = replace(
        results[-1], trial=replace(results[-1].trial, **{"protocol": "paper", "backbone": "bn_inception"})
    )
    (table,) = tables.build([replace(one, title=one.trial.loss) for one in results])
    assert list(dict.fromkeys(column.group for column in table.columns)) == [
        "CUB-200-2011",
        "Stanford Online Products",
        "Emoji",
    ]
    assert [row.label for row in table.rows] == ["group", "triplet"]
    assert cell(table, 1).text == "40.0"
    assert table.rows[1].cells[-1].text == "-"


def test_ensembles_have_a_table_of_their_own_with_their_single_networks() -> None:
    single = [cub("group", 0.60 + seed / 100, seed=seed) for seed in range(2)]
    joined = replace(
        single[0], ensemble=2, members=tuple(one.id for one in single), metrics={**single[0].metrics, "R@1": 0.7}
    )
    other = cub("triplet", 0.5)
    (table,) = tables.build([*single, joined, other], "ensembles")
    assert [row.label for row in table.rows] == ["group", "group, 2-ensemble"]
    assert cell(table, 1).published == "65.8"
    assert [row.label for row in tables.build([*single, joined, other])[0].rows] == ["group", "triplet"]
    assert tables.build([other], "ensembles") == []
    rows = tables.build([*single, joined], "ensembles", "rows")[0].rows
    assert len({row.section for row in rows}) == 5  # sampling, teacher-student, ensembles, the paper's own, ours


def test_backbones_are_rows_with_their_parameters() -> None:
    results = [cub("group", 0.6), replace(cub("group", 0.65, backbone="densenet121"), parameters=7_056_356)]
    (table,) = tables.build(results, "backbones")
    assert [row.label for row in table.rows] == ["group, bn_inception", "group, densenet121"]
    assert [one.text for one in table.rows[1].cells] == ["7,056,356", "65.0", "65.0"]
    assert table.rows[1].cells[1].published == "65.5"
    assert table.rows[1].cells[1].best
    assert not table.rows[0].cells[1].best


def test_the_search_table_tells_what_each_loss_was_given_and_found() -> None:
    seen = {"curve": ({"epoch": 1, "loss": 0.5, "images": 100},), "seconds": {"total": 1800.0}}
    trials = [
        replace(loss_row("triplet", "Triplet", value, fold="val0", knobs={"margin": value}), **seen)
        for value in (0.1, 0.2, 0.3, 0.4)
    ]
    final = replace(loss_row("triplet", "Triplet", 0.35, knobs={"margin": 0.4}), **seen)
    (table,) = tables.build([*trials, final, *USUAL[2:]], "search")
    (row,) = table.rows
    texts = [one.text for one in row.cells]
    assert texts[:5] == ["4", "1", "2.5 CPU-hours", "500", "40.0"]
    # of 1: the mean, 25; of 3 of 4: the best is 0.4 in three of four subsets and 0.3 in one
    assert texts[5].startswith("n=1: 25.0 ± 11.2, n=3: 37.5 ± 4.3, n=4: 40.0 ± 0.0")
    assert "margin = 0.4" in texts[6]
    (losses,) = tables.build([*trials, final, *USUAL[2:]])
    assert (
        "Budget a loss: 4 trials of random search, final runs: 1, 2.5 CPU-hours, 500 training images seen."
        in losses.caption
    )


def test_equal_means_are_equal_whatever_the_rounding() -> None:
    """Three times 0.7 summed and divided is not 0.7."""
    results = [loss_row("group", "group", 0.7, seed=seed) for seed in range(3)]
    results += [loss_row("triplet", "triplet", 0.7, seed=seed) for seed in range(2)]
    (table,) = tables.build(results)
    assert cell(table, 0).best
    assert cell(table, 1).best


def test_cells_of_a_grid_are_no_trials_of_a_search() -> None:
    final = loss_row("triplet", "Triplet", 0.5)
    cells = [
        replace(loss_row("triplet", "Triplet", 0.4, fold="val0", knobs={"margin": m}), provenance={"purpose": "grid"})
        for m in (0.1, 0.3)
    ]
    assert "no random search" in tables.build([final, *cells])[0].caption
    searched = [replace(one, provenance={"purpose": "search", "scheduler": "asha"}) for one in cells]
    caption = tables.build([final, *searched])[0].caption
    assert "2 trials of random search that ran to their end (those that ASHA stopped are not counted)" in caption


def test_hours_of_cpus_and_gpus_are_told_apart() -> None:
    gpu = {"device_type": "cuda", "threads": 8}
    results = [
        replace(loss_row("group", "Group Loss", 0.5), seconds={"total": 36000.0}, provenance=gpu),
        replace(loss_row("triplet", "Triplet", 0.5), seconds={"total": 3600.0}, provenance={"threads": 2}),
    ]
    assert "2 CPU-hours, 10 GPU-hours" in tables.build(results)[0].caption


def test_what_was_measured_again_claims_no_budget() -> None:
    again = [replace(one, recipe="sklearn", members=(one.id,)) for one in USUAL]
    assert "Budget" not in tables.build(again)[0].caption


def test_unequal_budgets_show() -> None:
    runs = [
        replace(loss_row("triplet", "Triplet", 0.5), seconds={"total": 3600.0}),
        loss_row("group", "Group Loss", 0.5),
    ]
    runs.append(loss_row("group", "Group Loss", 0.4, fold="val0"))
    assert "Budget a loss: 0 to 1 trials of random search" in tables.build(runs)[0].caption


# --- formats ---


def compiled(folder: Path, name: str) -> str:
    """What pdflatex says in its last run; a failure fails the test."""
    for command in (["pdflatex"], ["bibtex"], ["pdflatex"], ["pdflatex"]):
        options = ["-halt-on-error", "-interaction=nonstopmode"] if command == ["pdflatex"] else []
        run = subprocess.run([*command, *options, name], cwd=folder, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout
    return run.stdout


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("published", ["beside", "rows"])
def test_every_table_compiles_with_its_bibliography_and_nothing_sticks_out(tmp_path: Path, published: Any) -> None:
    names = ("group", "triplet", "proxy_nca", "lifted_structure", "n_pairs", "angular")
    results = [
        cub(name, 0.5 + seed / 100, seed=seed, dataset=dataset)
        for name in names
        for seed in range(2)
        for dataset in ("cub", "cars", "sop")
    ]
    results += [replace(cub("margin", 0.5, epochs=50), title=HOSTILE), cub("group", 0.6, fold="val0")]
    pair = [
        one for one in results if one.trial.loss == "group" and one.trial.dataset == "cub" and one.trial.fold == "test"
    ]
    results.append(replace(pair[0], ensemble=2, members=tuple(one.id for one in pair)))
    built = [table for kind in tables.KINDS for table in tables.build(results, kind, published)]
    assert [table.kind for table in built] == ["losses", "ensembles", "backbones", "search", "search", "search"]
    for name, text in render.render(built, "latex", standalone=True).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for table in built:
        cites = any(row.key for row in table.rows)
        if not cites:
            (tmp_path / f"{table.slug}.tex").write_text(
                (tmp_path / f"{table.slug}.tex")
                .read_text()
                .replace(
                    r"\end{document}", r"\nocite{*}\bibliographystyle{plain}\bibliography{references}\end{document}"
                )
            )
        said = compiled(tmp_path, table.slug)
        assert "Overfull" not in said, table.kind
        assert "undefined" not in said, table.kind


def test_latex_comes_with_the_entries_it_cites() -> None:
    texts = render.render(tables.build([cub("group", 0.6), cub("triplet", 0.5)]), "latex")
    assert set(texts) == {"losses-paper-bn_inception.tex", "references.bib"}
    assert "@inproceedings{elezi2020group," in texts["references.bib"]
    assert "@inproceedings{schroff2015facenet," in texts["references.bib"]


def test_csv_is_the_long_frame_with_the_papers_numbers() -> None:
    text = render.csv(USUAL)
    assert len(text.splitlines()) == 1 + 4 * 4
    assert text.splitlines()[0].startswith("source,id,title,cite,dataset")
    assert len(render.csv(USUAL, ["NMI"]).splitlines()) == 1 + 4
    both = render.csv([cub("group", 0.6)], ["R@1"]).splitlines()
    printed = [
        one for one in reference.published() if (one.dataset, one.metric) == ("cub", "R@1") and one.table != "text"
    ]
    assert len(both) == 1 + 1 + len(printed)
    assert sum(line.startswith('"Elezi et al., ECCV 2020"') for line in both) == len(printed)


def test_json_has_unrounded_numbers() -> None:
    (found,) = json.loads(render.render(tables.build([cub("group", 0.64321)]), "json")["tables.json"])
    first = found["rows"][0]["cells"][0]
    assert first["mean"] == 0.64321
    assert first["published"] == pytest.approx(0.655)
    assert (first["dataset"], first["column"], first["seeds"]) == ("cub", "R@1", 1)


def test_footnotes_are_lettered() -> None:
    assert [letters(place) for place in (0, 1, 25, 26, 27, 52)] == ["a", "b", "z", "aa", "ab", "ba"]


def test_a_column_of_html_is_sorted_by_its_numbers_in_one_unit() -> None:
    """The paper's rows are printed in percent, ours are stored as fractions; parameters and hours are text."""
    ours, printed = tables.Cell("64.3", 0.64321), tables.Cell("65.5")
    assert [render.sort_value(one) for one in (ours, printed)] == [pytest.approx(64.321), 65.5]
    texts = {"7,056,356": 7056356.0, "2.5 CPU-hours": 2.5, "under 0.01 GPU-hours": 0.01, "12": 12.0}
    assert {text: render.sort_value(tables.Cell(text)) for text in texts} == texts
    for text in ("-", "n=1: 25.0 ± 11.2", "margin = 0.4"):
        assert render.sort_value(tables.Cell(text)) is None
    text = render.html(tables.build([cub("group", 0.64)], published="rows")[0])
    assert '<td data-value="65.5">65.5</td>' in text
    assert '<td data-value="64"><b>64.0</b></td>' in text
    assert "<td>-</td>" in text


def test_half_width_needs_two_values() -> None:
    assert measured.half_width([0.5]) is None
    # two values: 12.706 (97.5 % of t with one degree of freedom) times half their distance
    assert measured.half_width([0.4, 0.6]) == pytest.approx(12.7062 * 0.1, rel=1e-4)
