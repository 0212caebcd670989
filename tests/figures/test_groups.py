"""Which results enter a figure."""

from dataclasses import replace

import pytest

from harness import config
from harness.analysis.baselines import untrained as untrained_network
from harness.figures.groups import groups, lines, search_of
from harness.spec import UserError
from tests.factories import NETWORK
from tests.figures.factories import final, one_group, searched, untrained


def test_datasets_copies_protocols_and_backbones_have_figures_of_their_own() -> None:
    results = [
        final("group"),
        final("triplet", fingerprint="def"),
        final("group", protocol="cpu"),
        final("group", backbone="resnet18"),
        final("none", backbone="pixels"),
        replace(final("angular"), recipe="faiss", members=("x",)),
    ]
    found = groups(results)
    assert [(one.protocol, one.backbone, len(one.results)) for one in found] == [
        ("cpu", NETWORK, 1),
        ("quick", "resnet18", 1),
        ("quick", NETWORK, 1),
        ("quick", NETWORK, 1),
    ]
    assert [one.slug for one in found][2:] == [
        f"emoji-v1-abc-quick-{NETWORK}",
        f"emoji-v1-def-quick-{NETWORK}",
    ]
    assert {one.losses for one in found} == {("group", "triplet")}  # so a loss has one colour everywhere
    assert [one.backbone for one in groups(results, backbone="resnet18")] == ["resnet18"]
    with pytest.raises(UserError, match="no protocol with results named 'quik'; did you mean 'quick'"):
        groups(results, protocol="quik")


def test_of_a_losss_configurations_the_one_with_the_most_seeds_is_shown_whatever_it_scored() -> None:
    several = [final("group", 0.5, seed=seed) for seed in (1, 0)]
    shown, remark = lines([*several, final("group", 0.9, lr=0.5), final("triplet", 0.4)])
    assert [(line.loss, [run.metrics["R@1"] for run in line.runs]) for line in shown] == [
        ("group", [0.5, 0.5]),
        ("triplet", [0.4]),
    ]
    assert [run.trial.seed for run in shown[0].runs] == [0, 1]
    assert remark == "1 run with other settings not shown"


def test_of_equally_many_seeds_the_latest_is_shown() -> None:
    old = replace(final("group", lr=0.1), provenance={"finished": "2026-01-01"})
    new = replace(final("group", lr=0.2), provenance={"finished": "2026-01-02"})
    for order in ([old, new], [new, old]):
        assert lines(order)[0][0].runs == (new,)


def test_losses_with_batches_of_one_size_share_a_figure_whatever_they_consist_of() -> None:
    usual = final("group")
    batch = usual.trial.classes_per_batch * usual.trial.samples_per_class
    single = final("softmax", classes_per_batch=batch, samples_per_class=1)
    larger = final("arcface", classes_per_batch=2 * batch, samples_per_class=1)
    shown, remark = lines([usual, final("triplet"), single, larger])
    assert [line.loss for line in shown] == ["group", "softmax", "triplet"]
    assert remark == "1 run with other settings not shown"


def test_only_losses_that_were_trained_alike_share_a_figure() -> None:
    long = [final("group", epochs=50, seed=seed) for seed in range(5)]
    shown, remark = lines([*long, final("group"), final("triplet")])
    assert [(line.loss, len(line.runs)) for line in shown] == [("group", 1), ("triplet", 1)]
    assert remark == "5 runs with other settings not shown"


def test_search_scores_are_those_of_trials_that_share_the_final_runs_settings() -> None:
    results = [
        final("group"),
        searched("group", 0.5, lr=0.1),
        searched("group", 0.7, lr=0.2, knobs={"anchors": 2}),
        searched("group", 0.1, lr=0.2, knobs={"anchors": 2}, seed=1),  # of several seeds the first
        searched("group", 0.9, lr=0.3, samples_per_class=9),  # another search's
        replace(searched("group", 0.9, lr=0.5), provenance={"purpose": "grid"}),
        searched("group", 0.9, lr=0.4, fold="val1"),  # the protocol has one fold
        searched("triplet", 0.6, lr=0.1),
    ]
    search = search_of(one_group(results))
    assert {loss: sorted(values) for loss, values in search.scores.items()} == {"group": [0.5, 0.7], "triplet": [0.6]}
    assert (len(search.runs), search.metric) == (3, "R@1")


def test_a_search_score_is_the_mean_over_the_protocols_folds_and_none_without_all_of_them() -> None:
    rules = config.protocol("fair")
    assert (rules.folds, rules.select) == (4, "MAP@R")
    results = [
        replace(searched("group", 0, protocol="fair", lr=lr, fold=f"val{fold}"), metrics={"R@1": 0, "MAP@R": score})
        for lr, scores in ((0.1, (0.1, 0.2, 0.3, 0.4)), (0.2, (0.9, 0.9, 0.9)))
        for fold, score in enumerate(scores)
    ]
    search = search_of(one_group(results))
    assert search.metric == "MAP@R"
    assert search.scores == {"group": [pytest.approx(0.25)]}


def test_the_untrained_network_is_the_one_that_sees_what_the_losses_see() -> None:
    group = one_group([final("group"), untrained(0.4), untrained(0.1, resize=32, crop=32)])
    assert [run.metrics["R@1"] for run in untrained_network(group.results, final("group").trial)] == [0.4]


def test_the_command_names_a_backbone_that_is_not_the_protocols_and_data_of_ones_own() -> None:
    other = replace(final("group", backbone="resnet18", dataset="photos"), provenance={"data": "/my photos"})
    assert str(one_group([other]).missing("runs")).endswith(
        "harness run --dataset '/my photos' --protocol quick --set backbone=resnet18 --losses group"
    )
    (group,) = groups([other], folder=" --results 'my results'")
    assert str(group.missing("runs")).endswith(" --losses group --results 'my results'")


def test_the_command_has_the_weights_and_settings_of_most_runs_and_ones_own_loss_by_its_file() -> None:
    runs = [final(loss, weights="none", crop=32, resize=32) for loss in ("mine.MyLoss", "group")]
    command = str(one_group([*runs, final("triplet", epochs=9)]).missing("runs")).partition("with: ")[2]
    assert command == (
        "harness run --dataset emoji --protocol quick --weights none --losses ./mine.py:MyLoss,group "
        "--set resize=32 --set crop=32"
    )


def test_the_command_for_curves_keeps_the_epochs_unless_one_is_too_few() -> None:
    for epochs, kept in ((2, True), (1, False)):
        command = str(one_group([final("group", epochs=epochs)]).missing("curves", epochs=True))
        assert (f"--set epochs={epochs}" in command) == kept


def test_losses_may_be_sorted_by_a_metric_the_highest_first() -> None:
    runs = [final("angular", 0.4), final("group", 0.6), final("triplet", 0.5, seed=1), final("triplet", 0.9, seed=0)]
    series, _ = lines(runs, "R@1")
    assert [line.loss for line in series] == ["triplet", "group", "angular"]  # 0.7, the mean over seeds; 0.6; 0.4
    assert [line.loss for line in lines(runs)[0]] == ["angular", "group", "triplet"]


def test_a_search_is_sorted_by_its_best_scores() -> None:
    trials = [searched("group", 0.5), searched("triplet", 0.6)]
    assert list(search_of(groups(trials, sort="R@1")[0]).scores) == ["triplet", "group"]
    assert list(search_of(groups(trials)[0]).scores) == ["group", "triplet"]


def test_a_metric_that_nothing_has_cannot_sort() -> None:
    with pytest.raises(UserError, match="no metric to sort by named 'R@3'"):
        groups([final("group")], sort="R@3")
