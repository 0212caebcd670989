"""`harness rm`, and `harness run --rerun`: what is removed or replaced."""

import json
from pathlib import Path

from tests.cli.records import stored
from tests.conftest import Harness


def test_rerun_replaces_and_rm_removes(small: Path, harness: Harness, tmp_path: Path) -> None:
    harness("run", "--losses", "none", "--dataset", "blobs")
    file = stored(tmp_path / "results")[0]
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "parameters": 12345}))
    assert harness("run", "--losses", "none", "--dataset", "blobs").err == ""
    assert json.loads(file.read_text())["parameters"] == 12345
    assert "[2/2]" in harness("run", "--losses", "none", "--dataset", "blobs", "--rerun").err
    assert json.loads(file.read_text())["parameters"] == record["parameters"]
    assert harness("rm", file.stem[:8]).code == 0
    assert not file.exists()
    assert "[1/1]" in harness("run", "--losses", "none", "--dataset", "blobs").err
