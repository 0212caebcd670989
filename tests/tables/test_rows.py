"""Rows: who stands where, how seeds are joined, what is bold or underlined."""

import math
from dataclasses import replace

import pytest

from harness.analysis.results import select
from harness.spec import UserError
from harness.tables.build import build
from harness.tables.layout import Options
from harness.tables.render.html import html
from harness.tables.render.latex import latex
from harness.tables.render.markdown import markdown
from tests.factories import NETWORK, USUAL, a_result, a_trial, baseline, cub, loss_row
from tests.tables.reading import cell, columns


def test_baselines_come_first_then_losses_and_columns_are_in_order() -> None:
    (table,) = build(USUAL)
    assert [row.label for row in table.rows] == ["Raw pixels", "Untrained network", "Group Loss", "Triplet"]
    assert columns(table) == ["R@1", "R@2", "R@10", "NMI"]


def test_metrics_on_request() -> None:
    (table,) = build([a_result()], options=Options(metrics=("MAP@R", "R@1")))
    assert columns(table) == ["MAP@R", "R@1"]
    with pytest.raises(UserError, match="no metric named 'MAP@r'; did you mean 'MAP@R'"):
        build([a_result()], options=Options(metrics=("MAP@r",)))


def test_validation_results_are_not_in_the_table() -> None:
    assert build([a_result(a_trial(fold="val0"))]) == []


def test_the_best_is_bold_and_only_the_best() -> None:
    text = markdown(build(USUAL)[0])
    assert text.count("**") == 2 * 4
    assert "**70.0**" in text
    assert "| Triplet           |     60.0 |" in text


def test_copies_of_a_dataset_never_share_a_column() -> None:
    other = [replace(one, trial=replace(one.trial, fingerprint="0123456789ab")) for one in USUAL[:1]]
    (table,) = build([*USUAL, *other])
    assert list(dict.fromkeys(column.group for column in table.columns)) == [
        "Emoji (version 1, 0123456789ab)",
        "Emoji (version 1, abc)",
    ]
    labels = [row.label for row in table.rows]
    triplet, group = (table.rows[labels.index(label)] for label in ("Triplet", "Group Loss"))
    assert [one.text for one in triplet.cells][::4] == ["60.0", "60.0"]
    assert [one.text for one in group.cells][::4] == ["-", "70.0"]


def test_raw_pixels_of_another_size_can_be_told_apart() -> None:
    other = replace(baseline("pixels", 0.3), trial=replace(baseline("pixels", 0.3).trial, resize=32, crop=32))
    labels = [row.label for row in build([*USUAL, other])[0].rows if row.label.startswith("Raw")]
    assert len(set(labels)) == 2


def test_protocols_and_backbones_never_share_a_table_but_pixels_accompany_each() -> None:
    results = [
        *USUAL,
        loss_row("group", "Group Loss", 0.2, backbone="resnet18"),
        loss_row("group", "Group Loss", 0.3, protocol="other"),
    ]
    built = build(results)
    assert [(t.protocol, t.backbone, len(t.rows)) for t in built] == [
        ("other", NETWORK, 1),
        ("quick", "resnet18", 2),
        ("quick", NETWORK, 4),
    ]
    assert built[1].rows[0].label == "Raw pixels"
    chosen = select(results, backbone="resnet18", protocol="quick", dataset="emoji")
    assert [row.label for row in build(chosen)[0].rows] == ["Raw pixels", "Group Loss"]


def test_seeds_are_joined_to_a_mean_and_a_t_interval() -> None:
    values = [0.60, 0.62, 0.67]
    results = [loss_row("group", "Group Loss", value, seed=seed) for seed, value in enumerate(values)]
    (table,) = build(results)
    (row,) = table.rows
    mean = sum(values) / 3
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / 2)
    t = 4.302652729911275  # two degrees of freedom, 97.5 %, from a printed table
    found = row.cells[0]
    assert len(found.values) == 3
    assert found.mean == pytest.approx(mean)
    assert found.half == pytest.approx(t * deviation / math.sqrt(3), rel=1e-6)
    text = markdown(table)
    assert f"**{100 * mean:.1f}** ± {100 * found.half:.1f}" in text
    assert "over 3 seeds" in text


