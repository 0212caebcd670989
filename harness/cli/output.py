"""Where commands print: one function, through which no control character reaches a terminal."""

import contextlib
import io
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from harness.spec import UserError, printable

CLEAR = "\x1b[2J\x1b[H"  # empties a terminal


class Output(io.TextIOWrapper):
    """Standard output. Letters that its encoding lacks are written out; a full disk is for the user to solve."""

    def write(self, text: str) -> int:
        with self.guarded():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with self.guarded():
            super().flush()

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.discard()  # Python writes once more when it ends
            if isinstance(error, BrokenPipeError):  # whoever reads has seen enough
                raise
            raise UserError(f"cannot write to standard output: {error.strerror}") from None

    def discard(self) -> None:
        """Let all that follows, also of child processes, go nowhere."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())


class ErrorOutput(Output):
    """Standard error. That its disk is full, or whoever reads it is gone, does not stop a run of many hours."""

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            self.discard()
        except OSError:
            pass  # a disk may have room again


def prepare_streams() -> None:
    """What this process prints goes through the streams above. One that the caller has closed takes everything."""
    for name, kind in (("stdout", Output), ("stderr", ErrorOutput)):
        stream = getattr(sys, name)
        buffer = stream.buffer if stream else Path(os.devnull).open("wb")  # noqa: SIM115 (it is the process's)
        encoding = stream.encoding if stream else "utf-8"
        setattr(sys, name, kind(buffer, encoding, errors="backslashreplace", line_buffering=True))


def say(text: object = "", *, end: str = "\n", error: bool = False) -> None:
    """Print to standard output, or to standard error."""
    print(printable(str(text)), end=end, file=sys.stderr if error else sys.stdout, flush=True)


def say_words(text: object) -> None:
    """Print sentences: a terminal gets them broken between words, a file in one line."""
    for line in str(text).splitlines():
        if sys.stdout.isatty():
            width, indent = shutil.get_terminal_size().columns, line[: len(line) - len(line.lstrip())]
            say(textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False))
        else:
            say(line)


def say_afresh(text: str) -> None:
    """Print to an emptied terminal; to a file, below what is there."""
    print((CLEAR if sys.stdout.isatty() else "") + printable(text), flush=True)


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
