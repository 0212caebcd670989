"""Experiments into trials: search, grids, final runs, baselines."""

import dataclasses
from typing import Any

import pytest

from harness import config, plan
from harness.analysis.results import best
from harness.spec import SETTINGS, TUNABLE, Experiment, Result, Tuned, UserError
from losses.space import Range, Rates
from tests.factories import a_result

# --- planning ---


def experiment(**changes: Any) -> Experiment:
    losses = tuple(config.loss(name) for name in ("group", "triplet"))
    return Experiment(
        **{"dataset": config.dataset("emoji"), "protocol": config.protocol("quick"), "losses": losses, **changes}
    )


def test_search_names_the_same_trials_however_many_are_asked_for() -> None:
    few, many = plan.search(experiment(trials=2)), plan.search(experiment(trials=5))
    assert {t.id for t in few} < {t.id for t in many}
    assert len({t.id for t in many}) == 10
    assert {t.fold for t in many} == {"val0"}


def test_search_varies_the_losss_space_and_the_protocols_ranges_and_nothing_else() -> None:
    trials = [t for t in plan.search(experiment(trials=12)) if t.loss == "group"]
    varied = {name for name in trials[0].knobs if len({t.knobs[name] for t in trials}) > 1}
    assert varied == set(config.loss("group").space)
    protocol = config.protocol("quick")
    settings = {name for name in SETTINGS if len({getattr(t, name) for t in trials}) > 1}
    assert settings == set(protocol.search)
    for name, values in protocol.search.items():
        assert isinstance(values, Range)
        assert all(values.low <= getattr(t, name) <= values.high for t in trials)


def test_what_the_user_sets_is_not_searched() -> None:
    asked = experiment(trials=4, settings={"lr": 1e-3}, knobs={"group": {"anchors": 1}})
    trials = [t for t in plan.search(asked) if t.loss == "group"]
    assert {t.lr for t in trials} == {1e-3}
    assert {t.knobs["anchors"] for t in trials} == {1}
    assert len({t.knobs["temperature"] for t in trials}) == 4


def rates_of(loss: str, **changes: Any) -> list[float]:
    """The learning rates of what a loss owns in its search trials."""
    trials = plan.search(experiment(trials=20, losses=(config.loss(loss),), **changes))
    return [t.lr * t.head_lr_factor * t.knobs["lr_factor"] for t in trials]


@pytest.mark.parametrize("loss", ["arcface", "margin", "proxy_anchor", "soft_triple", "softmax"])
def test_a_range_of_rates_means_the_same_rates_under_every_protocol(loss: str) -> None:
    space = config.loss(loss).space["lr_factor"]
    assert isinstance(space, Rates)
    usual = rates_of(loss)
    assert len(set(usual)) == 20
    assert all(space.low * 0.999 <= rate <= space.high * 1.001 for rate in usual)
    for protocol in ("cpu", "paper", "released"):
        assert rates_of(loss, protocol=config.protocol(protocol)) == pytest.approx(usual, rel=1e-5)
    for settings in ({"lr": 0.5}, {"head_lr_factor": 7.0}, {"lr": 1e-6, "head_lr_factor": 1.0}):
        assert rates_of(loss, settings=settings) == pytest.approx(usual, rel=1e-5)
    assert set(rates_of(loss, settings={"lr": 1e-3}, knobs={loss: {"lr_factor": 2.0}})) == {1e-3 * 10 * 2.0}


def test_fair_searches_the_rate_of_every_loss_that_owns_parameters() -> None:
    fair = config.protocol("fair")
    for name in ("group", "softmax", "normalized_softmax", "arcface", "proxy_nca", "proxy_anchor", "margin"):
        rates = rates_of(name, protocol=fair)
        assert len(set(rates)) == 20
        assert all(0.999e-6 <= rate <= 1.001 for rate in rates)


def chosen_values(results: list[Result], folds: int = 1) -> dict[str, dict[str, Any]]:
    return {loss: winner.values for loss, winner in best(results, "R@1", folds).items()}


