"""Keeping the memory that a training step on a CPU frees, for the next step.

By default glibc returns a freed tensor of some size to the system, which fills it with zeros page by page when it is
needed again: up to a third of the time of a training step. Keeping it costs nothing, and the peak is about the same.
benchmarks/training.py measures both.
"""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # the numbers of <malloc.h>


def keep_freed() -> bool:
    """From now on this process keeps the memory it frees. Returns whether its C library can do that."""
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it, musl does not
    return mallopt is not None and bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, -1))
