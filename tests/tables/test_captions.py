"""Captions and footnotes: what a reader has to know of the numbers."""

from dataclasses import replace

import pytest

from harness.analysis.budget import HOURS
from harness.spec import Result
from harness.spec.recipes import HARTIGAN, LLOYD, SKLEARN
from harness.tables.build import build
from harness.tables.layout import Kind, Options, Row, Table
from harness.tables.render.html import html
from harness.tables.render.latex import latex
from harness.tables.render.markdown import markdown
from tests.factories import NETWORK, USUAL, a_trial, baseline, loss_row
from tests.tables.reading import cell

BY_HARTIGAN = {"NMI": str(HARTIGAN)}


def test_with_one_seed_no_interval_is_claimed() -> None:
    (table,) = build(USUAL)
    assert all(cell.half is None for row in table.rows for cell in row.cells)
    assert "±" not in markdown(table)
    assert "1 seed" in markdown(table)
    assert "Differences are not tested: a test needs two losses with 3 seeds each." in markdown(table)


def test_a_row_whose_epoch_was_chosen_on_test_classes_is_marked_even_where_all_are() -> None:
    leaked = [replace(one, trial=replace(one.trial, checkpoint="best-test")) for one in USUAL[:2]]
    for form in (markdown, latex, html):
        text = form(build([*leaked, *USUAL[2:]])[0])
        assert text.count("Its epoch was chosen on test classes.") == 1  # said once, and marked at both
        assert text.replace("\\", "").replace("{[}", "[").replace("{]}", "]").count("[a]") == 3
    assert "test classes." not in "".join(build(USUAL)[0].rows[0].notes)


def test_a_row_with_images_left_out_or_nmi_by_another_recipe_says_so() -> None:
    skipped = replace(USUAL[0], provenance={"bad_images_skipped": 3})
    other = replace(USUAL[1], conventions={"NMI": "by hand"})
    text = markdown(build([skipped, other, *USUAL[2:]])[0])
    assert "3 images could not be read and were left out." in text
    assert "Its NMI is by another recipe (by hand)." in text
    assert "NMI by the k-means recipe lloyd, except where a footnote names another." in text
    assert "NMI" not in markdown(build([skipped, other, *USUAL[2:]], options=Options(metrics=("R@1",)))[0])


def test_a_row_that_was_trained_differently_is_footnoted() -> None:
    odd = loss_row("proxy_nca", "Proxy-NCA", 0.9, epochs=50)
    (table,) = build([*USUAL, odd])
    text = markdown(table)
    assert "Proxy-NCA[a]" in text
    assert rf"\[a\] Trained differently: epochs = 50 (usual: {a_trial().epochs})." in text
    assert "Triplet[" not in text


def test_baselines_of_another_size_and_losses_of_another_version_can_be_told_apart() -> None:
    other = replace(baseline(NETWORK, 0.3), trial=replace(baseline(NETWORK, 0.3).trial, resize=32, crop=32))
    text = markdown(build([*USUAL, other])[0])
    assert "Untrained network[a]" in text
    assert "Measured differently: resize = 32 (usual: 64); crop = 32 (usual: 64)." in text
    versions = [loss_row("group", "Mine", 0.5, loss_version=version) for version in ("abc", "def")]
    labels = [row.label for row in build(versions)[0].rows]
    assert labels == ["Mine (loss_version = abc)", "Mine (loss_version = def)"]


def test_a_loss_below_a_baseline_is_footnoted_and_equal_notes_share_a_mark() -> None:
    low = [loss_row(name, name, 0.3) for name in ("margin", "angular")]
    (table,) = build([*USUAL, *low, loss_row("n_pairs", "N-Pairs", 0.45)])
    notes = {row.label: row.notes for row in table.rows}
    assert notes["margin"] == notes["angular"] == ("Below the untrained network and raw pixels in R@1.",)
    assert notes["N-Pairs"] == ("Below raw pixels in R@1.",)
    assert not notes["Triplet"]
    assert not notes["Untrained network"]


def test_marks_stand_in_the_order_of_the_notes() -> None:
    rows = [Row("A", (), notes=("x", "y")), Row("B", (), notes=("z", "y", "x"))]
    assert Table("losses", "quick", "", (), tuple(rows), "").footnotes()[0] == ["[a,b]", "[a,b,c]"]


def test_a_loss_that_was_0_is_footnoted() -> None:
    curves = {"margin": (0.0, 0.0), "angular": (0.0, 0.2), "n_pairs": (0.1, 0.2)}
    runs = [
        replace(
            loss_row(name, name, 0.8),
            curve=tuple({"epoch": epoch, "loss": loss} for epoch, loss in enumerate(values, start=1)),
        )
        for name, values in curves.items()
    ]
    notes = {row.label: row.notes for row in build([*USUAL, *runs])[0].rows}
    assert notes["margin"] == ("Its loss was 0 in every epoch: it was not trained.",)
    assert notes["angular"] == ("Its loss was 0 in 1 of 2 epochs.",)
    assert not notes["n_pairs"]


