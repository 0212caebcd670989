"""`harness show`: a record and the command that makes it again."""

import json
import shlex
from pathlib import Path

import pytest

from tests.cli.records import stored
from tests.conftest import Harness

QUICK = ("run", "--losses", "group,triplet", "--dataset", "blobs")


@pytest.mark.parametrize("fold", ["test", "val0"])
def test_show_prints_the_record_and_a_command_that_makes_it_again(
    small: Path, harness: Harness, tmp_path: Path, fold: str
) -> None:
    changed = ("lr=0.002", "seed=3", "group.anchors=1", "drops=3,5", "dim=none")
    harness(*QUICK, *(f"--set={one}" for one in changed))
    harness(*QUICK, "--set", f"fold={fold}", "--set", "epochs=2")
    ids = [file.stem for file in stored(tmp_path / "results")]
    assert len(ids) >= 7
    for one in ids:
        said = harness("show", one)
        text, _, command = said.out.partition("\n\nReproduce with:\n  ")
        assert json.loads(text)["id"] == one
        program, *arguments = shlex.split(command.splitlines()[0])
        assert program == "harness"
        plan = harness(*arguments, "--dry-run", "--results", str(tmp_path / "elsewhere"))
        assert one in plan.out, command


def test_a_record_whose_protocol_is_gone_is_shown(small: Path, harness: Harness, tmp_path: Path) -> None:
    harness("run", "--losses", "none", "--dataset", "blobs")
    (small / "protocols" / "tiny.toml").unlink()
    id = stored(tmp_path / "results")[0].stem
    said = harness("show", id)
    assert said.code == 0
    assert f'"id": "{id}"' in said.out
    assert "\n\nIts protocol tiny is no longer in configs/protocols, so no command reproduces it.\n" in said.out


def test_the_command_states_what_the_size_of_classes_would_decide(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    """The blobs have 6 images per class; the record has the batches of large classes, because they were asked for."""
    protocol = small / "protocols" / "tiny.toml"
    protocol.write_text(protocol.read_text() + "\n[few_images]\nbelow = 10\nclasses_per_batch = 2\n")
    harness(*QUICK, "--set", "classes_per_batch=4")
    for file in stored(tmp_path / "results"):
        command = harness("show", file.stem).out.partition("Reproduce with:\n  ")[2].splitlines()[0]
        plan = harness(*shlex.split(command)[1:], "--dry-run", "--results", str(tmp_path / "elsewhere"))
        assert file.stem in plan.out, command


def test_what_may_keep_a_run_from_the_same_numbers_is_printed_below_its_command(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    harness("run", "--losses", "none", "--dataset", "blobs")
    (file, *_) = stored(tmp_path / "results")
    record = json.loads(file.read_text())
    record["provenance"]["packages"]["torch"] = "1.0"
    file.write_text(json.dumps(record))
    below = harness("show", file.stem).out.partition("Reproduce with:\n  ")[2].splitlines()[1:]
    assert below[:2] == ["", "The numbers may differ:"]
    assert any(line.startswith("  It was made with torch 1.0; here is ") for line in below)
