"""`harness eval`: a stored run measured again, its record beside the run's own."""

import json
from pathlib import Path

import pytest

from tests.conftest import Harness

RUN = ("run", "--losses", "triplet", "--dataset", "blobs")


@pytest.fixture
def stored(small: Path, harness: Harness, tmp_path: Path) -> Path:
    """The record of a final run."""
    assert harness(*RUN).code == 0
    (file,) = (tmp_path / "results" / "runs" / "blobs" / "triplet").glob("*.json")
    return file


@pytest.mark.parametrize("recipe", ["ours", "faiss", "sklearn"])
def test_a_run_is_measured_again_and_stored_beside_itself(stored: Path, harness: Harness, recipe: str) -> None:
    before = stored.read_bytes()
    said = harness("eval", stored.stem[:8], "--nmi-recipe", recipe)
    assert said.code == 0
    assert stored.read_bytes() == before
    (other,) = [file for file in stored.parent.glob("*.json") if file != stored]
    old, new = json.loads(before), json.loads(other.read_text())
    assert new["recipe"] == recipe
    assert new["members"] == [stored.stem]
    assert {k: v for k, v in new["metrics"].items() if k != "NMI"} == {
        k: v for k, v in old["metrics"].items() if k != "NMI"
    }
    words = {"ours": "k-means++ start", "faiss": "random start, 20 iterations", "sklearn": "scikit-learn's KMeans"}
    assert words[recipe] in new["conventions"]["NMI"]
    assert words[recipe] in said.out
    if recipe == "ours":
        assert new["metrics"]["NMI"] == old["metrics"]["NMI"]
    assert harness("eval", stored.stem, "--nmi-recipe", recipe).out.split()[0] == other.stem  # the same record again


def test_tables_show_one_recipe_at_a_time_and_the_run_is_not_repeated(stored: Path, harness: Harness) -> None:
    table = harness("tables").out
    harness("eval", stored.stem, "--nmi-recipe", "sklearn")
    assert harness("tables").out == table
    other = harness("tables", "--nmi-recipe", "sklearn").out
    assert "| Triplet" in other
    assert "Untrained" not in other
    assert harness(*RUN).err == ""
    assert "triplet (sklearn)" in harness("ls", "runs").out
    assert harness("tables", "--nmi-recipe", "faiss").code == 2


def test_removing_the_run_removes_what_was_measured_of_it(stored: Path, harness: Harness) -> None:
    harness("eval", stored.stem, "--nmi-recipe", "faiss")
    assert harness("rm", stored.stem).code == 0
    assert not list(stored.parent.glob("*.json"))


def test_what_cannot_be_measured_again_says_why(small: Path, harness: Harness, tmp_path: Path) -> None:
    assert harness(*RUN, "--seeds", "2", "--ensemble", "2").code == 0
    records = {file.stem: json.loads(file.read_text()) for file in (tmp_path / "results").glob("runs/*/*/*.json")}
    (joined,) = [id for id, one in records.items() if one["ensemble"]]
    pixels = next(id for id, one in records.items() if one["trial"]["backbone"] == "pixels")
    for id, complaint in (
        (joined, "has no embeddings of its own"),
        (pixels, "the embeddings of"),
        ("123abc", "no result"),
    ):
        said = harness("eval", id)
        assert said.code == 2
        assert complaint in said.err
        assert said.err.count("\n") == 1
    assert harness("eval", joined, "--nmi-recipe", "best").code == 2


def test_an_unknown_recipe_is_one_line_and_help_names_those_there_are(stored: Path, harness: Harness) -> None:
    from harness.evaluation.clustering import RECIPES

    said = harness("eval", stored.stem, "--nmi-recipe", "sklaern")
    assert said.code == 2
    assert "no NMI recipe named 'sklaern'; did you mean 'sklearn'?" in said.err
    help = harness("eval", "--help").out
    assert all(name in help for name in RECIPES)
