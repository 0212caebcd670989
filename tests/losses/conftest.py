"""What every test of the losses starts from."""

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Initial weights and draws that a test leaves to torch's global generator do not depend on the tests before it."""
    torch.manual_seed(0)
