"""The nouns: what a trial's name depends on, and what values a field takes."""

import dataclasses
import json
import subprocess
import sys
from typing import Annotated, Any, Literal

import pytest

from harness import config, plan
from harness.analysis.results import best
from harness.spec import SETTINGS, Experiment, Field, Result, Trial, UserError, unknown
from losses.base import AtLeast, AtMost
from tests.factories import a_result, a_trial


def test_the_id_is_the_same_in_another_process() -> None:
    code = "from tests.factories import a_trial; print(a_trial().id)"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == a_trial().id
    assert len(a_trial().id) == 12


OTHER: dict[str, Any] = {"drops": (3,), "dim": 16, "knobs": {"margin": 0.3}}


@pytest.mark.parametrize("name", [item.name for item in dataclasses.fields(Trial)])
def test_every_field_is_part_of_the_id(name: str) -> None:
    value = getattr(a_trial(), name)
    changed = OTHER.get(name, value + 1 if isinstance(value, int | float) else f"{value}x")
    assert dataclasses.replace(a_trial(), **{name: changed}).id != a_trial().id


def test_the_order_of_knobs_does_not_matter() -> None:
    assert a_trial(knobs={"a": 1, "b": 2}).id == a_trial(knobs={"b": 2, "a": 1}).id


def test_trial_and_result_survive_json() -> None:
    trial = a_trial(drops=(3, 5), dim=16)
    assert Trial.from_json(json.loads(json.dumps(trial.to_json()))) == trial
    result = a_result(trial)
    again = Result.from_json(json.loads(json.dumps(result.to_json())))
    assert again == result
    assert again.id == trial.id


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"schema": 99}, "schema 99"),
        ({"id": "000000000000"}, "hashes to"),
        ({"metrics": None}, "not a result"),
        ({"metrics": {"R@1": float("nan")}}, "finite"),
        ({"trial": {"loss": "x"}}, "not a trial"),
        ({"trial": []}, "not a"),
        ({"seconds": {}}, "not a result"),
        ({"trial": {**a_trial().to_json(), "knobs": None}}, "not a result"),
    ],
    ids=str,
)
def test_what_is_not_a_result_says_why(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Result.from_json({**a_result().to_json(), **change})


@pytest.mark.parametrize("data", [[], "x", 3, None, {}, {"schema": 1}])
def test_foreign_json_is_not_a_result(data: Any) -> None:
    with pytest.raises(ValueError, match="not a result"):
        Result.from_json(data)


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (int, "8", 8),
        (float, "2e-4", 2e-4),
        (float, "3", 3.0),
        (bool, "true", True),
        (bool, "False", False),
        (str, "x", "x"),
        (int | None, "none", None),
        (int | None, "4", 4),
        (tuple[int, ...], "30,50", (30, 50)),
        (tuple[int, ...], "", ()),
        (Literal["a", "b"], "b", "b"),
    ],
)
def test_fields_parse_what_a_user_writes(hint: Any, text: str, value: Any) -> None:
    parsed = Field.of("x", hint, None).parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("hint", "text", "allowed"),
    [
        (int, "abc", "an integer"),
        (int, "2.5", "an integer"),
        (int, "none", "an integer"),
        (float, "nan", "a number"),
        (float, "inf", "a number"),
        (bool, "maybe", "true or false"),
        (tuple[int, ...], "3,x", "a list of integers like 30,50"),
        (Literal["a", "b"], "c", "one of a, b"),
        (int | None, "x", "or none"),
    ],
)
def test_fields_refuse_with_what_is_allowed(hint: Any, text: str, allowed: str) -> None:
    with pytest.raises(UserError, match="must be") as refusal:
        Field.of("x", hint, None).parse(text)
    assert allowed in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_several_limits_of_a_knob_are_kept_and_told() -> None:
    field = Field.of("share", Annotated[float, AtLeast(0), AtMost(1)], 0.5)
    assert field.parse("1") == 1.0
    for text in ("-0.1", "1.1"):
        with pytest.raises(UserError, match=f"share={text}: must be a number >= 0 and <= 1"):
            field.parse(text)


def test_limits_are_kept() -> None:
    assert SETTINGS["epochs"].parse("0") == 0
    for name, text in (("epochs", "-1"), ("lr", "0"), ("lr", "-1e-3"), ("dim", "0"), ("weight_decay", "-1")):
        with pytest.raises(UserError, match=name):
            SETTINGS[name].parse(text)


