"""`harness import`: another machine's results."""

from pathlib import Path

from tests.cli.records import stored
from tests.conftest import Harness


def test_import_merges_another_store(small: Path, harness: Harness, tmp_path: Path) -> None:
    other = tmp_path / "other"
    harness("run", "--losses", "triplet", "--dataset", "blobs", "--results", str(other))
    harness("run", "--losses", "none", "--dataset", "blobs")
    assert harness("import", str(other)).out == "1 imported, 2 already here\n"
    assert harness("run", "--losses", "triplet", "--dataset", "blobs").err == ""
    stored(other)[0].write_text("{")
    said = harness("import", str(other))
    assert said.code == 1
    assert str(stored(other)[0]) in said.err


def test_import_carries_the_values_of_each_query(small: Path, harness: Harness, tmp_path: Path) -> None:
    other = tmp_path / "other"
    harness("run", "--losses", "triplet", "--dataset", "blobs", "--results", str(other))
    harness("import", str(other))
    theirs, ours = (sorted(folder.glob("runs/*/*/*.npz")) for folder in (other, tmp_path / "results"))
    assert len(theirs) == 3  # the loss and both baselines
    assert [file.read_bytes() for file in ours] == [file.read_bytes() for file in theirs]
    for file in ours:
        harness("rm", file.stem)
    assert not list((tmp_path / "results").glob("runs/*/*/*.npz"))
    theirs[0].write_bytes(b"damaged")
    theirs[1].unlink()
    said = harness("import", str(other))
    assert said.code == 1
    assert said.out == "3 imported, 0 already here\n"
    assert [line.split(": ")[1] for line in said.err.splitlines()] == [str(file) for file in theirs[:2]]
    assert len(list((tmp_path / "results").glob("runs/*/*/*.npz"))) == 1
