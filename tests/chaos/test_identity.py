"""A result is what its id says: what an id does not cover is stated, and no trial changes the next one."""

import shlex
from pathlib import Path

import pytest
import torch

from tests.conftest import Harness
from tests.data.factories import records

TRIPLET = ("run", "--losses", "triplet", "--dataset", "blobs")


@pytest.mark.fault(
    "one trial with one thread and with two, with the local executor",
    "it has as many threads as --cpus-per-trial says, one by default; `show` prints the number that it had",
)
def test_the_local_executor_has_the_threads_it_is_told_and_show_says_so(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    torch.set_num_threads(4)
    try:
        assert harness(*TRIPLET).code == 0
        assert {record["provenance"]["threads"] for record in records(tmp_path)} == {1}
        two = (*TRIPLET, "--cpus-per-trial", "2", "--rerun")
        assert harness(*two).code == 0
        assert {record["provenance"]["threads"] for record in records(tmp_path)} == {2}
        (id,) = (record["id"] for record in records(tmp_path) if record["trial"]["loss"] == "triplet")
        command = harness("show", id).out.split("Reproduce with:\n")[1].splitlines()[0]
        assert "--cpus-per-trial 2" in command
        again = harness(*shlex.split(command)[1:], "--results", str(tmp_path / "again" / "results"))
        assert again.code == 0
        assert {record["provenance"]["threads"] for record in records(tmp_path / "again")} == {2}
    finally:
        torch.set_num_threads(1)


@pytest.mark.fault(
    "two seeds of a loss with one thread and with two, beside a loss with one",
    "the table footnotes the row that mixes them",
)
def test_a_row_that_mixes_thread_counts_is_footnoted(small: Path, harness: Harness) -> None:
    harness("run", "--losses", "triplet,softmax", "--dataset", "blobs", "--seeds", "2")
    assert "conditions" not in harness("tables").out
    harness(*TRIPLET, "--set", "seed=1", "--cpus-per-trial", "2", "--rerun")
    table = harness("tables").out
    assert "Run under other conditions: threads = 1 (1 run), 2 (1 run)." in table
    assert "| Triplet[" in table
