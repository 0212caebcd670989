import resource
import subprocess
import sys

import pytest

from harness.training import allocator

# Page faults of three training steps, whose tensors have 64 MB each, after some more to get used to them.
STEPS = """
import resource, sys, torch
from harness.training import allocator
if sys.argv[1] == "keep":
    assert allocator.keep_freed()
model = torch.nn.Sequential(*[torch.nn.Conv2d(16, 16, 1) for _ in range(3)])
images = torch.ones(256, 16, 64, 64)
for step in range(8):
    if step == 5:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    model(images).sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
TENSOR = 64 * 2**20 // resource.getpagesize()


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", STEPS, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_freed_memory_is_not_asked_for_again() -> None:
    assert any(faults("keep") < TENSOR for _ in range(3))  # a system short of memory may take some away
    assert faults("default") > 3 * TENSOR  # or there would be nothing to mend


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not allocator.keep_freed()
