"""Where commands print: one function, through which no control character reaches a terminal."""

import contextlib
import os
import sys
from collections.abc import Iterator

from harness.spec import printable

CLEAR = "\x1b[2J\x1b[H"  # empties a terminal


def say(text: object = "", *, end: str = "\n", error: bool = False) -> None:
    """Print to standard output, or to standard error."""
    print(printable(str(text)), end=end, file=sys.stderr if error else sys.stdout, flush=True)


def say_afresh(text: str) -> None:
    """Print to an emptied terminal."""
    print(CLEAR + printable(text), flush=True)


@contextlib.contextmanager
def only_our_output() -> Iterator[None]:
    """Send what others print meanwhile to standard error: standard output is for tables. Ray's native parts and child
    processes print too, so the file descriptor is redirected as well."""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            ours = os.dup(1)
            os.dup2(2, 1)
        except OSError:  # one of them is closed
            yield
            return
        try:
            yield
        finally:
            os.dup2(ours, 1)
            os.close(ours)
