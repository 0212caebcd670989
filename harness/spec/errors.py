"""The one way to say what is wrong and what is allowed."""

import difflib
import errno
import os
from collections.abc import Iterable

# What is wrong with a disk, not with what is written to it: every other trial would fail in the same way.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class UserError(Exception):
    """Something the user can mend: one line saying what, where and what is allowed. The CLI prints it and exits 2."""


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """The one way to say that a name is not known: the nearest match, then all that is allowed."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? Known" if near else "known"
    return UserError(f"no {what} named {name!r}; {hint}: {', '.join(known) or 'none'}")


def disk_error(error: BaseException) -> str:
    """What an error, or the one it was raised from, says of the disk: that it is full or read-only; else nothing."""
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        return os.strerror(error.errno)
    cause = error.__cause__ or error.__context__
    return disk_error(cause) if cause is not None else ""
