"""Conditions of a run that its id does not cover."""

from dataclasses import replace
from typing import Any

from harness.analysis import conditions
from harness.spec import Result
from harness.tables.build import build
from tests.factories import USUAL, baseline, loss_row


def under(result: Result, **recorded: Any) -> Result:
    return replace(result, provenance={"device_type": "cpu", "threads": 1, "packages": {"torch": "2.15"}, **recorded})


TRIPLET, GROUP, PIXELS, NETWORK = (under(result) for result in USUAL)


def test_a_row_under_other_conditions_than_most_losses_is_footnoted() -> None:
    odd = under(loss_row("margin", "Margin", 0.8), threads=4, packages={"torch": "2.14"})
    rows = {row.label: row.notes for row in build([TRIPLET, GROUP, PIXELS, NETWORK, odd])[0].rows}
    assert rows.pop("Margin") == ("Run under other conditions: threads = 4 (usual: 1); torch = 2.14 (usual: 2.15).",)
    assert not any(rows.values())


def test_a_loss_with_many_seeds_does_not_outvote_the_others() -> None:
    many = [under(loss_row("margin", "Margin", 0.8, seed=seed), threads=4) for seed in range(5)]
    assert conditions.usual([*many, TRIPLET, GROUP])["threads"] == "1"


def test_devices_are_told_apart_and_on_a_gpu_the_threads_do_not_count() -> None:
    cuda = [under(run, device_type="cuda", threads=8) for run in (TRIPLET, GROUP)]
    usual = conditions.usual([*cuda, NETWORK])
    assert usual == {"device": "cuda", "torch": "2.15"}
    assert conditions.differences([NETWORK], usual) == ["device = cpu (usual: cuda)"]
    assert conditions.differences(cuda, usual) == []


def test_gpus_are_told_apart_by_their_model_and_processors_are_not() -> None:
    models = {name: {"device_type": "cuda", "device": f"NVIDIA {name}"} for name in ("A100", "T4")}
    alike = [under(run, **models["A100"]) for run in (TRIPLET, GROUP)]
    other = under(loss_row("margin", "Margin", 0.8), **models["T4"])
    rows = {row.label: row.notes for row in build([*alike, other])[0].rows}
    assert rows.pop("Margin") == ("Run under other conditions: device = NVIDIA T4 (usual: NVIDIA A100).",)
    assert not any(rows.values())
    second = under(loss_row("triplet", "Triplet", 0.6, seed=1), **models["T4"])
    rows = {row.label: row.notes for row in build([*alike, second])[0].rows}
    assert rows["Triplet"] == ("Run under other conditions: device = NVIDIA A100 (1 run), NVIDIA T4 (1 run).",)
    moved = under(TRIPLET, attempts=[*models.values()], **models["T4"])
    assert conditions.changed(moved) == ["device = NVIDIA A100 then NVIDIA T4"]
    processors = [under(run, device=name) for run, name in ((TRIPLET, "Xeon"), (GROUP, "EPYC"))]
    assert conditions.usual(processors)["device"] == "cpu"
    assert not any(row.notes for row in build(processors)[0].rows)


def test_raw_pixels_and_records_that_state_nothing_are_not_footnoted() -> None:
    four = [under(run, threads=4) for run in (TRIPLET, GROUP)]
    old = replace(baseline("x", 0.2), provenance={})
    assert conditions.differences([PIXELS, old], conditions.usual(four)) == []


def test_an_ensemble_of_mixed_networks_is_footnoted_like_its_row() -> None:
    seeds = [under(loss_row("group", "Group Loss", 0.7, seed=seed), threads=1 + seed) for seed in range(2)]
    joined = replace(seeds[0], ensemble=2, members=tuple(seed.id for seed in seeds))
    for row in build([*seeds, joined], "ensembles")[0].rows:
        assert row.notes == ("Run under other conditions: threads = 1 (1 run), 2 (1 run).",)


def test_other_images_under_the_same_fingerprint_are_footnoted_also_for_raw_pixels() -> None:
    first, second = ({"data_sha256": digit * 64} for digit in "ab")
    mine = [under(run, **first) for run in (TRIPLET, GROUP, NETWORK)]
    other = [under(loss_row("margin", "Margin", 0.8), **second), under(PIXELS, **second)]
    rows = {row.label: row.notes for row in build([*mine, *other])[0].rows}
    note = "Run under other conditions: images = bbbbbbbbbbbb (usual: aaaaaaaaaaaa)."
    assert {label for label, notes in rows.items() if note in notes} == {"Margin", "Raw pixels"}
    assert conditions.differences([replace(TRIPLET, provenance={})], conditions.usual(mine)) == []


def test_a_run_that_went_on_under_other_conditions_is_footnoted_whatever_the_others_have() -> None:
    attempts = [{"device_type": "cuda", "threads": 8}, {"device_type": "cpu", "threads": 2}]
    mixed = under(TRIPLET, device_type="cpu", threads=2, attempts=attempts)
    assert conditions.changed(mixed) == ["device = cuda then cpu"]  # on a GPU the threads hardly matter
    assert conditions.usual([mixed]) == {"threads": "2"}
    assert conditions.differences([mixed], conditions.usual([mixed])) == ["device = cuda then cpu"]
    assert conditions.differences([mixed], {"device": "cuda"}) == ["device = cuda then cpu (usual: cuda)"]
    assert conditions.changed(TRIPLET) == []
