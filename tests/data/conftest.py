"""An image cache of its own for each test, and a few images to put there."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.data import images
from harness.data.listing import Listing
from tests.data.factories import SIZES, noise


@pytest.fixture(autouse=True)
def home(own_cache: Path) -> Path:
    return own_cache


@pytest.fixture
def things(tmp_path: Path) -> Listing:
    """Eight images of noise, each of its own size and class."""
    return noise(tmp_path / "things", SIZES)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each image was decoded."""
    counts: Counter[str] = Counter()
    read = images.read

    def counted(file: Path, *rest: Any) -> np.ndarray:
        counts[file.name] += 1
        return read(file, *rest)

    monkeypatch.setattr(images, "read", counted)
    return counts