def test_what_is_not_significantly_worse_than_the_best_is_underlined() -> None:
    """Welch by hand: means 0.70 and 0.69, both with deviations of 0.02 over 3 seeds: t = 0.01 / 0.0163 = 0.61 with 4
    degrees of freedom, far below 2.78. Against 0.50, t = 12."""
    spread = (-0.02, 0.0, 0.02)
    results = [
        loss_row(name, name, mean + by, seed=seed)
        for name, mean in (("group", 0.70), ("triplet", 0.69), ("margin", 0.50))
        for seed, by in enumerate(spread)
    ]
    (table,) = build(results)
    group, margin, triplet = (cell(table, row) for row in range(3))
    assert (group.best, group.tied) == (True, False)
    assert (triplet.best, triplet.tied) == (False, True)
    assert (margin.best, margin.tied) == (False, False)
    assert "<ins>69.0</ins>" in markdown(table)
    assert r"\underline{69.0}" in latex(table)
    assert "<u>69.0</u>" in html(table)
    assert "<ins>50.0" not in markdown(table)


def test_a_row_with_one_seed_is_not_underlined() -> None:
    results = [loss_row("group", "group", 0.70 + seed / 100, seed=seed) for seed in range(3)]
    (table,) = build([*results, loss_row("triplet", "triplet", 0.70)])
    assert not cell(table, 1).tied


def test_two_configurations_of_a_loss_are_two_rows_that_say_how_they_differ() -> None:
    two = [loss_row("triplet", "Triplet", 0.6), loss_row("triplet", "Triplet", 0.5, knobs={"margin": 0.1}, lr=1e-4)]
    rows = build(two)[0].rows
    assert [row.label for row in rows] == [
        "Triplet (lr = 0.0001, margin = 0.1)",
        f"Triplet (lr = {a_trial().lr}, margin = 0.2)",
    ]


def test_a_missing_metric_is_a_dash_and_never_the_best() -> None:
    other = replace(loss_row("group", "Group Loss", 0.7), metrics={"R@1": 0.7})
    text = latex(build([loss_row("triplet", "Triplet", 0.6), other])[0])
    assert r"Group Loss~\cite{elezi2020group} & \textbf{70.0} & - & - & - \\" in text


def test_equal_means_are_equal_whatever_the_rounding() -> None:
    """Three times 0.7 summed and divided is not 0.7."""
    results = [loss_row("group", "group", 0.7, seed=seed) for seed in range(3)]
    results += [loss_row("triplet", "triplet", 0.7, seed=seed) for seed in range(2)]
    (table,) = build(results)
    assert cell(table, 0).best
    assert cell(table, 1).best


def test_ensembles_have_a_table_of_their_own_with_their_single_networks() -> None:
    single = [cub("group", 0.60 + seed / 100, seed=seed) for seed in range(2)]
    joined = replace(
        single[0], ensemble=2, members=tuple(one.id for one in single), metrics={**single[0].metrics, "R@1": 0.7}
    )
    other = cub("triplet", 0.5)
    (table,) = build([*single, joined, other], "ensembles")
    assert [row.label for row in table.rows] == ["group", "group, 2-ensemble"]
    assert cell(table, 1).published == "65.8"
    assert [row.label for row in build([*single, joined, other])[0].rows] == ["group", "triplet"]
    assert build([other], "ensembles") == []
    rows = build([*single, joined], "ensembles", Options("rows"))[0].rows
    assert len({row.section for row in rows}) == 5  # sampling, teacher-student, ensembles, the paper's own, ours


def test_backbones_are_rows_with_their_parameters() -> None:
    results = [cub("group", 0.6), replace(cub("group", 0.65, backbone="densenet121"), parameters=7_056_356)]
    (table,) = build(results, "backbones")
    assert [row.label for row in table.rows] == ["group, bn_inception", "group, densenet121"]
    assert [one.text for one in table.rows[1].cells] == ["7,056,356", "65.0", "65.0"]
    assert table.rows[1].cells[1].published == "65.5"
    assert table.rows[1].cells[1].best
    assert not table.rows[0].cells[1].best


def test_a_metric_that_only_one_protocol_has_is_a_dash_in_the_others() -> None:
    other = replace(loss_row("group", "Group Loss", 0.7, protocol="other"), metrics={"R@1": 0.7})
    first, second = build([other, *USUAL], options=Options(metrics=("R@10",)))
    assert [(table.protocol, cell(table, 0, "R@10").text) for table in (first, second)] == [
        ("other", "-"),
        ("quick", "60.0"),
    ]
