"""Configuration files into nouns, and mistakes in them."""

import dataclasses
import json
from pathlib import Path

import pytest

from harness import config, plan
from harness.assignments import grid_values
from harness.spec import Experiment, Trial, Tuned, UserError
from losses.space import Range, Rates


def test_a_protocols_values_for_any_dataset_hold_everywhere_and_a_datasets_own_are_stronger() -> None:
    protocol = dataclasses.replace(
        config.protocol("quick"),
        tuned={
            "any": {"group": Tuned({"bias": False, "anchors": 1})},
            "emoji": {"group": Tuned({"anchors": 3}, source="x")},
        },
    )
    assert protocol.values("emoji", "group") == {"bias": False, "anchors": 3}
    assert protocol.values("photos", "group") == {"bias": False, "anchors": 1}
    assert protocol.values("photos", "triplet") == {}
    for name, knob, value in (("counted", "bias", False), ("released", "zero_diagonal", False)):
        assert config.protocol(name).values("photos", "group")[knob] == value


def test_values_that_a_search_found_say_by_how_many_trials_and_with_which_settings(small: Path) -> None:
    """What the searches of all losses had in common is said once; a loss's own is stronger."""
    text = """
like = "tiny"
[tuned.blobs.found_with]
dim = "none"
epochs = 4
lr = [0.1, 0.2]
[tuned.blobs.group]
anchors = 1
trials = 10
source = "search"
[tuned.blobs.triplet]
margin = 0.3
trials = 3
found_with = { dim = 32, lr = 0.5 }
[tuned.any.triplet]
margin = 0.2
source = "published"
"""
    (small / "protocols" / "found.toml").write_text(text)
    found = config.protocol("found")
    assert found.tuned["blobs"] == {
        "group": Tuned({"anchors": 1}, "search", 10, {"dim": None, "epochs": 4, "lr": (0.1, 0.2)}),
        "triplet": Tuned({"margin": 0.3}, "", 3, {"dim": 32, "epochs": 4, "lr": 0.5}),
    }
    assert found.tuned["any"] == {"triplet": Tuned({"margin": 0.2}, "published")}
    assert found.values("blobs", "triplet") == {"margin": 0.3}


def test_every_value_of_quick_says_which_search_found_it() -> None:
    for tuned in config.protocol("quick").tuned["emoji"].values():
        assert tuned.trials >= 3
        assert tuned.found_with["warmup_epochs"] == 0  # the searches are older than the warm-up


def test_the_values_of_a_grid_are_read_as_set_reads_them_and_count_once() -> None:
    losses = (config.loss("group"), config.loss("proxy_nca"))
    words = ["lr=2e-4,0.0002,1e-3", "dim=none,16", "group.bias=true,false,1", "proxy-nca.scale=2", "lr=1e-3,5"]
    assert grid_values(words, losses) == {
        "lr": (2e-4, 1e-3, 5.0),
        "dim": (None, 16),
        "group.bias": (True, False),
        "proxy_nca.scale": (2.0,),
    }


@pytest.mark.parametrize("name", ["paper", "released", "counted"])
def test_the_papers_protocols_have_what_methods_published_for_a_dataset(name: str) -> None:
    methods = (config.loss("hdc"), config.loss("divide_conquer"))
    found = {}
    for dataset in ("cub", "cars", "sop"):
        hdc, divided = plan.final(Experiment(config.dataset(dataset), config.protocol(name), methods), {})
        found[dataset] = (hdc.knobs["weights"], divided.knobs["clusters"])
    assert found == {"cub": ("1,1,2", 4), "cars": ("1,2,3", 4), "sop": ("1,1,1", 8)}


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
        ("lr = [1e-4, 1e-2]", "lr = [1]", r"\[search\] lr=\[1\]: must be \[low, high\]"),
        ("lr = [1e-4, 1e-2]", "lr = {absolute = [1, 2]}", r"\[search\] lr=.*: must be \[low, high\]"),
        ("lr = [1e-4, 1e-2]", "lr_factor = {absolut = [1, 2]}", r"lr_factor: .*did you mean 'absolute'"),
        ("lr = [1e-4, 1e-2]", "lr_factor = {absolute = [2, 1]}", r"lr_factor.absolute=\[2, 1\]: must be \[low, high\]"),
        ("folds = 1", "folds = 9", r"tiny.toml: folds=9: must be one of 1, 2, 3, 4"),
        ("[search]", "[dataset.blob]\ncrop = 3\n[search]", r"\[dataset.blob\]: no dataset.*did you mean 'blobs'"),
        ("[search]", "[tuned.blob.group]\n[search]", r"\[tuned.blob\]: no dataset.*did you mean 'blobs'"),
        ("[search]", "[tuned.any.grup]\n[search]", r"\[tuned.any.grup\]: no loss.*did you mean 'group'"),
        ("[search]", "[tuned]\nany = 3\n[search]", r"\[tuned.any\]: must be a table"),
        ("[search]", "[tuned.any]\ngroup = 3\n[search]", r"\[tuned.any\]: must be a table of tables"),
        (
            "[search]",
            "[tuned.any.group]\ntrials = 2.5\n[search]",
            r"\[tuned.any.group\]: trials=2.5: must be an integer",
        ),
        ("[search]", "[tuned.any.group]\ntrials = 3\n[search]", r"\[tuned.any.group\]: trials=3: needs found_with"),
        ("[search]", "[tuned.any.group]\nfound_with = {dim = 3}\n[search]", r"found_with: .*so it needs trials"),
        ("[search]", "[tuned.any.found_with]\nepoch = 3\n[search]", r"found_with\]: .*did you mean 'epochs'"),
        ("[search]", "[tuned.any.found_with]\nlr = [3, 1]\n[search]", r"lr=\[3, 1\]: must be \[low, high\]"),
        ("[search]", "[tuned.any]\nfound_with = 3\n[search]", r"\[tuned.any\]: must be a table of tables"),
        ("folds = 1", 'folds = 1\nlike = "tinny"', r"tiny.toml: like=tinny: no protocol.*did you mean 'tiny'"),
        ("folds = 1", 'folds = 1\nlike = "tiny"', r"refer to each other in a circle"),
    ],
)
def test_a_broken_protocol_file_is_one_line_with_its_name(small: Path, old: str, new: str, complaint: str) -> None:
    file = small / "protocols" / "tiny.toml"
    file.write_text(file.read_text().replace(f"\n{old}", f"\n{new}", 1))
    with pytest.raises(UserError, match=complaint):
        config.protocol("tiny")