def test_an_unknown_name_gets_the_nearest_and_all_that_are_known() -> None:
    assert str(unknown("loss", "grup", ["group", "triplet"])) == (
        "no loss named 'grup'; did you mean 'group'? Known: group, triplet"
    )
    assert "did you mean" not in str(unknown("loss", "zzz", ["group"]))


# --- planning ---


def experiment(**changes: Any) -> Experiment:
    losses = tuple(config.loss(name) for name in ("group", "triplet"))
    return Experiment(
        **{"dataset": config.dataset("emoji"), "protocol": config.protocol("quick"), "losses": losses, **changes}
    )


def test_a_protocols_values_for_any_dataset_hold_everywhere_and_a_datasets_own_are_stronger() -> None:
    protocol = dataclasses.replace(
        config.protocol("quick"),
        tuned={"any": {"group": {"bias": False, "anchors": 1}}, "emoji": {"group": {"anchors": 3, "source": "x"}}},
    )
    assert protocol.values("emoji", "group") == {"bias": False, "anchors": 3}
    assert protocol.values("photos", "group") == {"bias": False, "anchors": 1}
    assert protocol.values("photos", "triplet") == {}
    for name, knob, value in (("counted", "bias", False), ("released", "zero_diagonal", False)):
        assert config.protocol(name).values("photos", "group")[knob] == value


@pytest.mark.parametrize(("part", "value"), [("dataset", "../../x"), ("dataset", ".."), ("loss", "a/b"), ("loss", "")])
def test_a_record_cannot_name_a_folder_outside_the_store(part: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"not a trial: {part}="):
        Trial.from_json({**a_trial().to_json(), part: value})


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
    for name, (low, high) in protocol.search.items():
        assert all(low <= getattr(t, name) <= high for t in trials)


def test_what_the_user_sets_is_not_searched() -> None:
    asked = experiment(trials=4, settings={"lr": 1e-3}, knobs={"group": {"anchors": 1}})
    trials = [t for t in plan.search(asked) if t.loss == "group"]
    assert {t.lr for t in trials} == {1e-3}
    assert {t.knobs["anchors"] for t in trials} == {1}
    assert len({t.knobs["temperature"] for t in trials}) == 4


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


def test_the_values_of_a_grid_are_read_as_set_reads_them_and_count_once() -> None:
    losses = (config.loss("group"), config.loss("proxy_nca"))
    words = ["lr=2e-4,0.0002,1e-3", "dim=none,16", "group.bias=true,false,1", "proxy-nca.scale=2", "lr=1e-3,5"]
    assert config.grid(words, losses) == {
        "lr": (2e-4, 1e-3, 5.0),
        "dim": (None, 16),
        "group.bias": (True, False),
        "proxy_nca.scale": (2.0,),
    }


def test_a_loss_whose_search_failed_has_no_final_trial() -> None:
    asked = experiment(trials=1)
    chosen = chosen_values([a_result(t) for t in plan.search(asked) if t.loss == "group"])
    assert {t.loss for t in plan.final(asked, chosen)} == {"group"}


def test_more_seeds_keep_the_earlier_trials() -> None:
    one, three = plan.final(experiment(seeds=1), {}), plan.final(experiment(seeds=3), {})
    assert {t.id for t in one} < {t.id for t in three}


def test_every_loss_of_an_experiment_shares_all_but_its_own_values() -> None:
    group, triplet = plan.final(experiment(), {})
    own = {"loss", "loss_version", "knobs", *config.TUNABLE}
    differing = {name for name, value in group.to_json().items() if triplet.to_json()[name] != value}
    assert differing <= own


def test_baselines_are_one_pixel_trial_and_one_untrained_network() -> None:
    pixels, network = plan.baselines(experiment(seeds=3))
    assert (pixels.loss, pixels.backbone, pixels.epochs) == ("none", "pixels", 0)
    assert (network.loss, network.backbone, network.epochs) == ("none", "tf_efficientnet_lite0", 0)


def test_an_untrained_network_with_a_random_part_is_measured_for_each_seed() -> None:
    for settings in ({"dim": 32}, {"weights": "none"}):
        assert [t.seed for t in plan.baselines(experiment(seeds=3, settings=settings))] == [0, 0, 1, 2]


