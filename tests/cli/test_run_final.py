"""`harness run`: weights, curves and ensembles of final runs."""

import json
from pathlib import Path

import pytest

from tests.cli.records import stored
from tests.conftest import Harness


@pytest.mark.parametrize(("keep", "kept"), [("best", 1), ("all", 3), ("none", 0)])
def test_keep_weights_says_which_stay(small: Path, harness: Harness, tmp_path: Path, keep: str, kept: int) -> None:
    said = harness("run", "--losses", "triplet", "--dataset", "blobs", "--seeds", "3", "--keep-weights", keep)
    assert said.code == 0
    weights = list((tmp_path / "results" / "artifacts").glob("weights/*.safetensors"))
    assert len(weights) == kept
    if keep == "best":
        records = [json.loads(file.read_text()) for file in stored(tmp_path / "results")]
        final = {r["id"]: r["curve"][-1]["loss"] for r in records if r["trial"]["loss"] == "triplet"}
        assert weights[0].stem.split("-")[0] == min(final, key=lambda id: final[id])


def test_weights_that_were_kept_on_purpose_stay(small: Path, harness: Harness, tmp_path: Path) -> None:
    words = ("run", "--losses", "triplet", "--dataset", "blobs", "--seeds", "3")
    harness(*words, "--keep-weights", "all")
    harness(*words, "--ensemble", "2")
    assert len(list((tmp_path / "results" / "artifacts").glob("weights/*.safetensors"))) == 3


def test_curves_are_drawn_of_final_runs_alone_and_of_stored_ones_that_lack_them(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    words = ("run", "--losses", "triplet", "--dataset", "blobs", "--trials", "2", "--seeds", "2", "--set", "epochs=2")

    def final() -> dict[str, dict]:
        records = [json.loads(file.read_text()) for file in stored(tmp_path / "results")]
        assert not any("R@1" in row for one in records if one["trial"]["fold"] != "test" for row in one["curve"])
        return {one["id"]: one for one in records if one["trial"]["fold"] == "test" and one["trial"]["loss"] != "none"}

    first, plain = harness(*words, "--ensemble", "2"), final()
    assert "2 to run" in harness(*words, "--dry-run", "--curves").out
    said = harness(*words, "--ensemble", "2", "--curves")
    assert said.code == 0
    assert "2 stored final runs have no curves: trained again" in said.err
    assert "[1/3] triplet-blobs-test-" in said.err  # no baseline, no search trial
    assert "[2/3] triplet-blobs-test-" in said.err
    assert "[3/3] triplet-blobs-2-ensemble-" in said.err
    tables = [text.split("Budget")[0] for text in (said.out, first.out)]  # how long it took differs
    assert tables[0] == tables[1]  # to the bit the same networks
    drawn = final()
    assert set(drawn) == set(plain)
    for id, one in drawn.items():
        assert one["metrics"] == plain[id]["metrics"]
        assert all({"R@1", "train R@1"} <= set(row) for row in one["curve"])
        assert len(one["curve"]) == (0 if one["ensemble"] else 2)
    for again in ((*words, "--curves"), words):
        assert "epoch" not in harness(*again).err
    assert final() == drawn
    assert "nothing to run" in harness(*words, "--dry-run", "--curves").out
    single = next(id for id, one in drawn.items() if not one["ensemble"])
    assert "--curves" in harness("show", single).out.partition("Reproduce with:")[2].split("\n\n")[0]


def test_ensembles_stand_below_their_loss_and_are_stored(small: Path, harness: Harness, tmp_path: Path) -> None:
    words = ("run", "--losses", "triplet", "--dataset", "blobs", "--seeds", "3", "--ensemble", "2,3")
    said = harness(*words)
    assert "| Triplet, 2-ensemble |" in said.out
    assert "| Triplet, 3-ensemble |" in said.out
    assert harness(*words).out == said.out
    # a fourth seed makes new ensembles; the table shows those drawn from the most networks
    more = harness("run", "--losses", "triplet", "--dataset", "blobs", "--seeds", "4", "--ensemble", "2")
    assert more.out.count("2-ensemble") == 1
    assert harness("tables", "--table", "ensembles").out.count("2-ensemble") == 1


def test_removing_or_replacing_a_member_removes_its_ensembles(small: Path, harness: Harness, tmp_path: Path) -> None:
    words = ("run", "--losses", "triplet", "--dataset", "blobs", "--seeds", "2")
    harness(*words, "--ensemble", "2")
    assert "2-ensemble" in harness("tables", "--table", "all").out
    assert "ensemble" in harness("tables", "--format", "csv").out.splitlines()[0]
    records = [json.loads(file.read_text()) for file in stored(tmp_path / "results")]
    member = next(r["id"] for r in records if r["trial"]["loss"] == "triplet" and not r["ensemble"])
    harness("rm", member)
    assert "2-ensemble" not in harness("tables", "--table", "all").out
    harness(*words, "--ensemble", "2")
    harness(*words, "--rerun")
    assert "2-ensemble" not in harness("tables", "--table", "all").out