def test_a_collapsed_embedding_is_footnoted_with_its_epoch_and_seeds() -> None:
    rows = [{"epoch": epoch, "loss": 1.0, "cosine": cosine} for epoch, cosine in enumerate((0.9, 0.2, 1.0, 1.0))]
    healthy = replace(loss_row("margin", "Margin", 0.8), curve=tuple(rows))
    collapsed = replace(
        healthy, conventions={**USUAL[0].conventions, "collapsed": "mean cosine of two images 1.000000"}
    )
    (row,) = build([collapsed])[0].rows
    assert row.notes == ("Its embedding has collapsed in epoch 2: mean cosine of two images 1.000000.",)
    (row,) = build([replace(collapsed, curve=())])[0].rows
    assert row.notes == ("Its embedding has collapsed: mean cosine of two images 1.000000.",)
    other = replace(healthy, trial=replace(healthy.trial, seed=1), curve=tuple(rows[:2]))
    (row,) = build([other, collapsed])[0].rows
    assert "has collapsed in epoch 2 (1 of 2 seeds): " in row.notes[0]
    worse = {**collapsed.conventions, "collapsed": "mean cosine of two images 0.999500"}
    later = replace(
        collapsed, trial=other.trial, conventions=worse, curve=(*rows[:2], {**rows[2], "cosine": 0.5}, rows[3])
    )
    for runs in ([collapsed, later], [later, collapsed]):
        (row,) = build(runs)[0].rows
        text = "in epochs 2 to 3 (2 of 2 seeds): mean cosine of two images 0.999500 to 1.000000"
        assert row.notes[0] == f"Its embedding has collapsed {text}."
    (row,) = build([replace(healthy, curve=tuple(rows))])[0].rows
    assert not row.notes  # its last epoch was not kept: what was measured had not collapsed


def test_hours_of_cpus_and_gpus_are_told_apart() -> None:
    gpu = {"device_type": "cuda", "threads": 8}
    results = [
        replace(loss_row("group", "Group Loss", 0.5), seconds={"total": 36000.0}, provenance=gpu),
        replace(loss_row("triplet", "Triplet", 0.5), seconds={"total": 3600.0}, provenance={"threads": 2}),
    ]
    assert "2 CPU-hours, 10 GPU-hours" in build(results)[0].caption


def test_a_row_has_the_nmi_of_the_recipe_and_its_runs_without_it_are_footnoted() -> None:
    old = [replace(loss_row("group", "Group Loss", 0.5, seed=seed), conventions=BY_HARTIGAN) for seed in (0, 1)]
    again = replace(old[0], conventions={"NMI": str(LLOYD)}, recipe="lloyd", members=(old[0].id,))
    again = replace(again, metrics={**again.metrics, "NMI": 0.3})
    (table,) = build([*old, again, *USUAL[2:]])
    assert cell(table, 2, "NMI").values == (0.3, 0.5)
    assert cell(table, 2, "R@1").values == (0.5, 0.5)
    assert table.rows[2].notes[0] == f"The NMI of 1 of its 2 runs is by hartigan ({HARTIGAN})."
    assert "1 to 2" not in table.caption  # seeds: what was measured again is not another run
    assert "NMI by the k-means recipe lloyd, except where a footnote names another." in table.caption


def test_results_from_before_the_usual_recipe_are_footnoted_in_every_row() -> None:
    (table,) = build([replace(one, conventions=BY_HARTIGAN) for one in USUAL])
    assert [row.label for row in table.rows][:2] == ["Raw pixels", "Untrained network"]
    assert all(row.notes[0] == f"Its NMI is by hartigan ({HARTIGAN})." for row in table.rows)


def test_the_caption_names_the_recipe_that_was_asked_for() -> None:
    by_sklearn = [replace(one, conventions={"NMI": str(SKLEARN)}) for one in USUAL]
    caption = build(by_sklearn, options=Options(recipe="sklearn"))[0].caption
    assert "NMI by the k-means recipe sklearn." in caption
    assert "recipe" not in build(USUAL, options=Options(metrics=("R@1",)))[0].caption


def test_captions_say_which_hours_they_mean() -> None:
    watched = replace(USUAL[0], curve=({"epoch": 1, "loss": 0.5, "R@1": 0.5},))
    older = "The hours of 1 older run leave out evaluation after each epoch."
    for kind in ("losses", "search"):
        assert HOURS in build(USUAL, kind)[0].caption
        assert older not in build(USUAL, kind)[0].caption
        assert f"{HOURS} {older}" in build([watched, *USUAL[1:]], kind)[0].caption
    assert HOURS not in build(USUAL[2:])[0].caption  # baselines claim no hours


