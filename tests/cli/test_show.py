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
        program, *arguments = shlex.split(command)
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
    assert said.out.endswith("Its protocol tiny is no longer in configs/protocols, so no command reproduces it.\n")
