"""Queries on results: what is selected, what stands together, what is usual."""

import json
from dataclasses import replace

import pandas as pd
import pytest

from harness.analysis.experiments import Purposes
from harness.analysis.results import (
    by_dataset,
    comparisons,
    frame,
    long_frame,
    select,
    usual_settings,
    with_nmi_by,
)
from harness.spec import UserError
from harness.spec.recipes import SKLEARN
from tests.factories import NETWORK, USUAL, a_result, a_trial, baseline, loss_row


def test_a_filter_that_matches_nothing_names_what_there_is() -> None:
    with pytest.raises(UserError, match=r"no protocol with results named 'quik'; did you mean 'quick'"):
        select(USUAL, protocol="quik")


def test_a_run_shows_the_nmi_of_a_recipe_only_where_it_was_measured_with_it() -> None:
    again = replace(
        USUAL[0],
        metrics={"R@1": 0.0, "NMI": 0.25},
        conventions={"NMI": str(SKLEARN)},
        recipe="sklearn",
        members=(USUAL[0].id,),
    )
    assert select([*USUAL, again]) == USUAL
    first, *others = with_nmi_by("sklearn", [*USUAL, again])
    assert (first.metrics["NMI"], first.conventions["NMI"]) == (0.25, str(SKLEARN))
    assert first == replace(USUAL[0], metrics=first.metrics, conventions=first.conventions)
    assert {**first.metrics, "NMI": 0.6} == USUAL[0].metrics  # everything else is the run's own
    assert others == USUAL[1:]


def test_a_record_by_what_a_recipe_was_once_does_not_count_as_the_recipe() -> None:
    once = {"NMI": "scikit-learn's KMeans, 1 start, arithmetic mean, seed 0"}
    again = replace(
        USUAL[0], metrics={"R@1": 0.6, "NMI": 0.25}, conventions=once, recipe="sklearn", members=(USUAL[0].id,)
    )
    assert with_nmi_by("sklearn", [*USUAL, again]) == USUAL


def test_raw_pixels_stand_in_every_comparison_of_their_protocol() -> None:
    other = loss_row("group", "Group Loss", 0.2, backbone="resnet18")
    found = comparisons([*USUAL, other])
    assert [(one.protocol, one.backbone, len(one.results)) for one in found] == [
        ("quick", "resnet18", 2),
        ("quick", NETWORK, 4),
    ]
    (alone,) = comparisons([baseline("pixels", 0.5)])
    assert (alone.backbone, len(alone.results)) == ("pixels", 1)


def test_datasets_come_in_the_papers_order_and_copies_are_apart() -> None:
    names = ["photos", "emoji", "sop", "inshop", "cars", "cub", "emoji"]
    results = [loss_row("group", "x", 0.5, dataset=name, fingerprint=str(n)) for n, name in enumerate(names)]
    found = by_dataset(results)
    assert [one.name for one in found] == ["cub", "cars", "sop", "inshop", "emoji-v1-1", "emoji-v1-6", "photos"]
    assert found[2].title == "Stanford Online Products"
    assert [one.title for one in found[4:]] == ["Emoji (version 1, 1)", "Emoji (version 1, 6)", "photos"]


def test_usual_settings_are_those_of_most_losses_then_of_most_runs_then_of_the_latest() -> None:
    assert usual_settings([baseline("pixels", 0.5)]) == {}
    many = [loss_row("group", "x", 0.5, epochs=50, seed=seed) for seed in range(5)]
    short = [loss_row(name, "x", 0.5, epochs=4) for name in ("triplet", "margin")]
    assert usual_settings([*many, *short])["epochs"] == 4
    assert usual_settings([*many, *short[:1]])["epochs"] == 50
    early = replace(loss_row("group", "x", 0.9, epochs=7), provenance={"finished": "2026-01-01"})
    late = replace(loss_row("triplet", "x", 0.1, epochs=8), provenance={"finished": "2026-01-02"})
    assert usual_settings([early, late])["epochs"] == usual_settings([late, early])["epochs"] == 8


def test_usual_settings_are_those_of_losses_there_are() -> None:
    """Each value is the most frequent one of its setting only as a whole: nobody trained with 9 epochs and crop 48."""
    results = [
        *(loss_row(name, "x", 0.5, epochs=9, crop=32) for name in ("group", "triplet")),
        loss_row("margin", "x", 0.5, epochs=4, crop=48),
        loss_row("angular", "x", 0.5, epochs=5, crop=48),
        loss_row("n_pairs", "x", 0.5, epochs=6, crop=48),
    ]
    usual = usual_settings(results)
    assert (usual["epochs"], usual["crop"]) == (9, 32)


def test_the_frame_has_one_row_per_result_and_a_column_per_setting_knob_and_metric() -> None:
    other = a_result(a_trial(loss="group", knobs={"anchors": 2}, seed=1), **{"R@1": 0.25, "R@10": 0.75})
    table = frame([a_result(), other], Purposes())
    assert list(table["id"]) == [a_trial().id, other.id]
    assert list(table["R@1"]) == [0.5, 0.25]
    assert list(table["seed"]) == [0, 1]
    assert table["knob.margin"][0] == 0.2
    assert table["knob.anchors"][1] == 2
    assert pd.isna(table["knob.margin"][1])
    assert pd.isna(table["NMI"][1])
    assert "knobs" not in table
    metrics = [name for name in table.columns if name in ("R@1", "R@2", "R@10", "MAP@R", "NMI")]
    assert metrics == ["R@1", "R@2", "R@10", "MAP@R", "NMI"]
    assert list(table["purpose"]) == ["run", "run"]
    assert frame([], Purposes()).empty


def test_the_long_frame_has_one_row_per_metric() -> None:
    table = long_frame([a_result(), a_result(a_trial(seed=1))])
    assert len(table) == 8
    assert set(table["metric"]) == {"R@1", "R@2", "NMI", "MAP@R"}
    assert set(table["seed"]) == {0, 1}
    assert json.loads(table["knobs"][0]) == {"margin": 0.2}
