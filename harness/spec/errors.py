"""The one way to say what is wrong and what is allowed."""

import difflib
import errno
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can mend: one line saying what, where and what is allowed. The CLI prints it and exits 2."""


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """The one way to say that a name is not known: the nearest match, then all that is allowed."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" did you mean {near[0]!r}?" if near else ""
    return UserError(f"no {what} named {name!r};{hint} Known: {', '.join(known) or 'none'}")


def is_disk_full(error: BaseException) -> bool:
    """Whether an error, or the one it was raised from, says that there is no space left."""
    cause = error.__cause__ or error.__context__
    full = isinstance(error, OSError) and error.errno == errno.ENOSPC
    return full or (cause is not None and is_disk_full(cause))
