"""The one way to say what is wrong and what is allowed."""

import difflib
import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# What is wrong with a disk, not with what is written to it: every other trial would fail in the same way.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
ALIKE = 0.6  # of 1: names that are less alike are not suggested
LISTED = 12  # names in an error; the rest is counted
LONGEST_LINE = 1000  # characters of an error in one line


class UserError(Exception):
    """Something the user can mend: one line saying what, where and what is allowed. The CLI prints it and exits 2."""


class StorageError(UserError):
    """An object store that is not there, refuses or fails, whatever is written to it: every other trial would fail in
    the same way."""


def unknown(what: str, name: str, known: Iterable[str], *, see: str = "") -> UserError:
    """The one way to say that a name is not known: what is nearest to it, else what there is. `see` is the command that
    lists it, where that is more than fits a line."""
    known = list(known)
    near = nearest(name, known)
    if near:
        hint = f"did you mean {' or '.join(map(repr, near))}?"
    elif see and len(known) > LISTED:
        hint = f"see: {see}"
    else:
        more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
        hint = f"known: {', '.join(known[:LISTED]) or 'none'}{more}"
    return UserError(f"no {what} named {shortened(name)!r}; {hint}")


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """What a user may have meant, in any case of letters: the nearest, and what is about as near; sorted as `known`."""

    def likeness(word: str) -> float:  # without dashes: two options are not alike because of them
        return difflib.SequenceMatcher(None, name[:100].lower().lstrip("-"), word.lower().lstrip("-")).ratio()

    ratios = {word: likeness(word) for word in known}
    least = max([ALIKE, *(ratio - 0.15 for ratio in ratios.values())])
    return [word for word in known if ratios[word] >= least]


def first_line(error: BaseException) -> str:
    """The kind of an error, unless it is a UserError, and the first line of what it says. An error of the
    user's own may fail to say anything."""
    try:
        words = str(error)
    except BaseException as failure:
        words = f"(its text raises {type(failure).__name__})"
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    lines = f"{kind}{words}".splitlines() or [""]
    return bounded(lines[0], LONGEST_LINE)


def bounded(text: str, longest: int) -> str:
    """Text of an error as a record can hold it: of limited length, and without halves of characters, which stand for
    bytes of a file name that are no text."""
    text = text.encode(errors="backslashreplace").decode()
    if len(text) <= longest:
        return text
    return f"{text[: longest // 2]} ... ({len(text):,} characters) ... {text[-longest // 2 :]}"


def shortened(value: object) -> str:
    """A value as a message shows it: what would fill the screen is cut."""
    try:
        text = str(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        return "an integer of thousands of digits"
    return text if len(text) <= 100 else f"{text[:40]}... ({len(text):,} characters)"


def disk_error(error: BaseException) -> str:
    """What an error, or one it was raised from, says of the disk: that it is full or read-only; or of the object store.
    Else nothing."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:  # an error may be its own cause
        if isinstance(cause, OSError) and cause.errno in DISK_ERRORS:
            return os.strerror(cause.errno)
        if isinstance(cause, StorageError):
            return str(cause)
        seen.add(id(cause))
        cause = cause.__context__ if cause.__cause__ is None else cause.__cause__
    return ""


def check_keys(place: str, data: Mapping[str, Any], needed: set[str], allowed: set[str]) -> None:
    """A UserError for a key of a table that is missing or unknown."""
    for key in data:
        if key not in allowed:
            raise UserError(f"{place}: {unknown('key', key, sorted(allowed))}")
    if missing := needed - set(data):
        raise UserError(f"{place}: missing {', '.join(sorted(missing))}")
