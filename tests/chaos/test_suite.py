"""The table that `make chaos` prints."""

import subprocess
import sys
from pathlib import Path

from tests.chaos.conftest import Fault, table

CASES = """
import pytest

@pytest.mark.fault("a cut link", "nothing is lost")
@pytest.mark.parametrize("number", [1, 2])
def test_link(number): assert number == 1

@pytest.mark.fault("no room", "one line")
def test_room(): pytest.skip("needs root")

@pytest.mark.fault("many trials", "each once")
def test_trials(record_property): record_property("happened", "59 trials/s")

def test_of_no_fault(): assert False
"""


def test_a_fault_is_a_row_with_what_happened(tmp_path: Path) -> None:
    (tmp_path / "test_cases.py").write_text(CASES)
    words = ["-p", "tests.chaos.conftest", "--faults", "-m", "fault", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "pytest", *words], capture_output=True, text=True)
    assert done.returncode == 1
    printed = done.stdout.partition("what happened")[2]
    rows = [line for line in printed.splitlines() if line.startswith(("a cut", "no room", "many"))]
    assert [row.split("  ")[-1].strip() for row in rows] == [
        "1 x FAIL, 1 x pass",
        "skipped: needs root",
        "pass: 59 trials/s",
    ]
    assert "test_of_no_fault" not in printed


def test_columns_are_aligned_and_long_texts_are_wrapped() -> None:
    lines = list(table([Fault("a b c d", "x", ["pass"])], width=4))
    assert lines == ["trie  prom  happ", "d     ised  ened", "", "a b   x     pass", "c d", ""]