def test_seeds_are_counted_over_losses_and_the_single_run_of_raw_pixels_does_not_count() -> None:
    pair = [loss_row("group", "Group Loss", 0.6 + seed / 10, seed=seed) for seed in range(2)]
    (table,) = build([*pair, baseline("pixels", 0.3)])
    assert "Percent on test classes, 2 seeds. With two seeds both values are shown" in table.caption
    (table,) = build([*pair, loss_row("triplet", "Triplet", 0.5), baseline("pixels", 0.3)])
    assert "Percent on test classes, 1 to 2 seeds." in table.caption
    networks = [
        replace(one, trial=replace(one.trial, seed=seed)) for seed, one in enumerate(2 * [baseline(NETWORK, 0.4)])
    ]
    (table,) = build([loss_row("group", "Group Loss", 0.6), *networks])
    assert "Percent on test classes, 1 to 2 seeds." in table.caption
    (table,) = build([baseline("pixels", 0.3)])
    assert "Percent on test classes, 1 seed." in table.caption


def test_a_loss_with_many_configurations_does_not_outvote_the_others() -> None:
    """Three rows of one loss with 50 epochs, two losses with the usual number."""
    long = [loss_row("margin", "Margin", 0.5, epochs=50, lr=lr) for lr in (0.1, 0.2, 0.3)]
    (table,) = build([*USUAL, *long])
    noted = {row.label: row.notes for row in table.rows if row.notes}
    assert len(noted) == 3
    assert all(label.startswith("Margin") for label in noted)
    assert all(notes[0].startswith("Trained differently: epochs = 50 (usual: ") for notes in noted.values())


def test_values_in_footnotes_are_written_as_set_reads_them() -> None:
    usual = [loss_row(name, name, 0.5, dim=64, drops=(3, 5)) for name in ("group", "triplet")]
    (table,) = build([*usual, loss_row("margin", "margin", 0.5, dim=None, drops=(), layer_norm=True)])
    (notes,) = (row.notes for row in table.rows if row.notes)
    assert notes == (
        "Trained differently: dim = none (usual: 64); layer_norm = true (usual: false); drops = none (usual: 3,5).",
    )


def test_a_single_search_trial_is_one() -> None:
    trial = loss_row("group", "Group Loss", 0.4, fold="val0")
    assert "Budget per loss: 1 random-search trial, 1 final run, " in build([trial, USUAL[1]])[0].caption


@pytest.mark.parametrize("name", ["list.csv", "mine.toml", "photos"])
def test_a_record_of_a_list_from_before_fingerprints_covered_the_split_is_footnoted(name: str) -> None:
    old = loss_row("triplet", "Triplet", 0.6, dataset=name)
    new = replace(old, provenance={"data_sha256": "a" * 64})
    note = (
        "Recorded before a list's split was part of its fingerprint: if the list has a split of its own, which classes "
        "trained is not known."
    )
    assert (note in build([old])[0].rows[0].notes) == (name != "photos")  # the record does not say if it had one
    assert note not in build([new])[0].rows[0].notes
    second = replace(old, trial=replace(old.trial, seed=1))
    if name != "photos":
        for order in ([new, second], [second, new]):
            assert note.replace(": if", " (1 of 2 runs): if") in build(order)[0].rows[0].notes


def test_images_that_were_left_out_are_counted_over_all_runs_of_a_row() -> None:
    def left_out(seed: int, images: int) -> Result:
        return replace(loss_row("triplet", "Triplet", 0.6, seed=seed), provenance={"bad_images_skipped": images})

    def notes(*runs: Result, kind: Kind = "losses") -> list[str]:
        return [note for note in build(runs, kind)[0].rows[0].notes if "left out" in note]

    whole, three, one = left_out(0, 0), left_out(1, 3), left_out(2, 1)
    assert notes(whole) == []
    for order in ((whole, three), (three, whole)):
        assert notes(*order) == ["3 images could not be read and were left out (1 of 2 runs)."]
    assert notes(three, replace(three, trial=one.trial)) == ["3 images could not be read and were left out."]
    assert notes(whole, three, one) == [
        "1 image could not be read and was left out (1 of 3 runs).",
        "3 images could not be read and were left out (1 of 3 runs).",
    ]
    joined = replace(whole, ensemble=2, members=(whole.id, three.id))
    assert notes(whole, three, joined, kind="ensembles") == [
        "3 images could not be read and were left out (1 of 2 runs)."
    ]
