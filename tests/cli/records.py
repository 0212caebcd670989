"""The records in a results folder, as files."""

from pathlib import Path


def stored(results: Path) -> list[Path]:
    return sorted(results.glob("runs/*/*/*.json"))
