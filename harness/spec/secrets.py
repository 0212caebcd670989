"""Passwords stay out of records, logs and messages."""

import re

# user:password@ may hold any character that is not white space; a user without a password ends before the first slash
USER = re.compile(r"://(?:[^\s/@:]*:\S*|[^\s/]*)@")


def redacted(text: str) -> str:
    """The text with user and password of every URI replaced by ***."""
    return USER.sub("://***@", text)