def test_a_table_that_is_a_number_is_one_line(small: Path) -> None:
    file = small / "protocols" / "tiny.toml"
    file.write_text('title = "Tiny"\nsource = "tests"\nselect = "R@1"\nfolds = 1\ntrain = 3\nsearch = {}\n')
    with pytest.raises(UserError, match=r"tiny.toml: train=3: must be a table, \[train\]"):
        config.protocol("tiny")


def test_a_protocol_that_is_like_another_states_only_what_differs(small: Path) -> None:
    text = """
like = "tiny"
title = "Tinier"
[train]
crop = 16
[dataset.blobs]
epochs = 2
[tuned.any.group]
anchors = 1
"""
    (small / "protocols" / "tinier.toml").write_text(text)
    tiny, tinier = config.protocol("tiny"), config.protocol("tinier")
    assert tinier.settings == {**tiny.settings, "crop": 16}
    assert (tinier.title, tinier.source, tinier.select, tinier.search) == ("Tinier", "tests", "R@1", tiny.search)
    assert tinier.shared("blobs")["epochs"] == 2
    assert tinier.values("blobs", "group") == {"anchors": 1}


def test_a_protocol_may_train_small_classes_differently(small: Path) -> None:
    """Below 10 images per training class, on average; what it says of one dataset is stronger."""
    text = """
like = "tiny"
[few_images]
below = 10
epochs = 7
samples_per_class = 5
[dataset.blobs]
samples_per_class = 2
"""
    (small / "protocols" / "few.toml").write_text(text)
    few = config.protocol("few")
    for images_per_class, epochs in ((9.9, 7), (10.0, few.settings["epochs"]), (float("inf"), few.settings["epochs"])):
        assert few.shared("mine", images_per_class)["epochs"] == epochs
    assert few.shared("mine", 5)["samples_per_class"] == 5
    assert few.shared("blobs", 5)["samples_per_class"] == 2
    blobs = config.dataset("blobs")  # 72 images of 12 classes
    assert blobs.images_per_class == 6
    assert dataclasses.replace(blobs, train_classes=0, train_images=0).images_per_class == float("inf")
    (trial,) = plan.final(Experiment(blobs, few, (config.loss("triplet"),)), {})
    assert (trial.epochs, trial.samples_per_class) == (7, 2)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("epochs = 7", r"\[few_images\]: missing below"),
        ("below = 0", r"\[few_images\]: below=0: must be an integer > 0"),
        ("below = 5\nepoch = 7", r"\[few_images\]: .*epoch.*did you mean 'epochs'"),
        ("below = 5\nepochs = -1", r"\[few_images\]: epochs=-1: must be"),
    ],
)
def test_a_mistake_in_few_images_is_named(small: Path, table: str, message: str) -> None:
    (small / "protocols" / "few.toml").write_text(f'like = "tiny"\n[few_images]\n{table}\n')
    with pytest.raises(UserError, match=message):
        config.protocol("few")


def test_tables_of_a_protocol_are_merged_key_by_key(small: Path) -> None:
    first = (small / "protocols" / "tiny.toml").read_text() + "[tuned.blobs.group]\nanchors = 1\ntemperature = 5.0\n"
    (small / "protocols" / "tiny.toml").write_text(first)
    second = 'like = "tiny"\n[search]\nweight_decay = [1e-6, 1e-2]\n[tuned.blobs.group]\nanchors = 2\n'
    (small / "protocols" / "second.toml").write_text(second)
    (small / "protocols" / "third.toml").write_text('like = "second"\nfolds = 2\n')
    third = config.protocol("third")
    assert third.values("blobs", "group") == {"anchors": 2, "temperature": 5.0}
    assert third.search == {"lr": Range(1e-4, 1e-2, log=True), "weight_decay": Range(1e-6, 1e-2, log=True)}
    assert third.folds == 2


def test_rates_of_a_loss_are_searched_relative_to_the_heads_or_in_absolute_terms(small: Path) -> None:
    for name, text in (("first", "[1, 100]"), ("second", "{ absolute = [1e-6, 1] }")):
        (small / "protocols" / f"{name}.toml").write_text(f'like = "tiny"\n[search]\nlr_factor = {text}\n')
    assert config.protocol("first").search["lr_factor"] == Range(1.0, 100.0, log=True)
    assert config.protocol("second").search["lr_factor"] == Rates(1e-6, 1.0)
    (small / "protocols" / "third.toml").write_text('like = "second"\n[search]\nlr_factor = [1, 2]\n')
    assert config.protocol("third").search["lr_factor"] == Range(1.0, 2.0, log=True)


def test_counted_is_the_papers_protocol_with_the_network_whose_parameters_it_prints() -> None:
    paper, counted = config.protocol("paper"), config.protocol("counted")
    assert counted.settings == {**paper.settings, "dim": 512}
    assert counted.special == paper.special
    for dataset in ("cub", "cars", "sop"):
        assert counted.values(dataset, "group") == {**paper.values(dataset, "group"), "bias": False}
