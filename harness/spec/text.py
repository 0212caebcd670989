"""Text from outside: what must not reach a terminal."""

import re

# C0 and C1 controls (escape sequences begin with one), marks that turn the direction of text, and halves of characters
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def has_controls(text: str) -> bool:
    """Whether the text is more than one line of visible characters."""
    return CONTROLS.search(text) is not None
