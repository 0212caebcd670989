"""Small datasets on disk, for commands that read images."""

from pathlib import Path

import pytest

from tests.data.factories import describe_small_datasets


@pytest.fixture
def root(small: Path, tmp_path: Path) -> Path:
    """A data root, and beside `blobs` the configuration of a small SOP, In-Shop and CUB."""
    describe_small_datasets(small)
    return tmp_path / "data root"
