"""The one way to say what is wrong and what is allowed."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can mend: one line saying what, where and what is allowed. The CLI prints it and exits 2."""


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """The one way to say that a name is not known: the nearest match, then all that is allowed."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? Known" if near else "known"
    return UserError(f"no {what} named {name!r}; {hint}: {', '.join(known) or 'none'}")
