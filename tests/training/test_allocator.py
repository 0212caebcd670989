"""Freed memory stays with the process that asks for it, where the C library can do that."""

import ctypes
import subprocess
import sys

import pytest

from harness.training import allocator

# Prints by how many bytes the process has grown after it has filled and freed an array of 64 MB.
FREE = """
import resource, sys
import numpy as np
from harness.training import allocator

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()

if sys.argv[1] == "keep":
    assert allocator.keep_freed()
before = resident()
array = np.ones(64 * 2**20, dtype=np.uint8)
del array
print(resident() - before)
"""


def grown(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", FREE, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_freed_memory_stays_with_the_process() -> None:
    assert grown("keep") > 60 * 2**20
    assert grown("default") < 4 * 2**20  # or there would be nothing to mend


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())  # musl
    assert not allocator.keep_freed()
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: pytest.fail("looked for a C library"))
    assert not allocator.keep_freed()