def test_final_trials_take_the_chosen_values_on_test_classes_for_each_seed() -> None:
    asked = experiment(trials=3, seeds=2)
    searched = plan.search(asked)
    results = [a_result(t, **{"R@1": 0.1 * n}) for n, t in enumerate(searched)]
    chosen = chosen_values(results)
    final = plan.final(asked, chosen)
    assert [(t.loss, t.seed, t.fold) for t in final] == [
        ("group", 0, "test"),
        ("group", 1, "test"),
        ("triplet", 0, "test"),
        ("triplet", 1, "test"),
    ]
    assert final[0].knobs == searched[2].knobs
    assert final[0].lr == searched[2].lr
    assert final[3].knobs == searched[5].knobs


def test_a_configurations_score_is_its_mean_over_the_folds_and_a_missing_fold_rules_it_out() -> None:
    protocol = dataclasses.replace(config.protocol("quick"), folds=2)
    asked = experiment(trials=3, protocol=protocol, losses=(config.loss("triplet"),))
    trials = plan.search(asked)
    assert [t.fold for t in trials] == ["val0", "val1"] * 3
    assert all(a.knobs == b.knobs and a.lr == b.lr for a, b in zip(trials[::2], trials[1::2], strict=True))
    # means 0.5, 0.55 and, of one fold only, 0.9
    scores = [0.9, 0.1, 0.55, 0.55, 0.9]
    results = [a_result(t, **{"R@1": score}) for t, score in zip(trials, scores, strict=False)]
    assert chosen_values(results, folds=2) == {"triplet": trials[2].searched}


def test_a_grid_is_every_combination_for_each_loss_with_the_knobs_of_its_own() -> None:
    grid = {"group.anchors": (0, 2), "samples_per_class": (5, 6, 7)}
    cells = plan.grid(experiment(grid=grid))
    group = [(t.knobs["anchors"], t.samples_per_class) for t in cells if t.loss == "group"]
    assert group == [(0, 5), (0, 6), (0, 7), (2, 5), (2, 6), (2, 7)]
    assert [t.samples_per_class for t in cells if t.loss == "triplet"] == [5, 6, 7]
    assert {(t.fold, t.seed) for t in cells} == {("val0", 0)}
    alone = plan.grid(experiment(grid={"group.anchors": (0, 2)}))
    assert [t.loss for t in alone] == ["group", "group", "triplet"]


def test_a_cell_of_a_grid_is_what_setting_its_values_gives() -> None:
    asked = experiment(settings={"epochs": 3}, knobs={"group": {"steps": 1}}, losses=(config.loss("group"),))
    cells = plan.grid(dataclasses.replace(asked, grid={"group.anchors": (2,), "lr": (0.5,)}))
    settings, knobs = {"epochs": 3, "lr": 0.5, "fold": "val0"}, {"group": {"steps": 1, "anchors": 2}}
    assert cells == plan.final(dataclasses.replace(asked, settings=settings, knobs=knobs), {})


def test_a_grid_has_its_seeds_and_the_fold_a_user_names() -> None:
    losses = (config.loss("triplet"),)
    cells = plan.grid(experiment(grid={"epochs": (1, 2)}, seeds=2, losses=losses, settings={"fold": "val3", "seed": 5}))
    assert [(t.epochs, t.seed, t.fold) for t in cells] == [
        (1, 5, "val3"),
        (1, 6, "val3"),
        (2, 5, "val3"),
        (2, 6, "val3"),
    ]
    assert plan.grid(experiment()) == []


def test_a_loss_whose_search_failed_has_no_final_trial() -> None:
    asked = experiment(trials=1)
    chosen = chosen_values([a_result(t) for t in plan.search(asked) if t.loss == "group"])
    assert {t.loss for t in plan.final(asked, chosen)} == {"group"}


def test_more_seeds_keep_the_earlier_trials() -> None:
    one, three = plan.final(experiment(seeds=1), {}), plan.final(experiment(seeds=3), {})
    assert {t.id for t in one} < {t.id for t in three}


def test_every_loss_of_an_experiment_shares_all_but_its_own_values() -> None:
    group, triplet = plan.final(experiment(), {})
    own = {"loss", "loss_version", "knobs", *TUNABLE}
    differing = {name for name, value in group.to_json().items() if triplet.to_json()[name] != value}
    assert differing <= own