def test_baselines_do_not_depend_on_how_losses_are_trained() -> None:
    usual, other = plan.baselines(experiment()), plan.baselines(experiment(settings={"lr": 0.5, "epochs": 9}))
    assert [t.id for t in usual] == [t.id for t in other]


def test_protocol_values_for_a_loss_are_used_and_the_users_are_stronger() -> None:
    protocol = dataclasses.replace(
        config.protocol("quick"), tuned={"emoji": {"group": {"lr": 5e-4, "anchors": 3, "source": "x"}}}
    )
    group, triplet = plan.final(experiment(protocol=protocol), {})
    assert (group.lr, group.knobs["anchors"]) == (5e-4, 3)
    assert triplet.lr == protocol.settings["lr"]
    group, _ = plan.final(experiment(protocol=protocol, settings={"lr": 1.0}, knobs={"group": {"anchors": 0}}), {})
    assert (group.lr, group.knobs["anchors"]) == (1.0, 0)


def test_a_protocol_value_for_an_unknown_knob_is_one_line() -> None:
    protocol = dataclasses.replace(config.protocol("quick"), tuned={"emoji": {"group": {"anchor": 3}}})
    with pytest.raises(UserError, match=r"tuned.emoji.group.*'anchor'; did you mean 'anchors'"):
        plan.final(experiment(protocol=protocol), {})


# --- configuration files ---


@pytest.mark.parametrize("name", config.names("datasets"))
def test_every_dataset_file_reads_and_names_a_protocol_that_exists(name: str) -> None:
    assert config.dataset(name).protocol in config.names("protocols")


@pytest.mark.parametrize("name", config.names("protocols"))
def test_every_protocol_file_reads_and_its_values_fit_their_losses(name: str) -> None:
    protocol = config.protocol(name)
    for dataset, by_loss in protocol.tuned.items():
        name = "emoji" if dataset == "any" else dataset
        asked = Experiment(config.dataset(name), protocol, tuple(config.loss(loss) for loss in by_loss))
        for trial in plan.final(asked, {}):
            for knob, value in trial.knobs.items():
                config.loss(trial.loss).knobs[knob].check(value)
            assert Trial.from_json(json.loads(json.dumps(trial.to_json()))) == trial


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("epochs = 1", "epoch = 1", r"protocols/tiny.toml \[train\].*'epoch'; did you mean 'epochs'"),
        ("epochs = 1", "", r"missing epochs"),
        ("epochs = 1", 'epochs = "many"', r"epochs=many: must be an integer >= 0"),
        ("lr = 1e-3", "lr = -1.0", r"lr=-1.0: must be a number > 0"),
        ("epochs = 1", "epochs = = 1", r"tiny.toml"),
        ("select", "slect", r"'slect'; did you mean 'select'"),
        ('select = "R@1"', 'select = "recall"', r"select=recall: must be a metric"),
        ("lr = [1e-4, 1e-2]", "lr = [1]", r"\[search\] lr=\[1\]: allowed is \[low, high\]"),
        ("folds = 1", "folds = 9", r"tiny.toml: folds=9: must be one of 1, 2, 3, 4"),
    ],
)
def test_a_broken_protocol_file_is_one_line_with_its_name(small: Any, old: str, new: str, complaint: str) -> None:
    file = small / "protocols" / "tiny.toml"
    file.write_text(file.read_text().replace(f"\n{old}", f"\n{new}", 1))
    with pytest.raises(UserError, match=complaint):
        config.protocol("tiny")


@pytest.mark.parametrize(
    "damage",
    [
        {"metrics": {"R@1": 0.5, "R@foo": 0.5}},
        {"metrics": {"NMI": 0.5}},
        {"metrics": {"R@1": "0.5"}},
        {"provenance": None},
        {"provenance": {"threads": "two"}},
        {"conventions": None},
        {"artifacts": []},
        {"title": None},
        {"curve": [{"epoch": 1, "loss": 0.5, "images": None}]},
        {"curve": [{"loss": 0.5}]},
        {"parameters": "many"},
        {"seconds": {"total": "long"}},
    ],
    ids=str,
)
def test_a_damaged_record_is_no_result_rather_than_an_error_later(damage: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a result of this harness"):
        Result.from_json({**json.loads(json.dumps(a_result().to_json())), **damage})
