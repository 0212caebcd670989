"""`harness compare`: which results are meant, and what is said about them with one, two and more seeds."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.spec import Result
from harness.store import Store
from tests.conftest import Harness
from tests.factories import a_result, a_trial, an_experiment, answered, baseline


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


def put(store: Store, *results: Result) -> None:
    for result in results:
        store.put(result)


def seeds(name: str, level: float, count: int, **changes: object) -> list[Result]:
    return [answered(name, seed, level, **changes) for seed in range(count)]


def row(text: str, metric: str) -> list[str]:
    """The columns of a metric; an interval is three words and a count too."""
    return next(line for line in text.splitlines() if line.startswith(f"{metric} ")).split()


def words(text: str) -> str:
    """Without the breaks of lines."""
    return " ".join(text.split())


def test_three_seeds_give_differences_with_interval_and_p(store: Store, harness: Harness) -> None:
    put(store, *seeds("triplet", 0.3, 3), *seeds("group", 0.7, 3))
    said = harness("compare", "group", "triplet")
    assert said.code == 0
    _, a, b, gap, low, _, high, p, ahead, _, pairs, needed = row(said.out, "R@1")
    assert float(gap) == pytest.approx(float(a) - float(b), abs=0.11)
    assert float(low) < float(gap) < float(high)
    assert float(p) < 0.05
    assert (ahead, pairs) == ("9", "9")
    assert int(needed) <= 3
    assert row(said.out, "NMI")[4:6] == ["-", "-"]  # no mean over queries
    assert "over test classes and 3 seeds, in pairs" in words(said.out)
    assert "class_" in said.out
    assert len(said.out.splitlines()) <= 24  # one screen
    assert max(map(len, said.out.splitlines())) <= 80
    other = harness("compare", "triplet", "group").out
    assert row(other, "R@1")[3] == gap.replace("+", "-")


def test_losses_that_are_alike_are_not_told_apart(store: Store, harness: Harness) -> None:
    put(store, *seeds("triplet", 0.5, 3), *seeds("group", 0.5, 3))
    said = harness("compare", "group", "triplet")
    _, _, _, _, low, _, high, p, *_ = row(said.out, "R@1")
    assert float(low) < 0 < float(high)
    assert float(p) > 0.05


def test_two_seeds_show_both_values_and_no_interval(store: Store, harness: Harness) -> None:
    put(store, *seeds("triplet", 0.3, 2), *seeds("group", 0.7, 2))
    said = harness("compare", "group", "triplet")
    first = [f"{100 * result.metrics['R@1']:.1f}" for result in seeds("group", 0.7, 2)]
    assert ", ".join(first) in said.out
    assert row(said.out, "R@1")[-3:] == ["4", "of", "4"]
    assert "95 % interval" not in said.out  # nor any other column that would say nothing
    assert max(map(len, said.out.splitlines())) <= 80
    assert "Two seeds are too few for an interval" in words(said.out)


def test_one_seed_gives_an_interval_over_classes_and_no_p(store: Store, harness: Harness) -> None:
    put(store, answered("triplet", level=0.3), answered("group", level=0.7))
    said = harness("compare", "group", "triplet")
    assert row(said.out, "R@1")[-3:] == ["1", "of", "1"]
    assert " p " not in said.out
    assert " to " in next(line for line in said.out.splitlines() if line.startswith("R@1"))
    assert "They leave out the randomness of training, so nothing is tested." in words(said.out)


def test_with_a_single_seed_in_common_all_runs_count(store: Store, harness: Harness) -> None:
    """In the means as in the interval around their difference."""
    three = seeds("group", 0.7, 3)
    put(store, *three, answered("triplet", level=0.3))
    found = row(harness("compare", "group", "triplet").out, "R@1")
    mean = sum(run.metrics["R@1"] for run in three) / 3
    assert len({run.metrics["R@1"] for run in three}) == 3
    assert found[1] == f"{100 * mean:.1f}" != f"{100 * three[0].metrics['R@1']:.1f}"


def test_a_baseline_that_was_measured_once_is_compared_with_every_seed(store: Store, harness: Harness) -> None:
    pixels = replace(answered("none", level=0.2), trial=baseline("pixels", 0.2).trial, title="Raw pixels")
    put(store, *seeds("group", 0.7, 3), pixels)
    said = harness("compare", "group", "none")
    assert "Raw pixels" in said.out
    assert "measured once" in said.out
    assert "3 of 3" in said.out
    assert "over test classes and 3 seeds" in words(said.out)


def test_an_ensemble_is_compared_over_classes_alone(store: Store, harness: Harness) -> None:
    runs = seeds("group", 0.6, 3)
    joined = replace(answered("group", 7, 0.8), trial=runs[0].trial, ensemble=2, members=tuple(r.id for r in runs))
    put(store, *runs, joined)
    said = harness("compare", joined.id, "group")
    assert "Group, 2-ensemble" in said.out
    assert "Intervals: over test classes alone" in said.out


def test_an_id_stands_for_all_seeds_of_its_configuration(store: Store, harness: Harness) -> None:
    near, far = seeds("triplet", 0.3, 3), seeds("triplet", 0.7, 3, knobs={"margin": 0.5})
    put(store, *near, *far)
    said = harness("compare", far[1].id[:8], near[2].id)
    assert row(said.out, "R@1")[-4:-1] == ["9", "of", "9"]
    put(store, *seeds("triplet", 0.5, 1, knobs={"margin": 0.9}), *seeds("group", 0.5, 1))
    said = harness("compare", "triplet", "group")
    assert ", 3 seeds, triplet.margin=0.5)" in said.err
    assert ", 1 seed, triplet.margin=0.9)" in said.err


def test_configurations_on_several_copies_of_a_dataset_are_told_apart(store: Store, harness: Harness) -> None:
    for fingerprint in ("130c5694ed35", "0123456789ab"):
        for loss in ("triplet", "group"):
            put(store, *seeds(loss, 0.5, 3, dataset="cub", fingerprint=fingerprint))
    said = harness("compare", "triplet", "group")
    assert said.code == 2
    assert ", 3 seeds, short side 256 px)" in said.err
    assert ", 3 seeds, images 0123456789ab, version 1)" in said.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("triplet", "margin"), "no loss with final runs, or id, named 'margin'"),
        (("triplet", "group"), "choose with --dataset, --protocol or --backbone one of emoji, cpu, "),
        (("triplet", "triplet"), "runs of one configuration; nothing to compare"),
        (("triplet", "group", "--protocol", "cpu"), "group: several configurations; name one by its id: "),
        (("triplet", "arcface"), "no final runs of both on one dataset under one protocol and backbone"),
    ],
)
def test_what_is_not_exactly_two_is_one_line(store: Store, harness: Harness, words: tuple[str, ...], said: str) -> None:
    put(store, answered("triplet"), answered("group"), answered("arcface", dataset="cub"))
    put(store, answered("triplet", protocol="cpu"), answered("group", protocol="cpu"))
    put(store, answered("group", protocol="cpu", knobs={"temperature": 3.0}))
    words = (*words, "--protocol", "quick") if words == ("triplet", "triplet") else words
    answer = harness("compare", *words)
    assert answer.code == 2
    assert said in answer.err
    assert len(answer.err.splitlines()) == 1


def test_older_and_damaged_results_show_their_values_and_say_why_nothing_is_tested(
    store: Store, harness: Harness
) -> None:
    put(store, *seeds("triplet", 0.3, 3), *seeds("group", 0.7, 3), a_result(a_trial(loss="margin")))
    said = harness("compare", "group", "margin")
    assert said.code == 0
    assert "Not tested: the values per query are not stored." in said.out
    file = store.path(answered("group").trial).with_suffix(".npz")
    file.write_bytes(file.read_bytes()[:-1])
    said = harness("compare", "group", "triplet")
    assert said.code == 0
    assert f"Not tested: runs/emoji/group/{file.name}: damaged: its checksum is not the record's." in words(said.out)
    assert row(said.out, "R@1")[4:] == ["9", "of", "9"]


def test_results_on_other_queries_are_not_tested(store: Store, harness: Harness) -> None:
    put(store, *seeds("triplet", 0.3, 3), *seeds("group", 0.7, 3, classes=19))
    assert "Not tested: they answered different queries." in harness("compare", "group", "triplet").out


def test_settings_that_differ_are_said(store: Store, harness: Harness) -> None:
    put(store, *seeds("triplet", 0.3, 3), *seeds("group", 0.7, 3, epochs=9))
    usual = a_trial().epochs
    assert f"Trained differently: epochs = 9 (A), {usual} (B)" in harness("compare", "group", "triplet").out


def test_conditions_budgets_and_values_that_differ_are_said(store: Store, harness: Harness) -> None:
    """What tables footnote."""

    def on(threads: int, *results: Result) -> list[Result]:
        return [replace(run, provenance={"device_type": "cpu", "threads": threads}) for run in results]

    first, second = on(1, *seeds("triplet", 0.3, 3)), on(2, *seeds("group", 0.7, 3))
    search = [replace(run, queries={}, per_query=b"") for run in seeds("group", 0.7, 2, fold="val0")]
    search = on(1, *(replace(run, trial=replace(run.trial, seed=0, lr=0.1 + run.trial.seed)) for run in search))
    put(store, *first, *second, *search)
    store.put_experiment(an_experiment(final=tuple(run.id for run in first), settings={"lr": 1.0}))
    ids = {"search": tuple(run.id for run in search), "final": tuple(run.id for run in second)}
    store.put_experiment(an_experiment(trials=2, **ids))
    said = words(harness("compare", "group", "triplet").out)
    assert "Run under other conditions: threads = 2 (A), 1 (B)" in said
    assert "Values: 2 random-search trials (A), no random search (B)" in said
    assert "B: Set by hand: lr = " in said
    assert "A: " not in said
    put(store, replace(baseline(a_trial().backbone, 0.6), per_query=b"", queries={}))
    assert "B: Below the untrained network in R@1." in words(harness("compare", "group", "triplet").out)


def test_losses_that_were_treated_alike_have_nothing_to_say(store: Store, harness: Harness) -> None:
    put(store, *seeds("triplet", 0.3, 3), *seeds("group", 0.7, 3))
    said = harness("compare", "group", "triplet").out.splitlines()
    assert [line[:3] for line in said[1:4]] == ["A  ", "B  ", ""]