def test_baselines_are_one_pixel_trial_and_one_untrained_network() -> None:
    pixels, network = plan.baselines(experiment(seeds=3))
    assert (pixels.loss, pixels.backbone, pixels.epochs) == ("none", "pixels", 0)
    assert (network.loss, network.backbone, network.epochs) == ("none", "tf_efficientnet_lite0", 0)


def test_raw_pixels_are_of_another_version_above_20000_test_images() -> None:
    usual = experiment()
    for images, version in ((20_000, 1), (20_001, 2)):
        dataset = dataclasses.replace(usual.dataset, test_images=images)
        pixels, network = plan.baselines(dataclasses.replace(usual, dataset=dataset))
        assert (pixels.loss_version, network.loss_version) == (version, 1)


def test_an_untrained_network_with_a_random_part_is_measured_for_each_seed() -> None:
    for settings in ({"dim": 32}, {"weights": "none"}):
        assert [t.seed for t in plan.baselines(experiment(seeds=3, settings=settings))] == [0, 0, 1, 2]


def test_an_untrained_network_without_a_random_part_is_one_trial_whatever_seed_is_set() -> None:
    usual, other = plan.baselines(experiment()), plan.baselines(experiment(settings={"seed": 5}, seeds=3))
    assert other == usual
    assert [t.seed for t in other] == [0, 0]


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_an_untrained_network_with_a_random_part_has_the_seeds_of_the_run(seeds: int) -> None:
    drawn = plan.baselines(experiment(settings={"seed": 5, "dim": 32}, seeds=seeds))
    assert [t.seed for t in drawn] == [0, 5, 6, 7][: 1 + seeds]
    assert plan.baseline_count(32, "package", seeds) == len(drawn)


def test_baselines_do_not_depend_on_how_losses_are_trained() -> None:
    usual, other = plan.baselines(experiment()), plan.baselines(experiment(settings={"lr": 0.5, "epochs": 9}))
    assert [t.id for t in usual] == [t.id for t in other]


def test_protocol_values_for_a_loss_are_used_and_the_users_are_stronger() -> None:
    protocol = dataclasses.replace(
        config.protocol("quick"), tuned={"emoji": {"group": Tuned({"lr": 5e-4, "anchors": 3}, "x")}}
    )
    group, triplet = plan.final(experiment(protocol=protocol), {})
    assert (group.lr, group.knobs["anchors"]) == (5e-4, 3)
    assert triplet.lr == protocol.settings["lr"]
    group, _ = plan.final(experiment(protocol=protocol, settings={"lr": 1.0}, knobs={"group": {"anchors": 0}}), {})
    assert (group.lr, group.knobs["anchors"]) == (1.0, 0)


@pytest.mark.parametrize("setting", ["samples_per_class", "classes_per_batch"])
def test_a_pair_loss_needs_two_images_of_a_class_and_two_classes(setting: str) -> None:
    asked = experiment(settings={setting: 1})
    with pytest.raises(UserError, match=rf"^{setting}=1: must be at least 2 for group, a pair loss"):
        plan.final(asked, {})
    in_protocol = dataclasses.replace(config.protocol("quick"), special={"emoji": {setting: 1}})
    with pytest.raises(UserError, match=f"^{setting}=1: "):
        plan.search(experiment(protocol=in_protocol, trials=1))
    with pytest.raises(UserError, match=f"^{setting}=1: "):
        plan.grid(experiment(grid={setting: (2, 1)}))
    others = tuple(config.loss(name) for name in ("proxy_nca", "softmax"))
    assert [getattr(t, setting) for t in plan.final(dataclasses.replace(asked, losses=others), {})] == [1, 1]
    assert plan.baselines(asked) == plan.baselines(experiment())


def test_a_protocol_value_for_an_unknown_knob_is_one_line() -> None:
    protocol = dataclasses.replace(config.protocol("quick"), tuned={"emoji": {"group": Tuned({"anchor": 3})}})
    with pytest.raises(UserError, match=r"tuned.emoji.group.*'anchor'; did you mean 'anchors'"):
        plan.final(experiment(protocol=protocol), {})


# --- configuration files ---
