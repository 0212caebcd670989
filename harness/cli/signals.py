"""Ctrl-C and SIGTERM: a command ends in order, or at once where that is not possible; exit code 130 or 143.

It imports next to nothing: its handlers are set before anything else is imported.
"""

import os
import signal
import sys

TYPE_CHECKING = False  # as in harness/__init__.py
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE = 8  # seconds to end in order: `docker stop` kills after ten

received: int = 0  # the first signal; 0: none
message = ""  # what is said when a signal ends the command
ending = False  # the command has ended, the interpreter is about to


def heed() -> None:
    """Set the handlers. A signal that the caller has told us to ignore, as a shell does in the background, stays so."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)


def interrupt(number: int, frame: "FrameType | None") -> None:
    """Raise KeyboardInterrupt, so that workers stop and half files are removed; whoever swallows it gains GRACE.

    An import that is interrupted does worse than end: some go on without what they lack, some abort the process.
    """
    global received
    if received:  # it is ending
        return
    received = number
    if ending or importing(frame):
        leave()
    signal.signal(signal.SIGALRM, lambda *_: leave())
    signal.alarm(GRACE)
    sys.unraisablehook = lambda _: None  # raised where nothing can be caught, such as in __del__
    raise KeyboardInterrupt


def importing(frame: "FrameType | None") -> bool:
    """Whether a frame belongs to an import that is under way."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def leave() -> "NoReturn":
    """End the process now: what Python and Ray do at their end takes seconds, and may be what is stuck."""
    try:
        if message:
            os.write(2, f"harness: {message}\n".encode())  # not print, which may be what was interrupted
    finally:  # also on a full disk, or if the terminal is gone
        os._exit(128 + (received or signal.SIGINT))  # as a shell gives it for a process that a signal has ended
