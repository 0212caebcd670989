"""`harness ls`: every listing."""

from pathlib import Path

import pytest

from tests.conftest import Harness


@pytest.mark.parametrize("kind", ["losses", "datasets", "protocols", "runs"])
def test_ls_lists(small: Path, harness: Harness, kind: str) -> None:
    harness("run", "--losses", "none", "--dataset", "blobs")
    said = harness("ls", kind)
    assert said.code == 0
    assert {"losses": "proxy_nca", "datasets": "blobs", "protocols": "tiny", "runs": "pixels"}[kind] in said.out
