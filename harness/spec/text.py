"""Text from outside: what must not reach a terminal."""

import re

# C0 and C1 controls (escape sequences begin with one), marks that turn the direction of text, and halves of characters
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def has_controls(text: str) -> bool:
    """Whether the text is more than one line of visible characters."""
    return CONTROLS.search(text) is not None


def printable(text: str) -> str:
    r"""The text with its controls, except tabs and line feeds, written out: ESC as \u001b. A terminal would obey them,
    and records, file names and error messages may be anybody's. In JSON it is the same value, written differently."""
    return CONTROLS.sub(lambda found: found[0] if found[0] in "\t\n" else f"\\u{ord(found[0]):04x}", text)
