"""A run that takes a few seconds and can be hit at any epoch; and the table that `make chaos` prints."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.processes import HARNESS, bits, finish

SETTINGS = (
    "backbone=test_efficientnet",
    "dim=8",
    "resize=16",
    "crop=16",
    "classes_per_batch=3",
    "samples_per_class=4",
    "epochs=4",
    "warmup_epochs=0",
)
LONG = 1.5  # seconds of a nap, so that on a busy machine a fault of Ray meets a trial that still runs
SLOW = """
import os
import time
from losses.base import Loss, squared_distances, unit


class Slow(Loss):
    title, cite, family = "Slow", "me", "classification"

    def forward(self, embeddings, labels):
        time.sleep(float(os.environ.get("NAP", "0.3")))
        return squared_distances(unit(embeddings)).mean()
"""


@dataclass(frozen=True)
class SlowRun:
    """A loss that naps in each of four steps of four epochs, on 96 pictures of 12 classes; and two baselines."""

    folder: Path

    def command(self, results: Path, *more: str, nap: float = 0.3) -> list[str]:
        words = ["env", f"NAP={nap}", f"HARNESS_CACHE={self.folder / 'cache'}", *HARNESS, "run"]
        words += ["--dataset", str(self.folder / "photos"), "--losses", f"{self.folder}/slow.py:Slow"]
        words += ["--weights", "none", "--protocol", "cpu", "--results", str(results), *more]
        return words + [word for setting in SETTINGS for word in ("--set", setting)]


@pytest.fixture(scope="session")
def slow_run(tmp_path_factory: pytest.TempPathFactory) -> SlowRun:
    folder = tmp_path_factory.mktemp("slow")
    (folder / "slow.py").write_text(SLOW)
    rng = np.random.default_rng(0)
    for label in range(12):
        (folder / "photos" / f"thing{label:02}").mkdir(parents=True)
        for number in range(8):
            pixels = rng.integers(0, 256, (20, 20, 3)) // 2 + 10 * label
            Image.fromarray(pixels.astype(np.uint8)).save(folder / "photos" / f"thing{label:02}" / f"{number}.png")
    return SlowRun(folder)


@pytest.fixture(scope="session")
def undisturbed(slow_run: SlowRun, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Metrics and losses of every record of two seeds, by id."""
    results = tmp_path_factory.mktemp("undisturbed")
    done = finish(slow_run.command(results, "--executor", "local", "--seeds", "2", nap=0))
    assert done.returncode == 0, done.stderr
    return bits(results)


# --- what was tried, what was promised, what happened ---


@dataclass
class Fault:
    """A fault and how its cases ended."""

    tried: str
    promised: str
    ends: list[str] = field(default_factory=list)  # pass (and what was measured), FAIL, or skipped (and why)

    @property
    def end(self) -> str:
        counts = {end: self.ends.count(end) for end in dict.fromkeys(self.ends)}
        order = sorted(counts, key=lambda end: (end == "pass", end))
        return ", ".join(end if len(self.ends) == 1 else f"{counts[end]} x {end}" for end in order)


class FaultTable:
    """Collects how the tests that are marked as a fault end, and prints a row for each fault."""

    def __init__(self) -> None:
        self.faults: dict[tuple[str, str], Fault] = {}
        self.of_test: dict[str, Fault] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for mark in item.iter_markers("fault"):
                tried, promised = mark.args
                self.of_test[item.nodeid] = self.faults.setdefault((tried, promised), Fault(tried, promised))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        fault = self.of_test.get(report.nodeid)
        if fault is None or (report.when != "call" and report.passed):
            return
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            fault.ends.append(f"skipped: {reason.removeprefix('Skipped: ')}")
        else:
            measured = "".join(f": {text}" for name, text in report.user_properties if name == "happened")
            fault.ends.append(f"pass{measured}" if report.passed else "FAIL")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_sep("=", "faults: what was tried, what is promised, what happened")
        for line in table([fault for fault in self.faults.values() if fault.ends]):
            terminalreporter.write_line(line)


def table(faults: list[Fault], width: int = 50) -> Iterator[str]:
    """Aligned columns; a row takes as many lines as its longest text."""
    for cells in [("tried", "promised", "happened"), *((fault.tried, fault.promised, fault.end) for fault in faults)]:
        columns = [textwrap.wrap(cell, width) for cell in cells]
        for number in range(max(map(len, columns))):
            lines = [column[number] if number < len(column) else "" for column in columns]
            yield "  ".join(line.ljust(width) for line in lines).rstrip()
        yield ""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults", action="store_true", help="print a table of the faults that were tried")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--faults", default=False):
        config.pluginmanager.register(FaultTable())
