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
