"""What the shell offers after <Tab>: names of losses, datasets and protocols, settings, ids."""

import os
from collections.abc import Iterator
from pathlib import Path

from harness import config
from harness.spec import SETTINGS
from harness.store import Store
from losses import names as loss_names


def losses(incomplete: str) -> Iterator[str]:
    """Names separated by commas: the last one is completed."""
    done, comma, _ = incomplete.rpartition(",")
    yield from (f"{done}{comma}{name}" for name in loss_names())


def datasets(incomplete: str) -> list[str]:
    return config.names("datasets")


def protocols(incomplete: str) -> list[str]:
    return config.names("protocols")


def settings(incomplete: str) -> Iterator[tuple[str, str]]:
    """KEY= of every setting, with its meaning."""
    yield from ((f"{name}=", setting.meaning) for name, setting in SETTINGS.items())


def ids(incomplete: str) -> Iterator[str]:
    """Of the results in the usual folder."""
    results = Store(Path(os.environ.get("HARNESS_RESULTS") or "results"))
    yield from (file.stem for file in results.files())


def ids_and_names(incomplete: str) -> Iterator[str]:
    """What `harness show` takes."""
    yield from (*loss_names(), *config.names("protocols"), *config.names("datasets"), *ids(incomplete))
