"""One trial from its description to its Result."""
