"""Passwords stay out of records, logs and messages."""

import re

# a signature or a key among the parameters of a URI
PARAMETER = re.compile(r"([?&][\w.-]*(?:key|password|secret|sig|signature|token|credential)=)[^\s&]+", re.IGNORECASE)
# user:password@ may hold any character that is not white space; a user without a password ends before the first slash
USER = re.compile(r"://(?:[^\s/@:]*:\S*|[^\s/]*)@")


def redacted(text: str, uri: str = "") -> str:
    """The text with user, password and secret parameters of every URI replaced by ***; those of `uri` also where they
    stand alone, as in what a library says of it."""
    for found in USER.findall(uri):
        text = text.replace(found.removeprefix("://"), "***@")
    return PARAMETER.sub(r"\1***", USER.sub("://***@", text))
