"""Rows: who stands where, and what they are called."""

from dataclasses import replace

import pytest

from harness.analysis.results import select
from harness.spec import UserError
from harness.tables.build import build
from harness.tables.layout import Options
from harness.tables.render.latex import latex
from tests.factories import NETWORK, USUAL, a_result, a_trial, an_experiment, baseline, cub, loss_row
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


def test_two_configurations_of_a_loss_are_two_rows_that_say_how_they_differ() -> None:
    two = [loss_row("triplet", "Triplet", 0.6), loss_row("triplet", "Triplet", 0.5, knobs={"margin": 0.1}, lr=1e-4)]
    rows = build(two)[0].rows
    assert [row.label for row in rows] == ["Triplet, protocol values", "Triplet, protocol values 2"]
    assert {row.notes[0] for row in rows} == {
        "With lr = 0.0001, margin = 0.1.",
        f"With lr = {a_trial().lr}, margin = 0.2.",
    }
    one = [loss_row("triplet", "Triplet", 0.6), loss_row("triplet", "Triplet", 0.5, knobs={"margin": 0.1})]
    assert [row.label for row in build(one)[0].rows] == ["Triplet (margin = 0.1)", "Triplet (margin = 0.2)"]


def test_rows_of_a_loss_are_called_after_where_their_values_come_from() -> None:
    search = [loss_row("triplet", "Triplet", 0.4 + lr, fold="val0", lr=lr, knobs={"margin": lr}) for lr in (0.1, 0.2)]
    found = loss_row("triplet", "Triplet", 0.6, lr=0.2, knobs={"margin": 0.2})
    usual = loss_row("triplet", "Triplet", 0.5, lr=0.3, knobs={"margin": 0.9})
    by_hand = loss_row("triplet", "Triplet", 0.5, lr=0.4, knobs={"margin": 0.8})
    experiments = [
        an_experiment(search=tuple(sorted(run.id for run in search)), final=(found.id,), trials=2),
        an_experiment(final=(usual.id,)),
        an_experiment(final=(by_hand.id,), settings={"lr": 0.4, "triplet.margin": 0.8}),
    ]
    results = [*search, found, usual, by_hand]
    names = {"Triplet, searched", "Triplet, protocol values", "Triplet, set by hand"}
    for kind in ("losses", "search"):
        assert {row.label for row in build(results, kind, experiments=experiments)[0].rows} == names
    (row,) = [row for row in build(results, experiments=experiments)[0].rows if row.label == "Triplet, searched"]
    assert row.notes[0] == "With lr = 0.2, margin = 0.2."
    assert row.cells[0].ids == (found.id,)


def test_a_missing_metric_is_a_dash() -> None:
    other = replace(loss_row("group", "Group Loss", 0.7), metrics={"R@1": 0.7})
    text = latex(build([loss_row("triplet", "Triplet", 0.6), other])[0])
    assert r"Group Loss~\cite{elezi2020group} & 70.0 & - & - & - \\" in text


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


def test_rows_of_different_backbones_say_how_else_they_differ() -> None:
    """Settings, search and conditions; the network and the tag of its weights differ by design."""
    many = [cub(loss, 0.6, weights="hub:a") for loss in ("group", "triplet")]
    other = cub("group", 0.5, backbone="densenet121", weights="hub:b", epochs=7)
    search = [cub("group", 0.4, backbone="densenet121", weights="hub:b", epochs=7, fold="val0", lr=0.1)]
    results = [replace(run, provenance={"device_type": "cpu", "threads": 1}) for run in many]
    results += [replace(run, provenance={"device_type": "cpu", "threads": 4}) for run in (other, *search)]
    (table,) = build(results, "backbones", Options(published="none"))
    notes = {row.label: row.notes for row in table.rows}
    assert notes.pop("group, densenet121") == (
        "Trained differently: epochs = 7 (usual: 60).",
        "1 random-search trial (usual: no random search).",
        "Run under other conditions: threads = 4 (usual: 1).",
    )
    assert not any(notes.values())
    random = [cub("margin", 0.5, backbone="densenet121", weights="none")]
    (table,) = build([*many, *random], "backbones", Options(published="none"))
    assert table.rows[-1].label == "margin, densenet121"
    assert table.rows[-1].notes == ("Trained differently: weights = none (usual: hub).",)


def test_a_metric_that_only_one_protocol_has_is_a_dash_in_the_others() -> None:
    other = replace(loss_row("group", "Group Loss", 0.7, protocol="other"), metrics={"R@1": 0.7})
    first, second = build([other, *USUAL], options=Options(metrics=("R@10",)))
    assert [(table.protocol, cell(table, 0, "R@10").text) for table in (first, second)] == [
        ("other", "-"),
        ("quick", "60.0"),
    ]
