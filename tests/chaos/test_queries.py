"""Values per query that are damaged, forged or gone: the row is footnoted and not tested, whatever command reads it."""

import hashlib
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.store import Store
from tests.conftest import Harness
from tests.factories import answered

COMMANDS = (
    *(("tables", "--table", "all", "--format", form) for form in ("markdown", "latex", "html", "json", "csv")),
    ("compare", "group", "triplet"),
    ("ls", "runs"),
)


def arrays(content: bytes, **changes: Any) -> bytes:
    """The file with other arrays."""
    good = np.load(io.BytesIO(content))
    changed = io.BytesIO()
    np.savez(changed, **{**{name: good[name] for name in good.files}, **changes})
    return changed.getvalue()


def with_header(content: bytes, shape: tuple[int, ...]) -> bytes:
    """The file with ranks that claim to be larger than they are."""
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "ranks.npy":
                header = io.BytesIO()
                np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": shape})
                data = header.getvalue() + data[-64:]
            new.writestr(name, data)
    return changed.getvalue()


class Trap:
    def __reduce__(self) -> Any:
        return os.system, ("echo unpickled > unpickled",)


# What somebody may have put in the place of the file, the record naming its checksum.
FORGED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "text": lambda content: b"{}",
    "a pickle": lambda content: pickle.dumps(Trap()),
    "an array of pickled objects": lambda content: arrays(content, precision=np.array([Trap()] * 200, dtype=object)),
    "an array that claims 8 TB": lambda content: with_header(content, (1, 10**12)),
    "fewer queries": lambda content: arrays(content, classes=np.arange(3)),
    "classes without a name": lambda content: arrays(content, classes=np.full(200, 7_000)),
    "negative classes": lambda content: arrays(content, classes=np.full(200, -1)),
    "precision that is no number": lambda content: arrays(content, precision=np.full(200, np.nan)),
    "one class": lambda content: arrays(content, classes=np.zeros(200, dtype=int)),
    "no query with a match": lambda content: arrays(content, ranks=np.zeros((1, 200), dtype=int)),
    "two depths": lambda content: arrays(content, depth=np.array([1, 2])),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The values of one of nine runs of three losses."""
    store = Store(tmp_path / "results")
    for name, level in (("group", 0.8), ("triplet", 0.5), ("margin", 0.3)):
        for seed in range(3):
            store.put(answered(name, seed, level))
    return store.path(answered("group").trial).with_suffix(".npz")


def check(harness: Harness, said: str) -> None:
    """Every command works; the row says why it is not tested, and the others are."""
    for command in COMMANDS:
        answer = harness(*command)
        assert (answer.code, answer.err) == (0, ""), command
        assert "Traceback" not in answer.out
    text = harness("tables").out
    notes = [line for line in text.splitlines() if "No interval, not tested: " in line]
    assert len(notes) == 1
    assert said in notes[0]
    assert "Group[a]" in text
    assert "**" in next(line for line in text.splitlines() if line.startswith("| Triplet"))  # the best of the others
    compared = " ".join(harness("compare", "group", "triplet").out.split())  # its lines are wrapped
    assert f"Not tested: {said}" in compared


@pytest.mark.fault(
    "values per query that are cut short, missing, or a folder",
    "the row is footnoted and not tested; every other row is; exit 0",
)
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:100]), "damaged: its checksum is not the record's"),
        (lambda file: file.unlink(), "cannot be read: No such file or directory"),
        (lambda file: (file.unlink(), file.mkdir()), "cannot be read: Is a directory"),
        (lambda file: (file.unlink(), os.mkfifo(file)), "cannot be read: Not a file"),
    ],
    ids=["cut short", "missing", "a folder", "a pipe"],
)
def test_damaged_values_leave_the_other_rows_tested(
    harness: Harness, file: Path, damage: Callable[[Path], Any], said: str
) -> None:
    damage(file)
    check(harness, f"runs/emoji/group/{file.name}: {said}")


@pytest.mark.fault(
    "values per query with a pickle, arrays that do not fit, or a claim of 8 TB, and their checksum in the record",
    "nothing is unpickled; the row is footnoted and not tested; exit 0",
)
@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_forged_values_run_nothing_and_stop_nothing(
    harness: Harness, file: Path, forge: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    content = forge(file.read_bytes())
    file.write_bytes(content)
    record = json.loads(file.with_suffix(".json").read_text())
    record["queries"]["sha256"] = hashlib.sha256(content).hexdigest()
    file.with_suffix(".json").write_text(json.dumps(record))
    check(harness, "")
    assert not (tmp_path / "unpickled").exists()
