"""Captions and footnotes: what a reader has to know of the numbers."""

from dataclasses import replace

from harness.analysis.budget import HOURS
from harness.tables.build import build
from harness.tables.render.html import html
from harness.tables.render.latex import latex
from harness.tables.render.markdown import markdown
from tests.factories import NETWORK, USUAL, a_trial, baseline, loss_row


def test_with_one_seed_no_interval_is_claimed() -> None:
    (table,) = build(USUAL)
    assert all(cell.half is None for row in table.rows for cell in row.cells)
    assert "±" not in markdown(table)
    assert "1 seed" in markdown(table)
    assert "Values from a single seed cannot be tested for significance." in markdown(table)


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
    assert "Its NMI was computed differently: by hand." in text
    assert "NMI" not in markdown(build([skipped, other, *USUAL[2:]], metrics=["R@1"])[0])


def test_a_row_that_was_trained_differently_is_footnoted() -> None:
    odd = loss_row("proxy_nca", "Proxy-NCA", 0.9, epochs=50)
    (table,) = build([*USUAL, odd])
    text = markdown(table)
    assert "Proxy-NCA[a]" in text
    assert rf"\[a\] Trained differently: epochs = 50 (others: {a_trial().epochs})." in text
    assert "Triplet[" not in text


def test_baselines_of_another_size_and_losses_of_another_version_can_be_told_apart() -> None:
    other = replace(baseline(NETWORK, 0.3), trial=replace(baseline(NETWORK, 0.3).trial, resize=32, crop=32))
    text = markdown(build([*USUAL, other])[0])
    assert "Untrained network[a]" in text
    assert "Measured differently: resize = 32 (others: 64); crop = 32 (others: 64)." in text
    versions = [loss_row("group", "Mine", 0.5, loss_version=version) for version in ("abc", "def")]
    labels = [row.label for row in build(versions)[0].rows]
    assert labels == ["Mine (loss_version = abc)", "Mine (loss_version = def)"]


def test_hours_of_cpus_and_gpus_are_told_apart() -> None:
    gpu = {"device_type": "cuda", "threads": 8}
    results = [
        replace(loss_row("group", "Group Loss", 0.5), seconds={"total": 36000.0}, provenance=gpu),
        replace(loss_row("triplet", "Triplet", 0.5), seconds={"total": 3600.0}, provenance={"threads": 2}),
    ]
    assert "2 CPU-hours, 10 GPU-hours" in build(results)[0].caption


def test_captions_say_which_hours_they_mean() -> None:
    watched = replace(USUAL[0], curve=({"epoch": 1, "loss": 0.5, "R@1": 0.5},))
    older = "Those of 1 run of an older version leave out evaluation after each epoch."
    for kind in ("losses", "search"):
        assert HOURS in build(USUAL, kind)[0].caption
        assert older not in build(USUAL, kind)[0].caption
        assert f"{HOURS} {older}" in build([watched, *USUAL[1:]], kind)[0].caption
    assert HOURS not in build(USUAL[2:])[0].caption  # baselines claim no hours


def test_what_was_measured_again_claims_no_budget() -> None:
    again = [replace(one, recipe="sklearn", members=(one.id,)) for one in USUAL]
    assert "Budget" not in build(again)[0].caption


def test_unequal_budgets_show() -> None:
    runs = [
        replace(loss_row("triplet", "Triplet", 0.5), seconds={"total": 3600.0}),
        loss_row("group", "Group Loss", 0.5),
    ]
    runs.append(loss_row("group", "Group Loss", 0.4, fold="val0"))
    assert "Budget per loss: 0 to 1 random-search trials, 1 final run, " in build(runs)[0].caption


def test_seeds_are_counted_over_losses_and_the_single_run_of_raw_pixels_does_not_count() -> None:
    pair = [loss_row("group", "Group Loss", 0.6 + seed / 10, seed=seed) for seed in range(2)]
    (table,) = build([*pair, baseline("pixels", 0.3)])
    assert "over 2 seeds." in table.caption
    assert "single seed" not in table.caption
    (table,) = build([*pair, loss_row("triplet", "Triplet", 0.5), baseline("pixels", 0.3)])
    assert "over 1 to 2 seeds." in table.caption
    assert "Values from a single seed cannot be tested for significance." in table.caption
    networks = [
        replace(one, trial=replace(one.trial, seed=seed)) for seed, one in enumerate(2 * [baseline(NETWORK, 0.4)])
    ]
    (table,) = build([loss_row("group", "Group Loss", 0.6), *networks])
    assert "over 1 to 2 seeds." in table.caption
    (table,) = build([baseline("pixels", 0.3)])
    assert "Percent on test classes, 1 seed." in table.caption


def test_a_loss_with_many_configurations_does_not_outvote_the_others() -> None:
    """Three rows of one loss with 50 epochs, two losses with the usual number."""
    long = [loss_row("margin", "Margin", 0.5, epochs=50, lr=lr) for lr in (0.1, 0.2, 0.3)]
    (table,) = build([*USUAL, *long])
    noted = {row.label: row.notes for row in table.rows if row.notes}
    assert len(noted) == 3
    assert all(label.startswith("Margin") for label in noted)
    assert all(notes[0].startswith("Trained differently: epochs = 50 (others: ") for notes in noted.values())


def test_values_in_footnotes_are_written_as_set_reads_them() -> None:
    usual = [loss_row(name, name, 0.5, dim=64, drops=(3, 5)) for name in ("group", "triplet")]
    (table,) = build([*usual, loss_row("margin", "margin", 0.5, dim=None, drops=(), layer_norm=True)])
    (notes,) = (row.notes for row in table.rows if row.notes)
    assert notes == (
        "Trained differently: dim = none (others: 64); layer_norm = true (others: false); drops = none (others: 3,5).",
    )


def test_a_single_search_trial_is_one() -> None:
    trial = loss_row("group", "Group Loss", 0.4, fold="val0")
    assert "Budget per loss: 1 random-search trial, 1 final run, " in build([trial, USUAL[1]])[0].caption
