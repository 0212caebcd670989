"""Tables: who stands where, what is bold, intervals, escaping."""

import math
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import plan, tables
from harness.spec import Result, UserError
from tests.test_spec import a_result, a_trial


def loss_row(name: str, title: str, value: float, **changes: Any) -> Result:
    trial = a_trial(loss=name, **changes)
    return replace(a_result(trial, **{"R@1": value, "R@10": value + 0.1, "R@2": value, "NMI": value}), title=title)


def baseline(backbone: str, value: float) -> Result:
    fixed = {**plan.IDLE, **(plan.PIXELS if backbone == "pixels" else {}), "backbone": backbone, "knobs": {}}
    title = "Raw pixels" if backbone == "pixels" else "Untrained network"
    return replace(loss_row("none", title, value, **fixed), cite="")


NETWORK = a_trial().backbone
USUAL = [loss_row("triplet", "Triplet", 0.6), loss_row("group", "Group Loss", 0.7), baseline("pixels", 0.5)]
USUAL.append(baseline(NETWORK, 0.4))


def test_baselines_come_first_then_losses_and_columns_are_in_order() -> None:
    (table,) = tables.build(USUAL)
    assert [row.label for row in table.rows] == ["Raw pixels", "Untrained network", "Group Loss", "Triplet"]
    assert table.metrics == ("R@1", "R@2", "R@10", "NMI")


def test_metrics_on_request() -> None:
    (table,) = tables.build([a_result()], ["MAP@R", "R@1"])
    assert table.metrics == ("MAP@R", "R@1")
    with pytest.raises(UserError, match="no metric named 'MAP@r'; did you mean 'MAP@R'"):
        tables.build([a_result()], ["MAP@r"])


def test_validation_results_are_not_in_the_table() -> None:
    assert tables.select([a_result(a_trial(fold="val0"))]) == []


def test_the_best_is_bold_and_only_the_best() -> None:
    text = tables.markdown(tables.build(USUAL)[0])
    assert text.count("**") == 2 * 4
    assert "**70.0**" in text
    assert "| Triplet           |     60.0 |" in text


def test_a_row_whose_epoch_was_chosen_on_test_classes_is_marked_even_where_all_are() -> None:
    leaked = [replace(one, trial=replace(one.trial, checkpoint="best-test")) for one in USUAL[:2]]
    for form in (tables.markdown, tables.latex):
        text = form(tables.build([*leaked, *USUAL[2:]])[0])
        assert text.count("Its epoch was chosen on test classes.") == 2
    assert "test classes." not in "".join(tables.build(USUAL)[0].rows[0].notes)


def test_copies_of_a_dataset_never_share_a_table() -> None:
    other = [replace(one, trial=replace(one.trial, fingerprint="0123456789ab")) for one in USUAL[:1]]
    whole, resized = sorted(tables.build([*USUAL, *other]), key=lambda table: -len(table.rows))
    assert [row.label for row in resized.rows] == ["Triplet"]
    assert "0123456789ab" in resized.dataset
    assert "Triplet" in {row.label for row in whole.rows}
    assert len({table.slug for table in (whole, resized)}) == 2


def test_a_row_with_images_left_out_or_nmi_by_another_recipe_says_so() -> None:
    skipped = replace(USUAL[0], provenance={"bad_images_skipped": 3})
    other = replace(USUAL[1], conventions={"NMI": "by hand"})
    text = tables.markdown(tables.build([skipped, other, *USUAL[2:]])[0])
    assert "3 images could not be read and were left out." in text
    assert "Its NMI: by hand." in text
    assert "NMI" not in tables.markdown(tables.build([skipped, other, *USUAL[2:]], ["R@1"])[0])


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
    assert row.seeds == 3
    assert row.cells["R@1"].mean == pytest.approx(mean)
    assert row.cells["R@1"].half == pytest.approx(t * deviation / math.sqrt(3), rel=1e-6)
    text = tables.markdown(table)
    assert f"**{100 * mean:.1f}** ± {100 * row.cells['R@1'].half:.1f}" in text
    assert "over 3 seeds" in text


def test_with_one_seed_no_interval_is_claimed() -> None:
    (table,) = tables.build(USUAL)
    assert all(cell.half is None for row in table.rows for cell in row.cells.values())
    assert "±" not in tables.markdown(table)
    assert "1 seed" in tables.markdown(table)


def test_two_configurations_of_a_loss_are_two_rows_that_say_how_they_differ() -> None:
    rows = tables.build(
        [loss_row("triplet", "Triplet", 0.6), loss_row("triplet", "Triplet", 0.5, knobs={"margin": 0.1}, lr=1e-3)]
    )[0].rows
    assert [row.label for row in rows] == [
        "Triplet (lr = 0.001, margin = 0.1)",
        f"Triplet (lr = {a_trial().lr}, margin = 0.2)",
    ]


def test_a_row_trained_otherwise_is_footnoted() -> None:
    odd = loss_row("proxy_nca", "Proxy-NCA", 0.9, epochs=50)
    (table,) = tables.build([*USUAL, odd])
    text = tables.markdown(table)
    assert "Proxy-NCA[1]" in text
    assert f"[1] Otherwise than the rest: epochs = 50, others {a_trial().epochs}." in text
    assert "Triplet[" not in text


def test_baselines_seen_otherwise_and_losses_of_another_version_can_be_told_apart() -> None:
    other = replace(baseline(NETWORK, 0.3), trial=replace(baseline(NETWORK, 0.3).trial, resize=32, crop=32))
    text = tables.markdown(tables.build([*USUAL, other])[0])
    assert "Untrained network[1]" in text
    assert "resize = 32, others 64; crop = 32, others 64" in text
    versions = [loss_row("group", "Mine", 0.5, loss_version=version) for version in ("abc", "def")]
    labels = [row.label for row in tables.build(versions)[0].rows]
    assert labels == ["Mine (loss_version = abc)", "Mine (loss_version = def)"]


def test_a_missing_metric_is_a_dash_and_never_the_best() -> None:
    other = replace(loss_row("group", "Group Loss", 0.7), metrics={"R@1": 0.7})
    text = tables.latex(tables.build([loss_row("triplet", "Triplet", 0.6), other])[0])
    assert r"Group Loss & \textbf{70.0} & - & - & - \\" in text


HOSTILE = r"50% of_{a} & #1 $x$ ~^\ <script>|`x`*"


def test_whatever_a_title_holds_is_text() -> None:
    table = tables.build([loss_row("group", HOSTILE, 0.7)])[0]
    assert r"50\% of\_\{a\} \& \#1 \$x\$ \textasciitilde{}\textasciicircum{}\textbackslash{} <script>" in tables.latex(
        table
    )
    assert r"\<script\>\|\`x\`\*" in tables.markdown(table)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(tmp_path: Path) -> None:
    seeds = [loss_row("triplet", HOSTILE, 0.5 + seed / 10, seed=seed) for seed in range(3)]
    odd = loss_row("proxy_nca", "Proxy-NCA", 0.9, epochs=50)
    body = tables.latex(tables.build([*USUAL[1:], *seeds, odd])[0])
    document = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n" + body + "\\end{document}\n"
    (tmp_path / "t.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "t.tex"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


def test_csv_is_the_long_frame() -> None:
    text = tables.render(USUAL, "csv")["results.csv"]
    assert len(text.splitlines()) == 1 + 4 * 4
    assert text.splitlines()[0].startswith("id,title,cite,dataset")
    only = tables.render(USUAL, "csv", ["NMI"])["results.csv"]
    assert len(only.splitlines()) == 1 + 4
