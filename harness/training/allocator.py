"""Memory on a CPU that a step has freed and the next one needs again.

By default glibc hands a freed tensor of some size back to the system, which fills it with zeros page by page when it is
asked for again: up to a third of the time of a training step. Kept, it costs nothing, and the peak is about the same.
benchmarks/training.py measures both.
"""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # the numbers of <malloc.h>


def keep_freed() -> bool:
    """From now on this process keeps what it frees; whether its C library can."""
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it, musl does not
    return mallopt is not None and bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, -1))
