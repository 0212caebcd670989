"""Records that are damaged, odd, forged, copied or too large: named and skipped, whatever command reads them."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.execution.account import Account
from harness.spec import Failure, Result, Stopped, has_controls
from harness.store import LARGEST, Store
from tests.chaos.mutants import Mutant, mutants, populate
from tests.chaos.test_output import is_harmless
from tests.conftest import Harness
from tests.execution.test_run import experiment
from tests.factories import a_result, a_trial

TABLES = (
    *(("tables", "--table", "all", "--format", form) for form in ("markdown", "latex", "html", "json")),
    ("tables", "--format", "csv"),
    ("tables", "--published", "rows"),
)


# --- files that are no record ---

FILES: dict[str, Callable[[dict[str, Any]], str]] = {
    "100,000 nested lists": lambda record: "[" * 100_000 + "]" * 100_000,
    "100,000 nested lists as a field": lambda record: json.dumps(record)[:-1] + ', "more": ' + "[" * 100_000,
    "a field nested 500 deep": lambda record: json.dumps(
        {**record, "provenance": json.loads('{"a":' * 500 + "1" + "}" * 500)}
    ),
    "a metric of 400 digits": lambda record: json.dumps({**record, "metrics": {"R@1": 10**399}}),
    "a seed of 400 digits": lambda record: json.dumps({**record, "trial": {**record["trial"], "seed": 10**399}}),
    "a number of 5,000 digits": lambda record: json.dumps(record)[:-1] + ', "more": ' + "1" * 5000 + "}",
    "16 MB": lambda record: json.dumps(record) + " " * LARGEST,
    "NaN seconds": lambda record: json.dumps({**record, "seconds": {"total": float("nan")}}),
    "a loss of 1e400": lambda record: json.dumps(record).replace('"loss": 0.5', '"loss": 1e400'),
    "R@1 = 7": lambda record: json.dumps({**record, "metrics": {"R@1": 7.0}}),
    "R@1 = 7 in a curve": lambda record: json.dumps(
        {**record, "curve": [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.5, "R@1": 7.0}]}
    ),
    "train MAP@R = -3 in a curve": lambda record: json.dumps(
        {**record, "curve": [{"epoch": 1, "loss": 0.5, "train MAP@R": -3.0}]}
    ),
    "a cosine of 2": lambda record: json.dumps({**record, "curve": [{"epoch": 1, "loss": 0.5, "cosine": 2.0}]}),
    "R@1 = true": lambda record: json.dumps({**record, "metrics": {"R@1": True}}),
    "negative seconds": lambda record: json.dumps({**record, "seconds": {"total": -5e9}}),
    "schema = true": lambda record: json.dumps({**record, "schema": True}),
    "half a surrogate pair": lambda record: json.dumps({**record, "title": "\ud800"}),
    "packages as a list": lambda record: json.dumps({**record, "provenance": {"packages": [1]}}),
    "an artifact that is text": lambda record: json.dumps({**record, "artifacts": {"embeddings": "x"}}),
    "an artifact outside the storage": lambda record: json.dumps(
        {**record, "artifacts": {"embeddings": {"path": "a/../../x", "sha256": "0" * 64}}}
    ),
    "an artifact that is another trial's checkpoint": lambda record: json.dumps(
        {**record, "artifacts": {"weights": {"path": "checkpoints/0123456789ab.pt", "sha256": "0" * 64}}}
    ),
    "a recipe without members": lambda record: json.dumps({**record, "recipe": "sklearn"}),
    "an ensemble without members": lambda record: json.dumps({**record, "ensemble": 2}),
}


@pytest.mark.fault(
    "a record with 100,000 nested lists, a number of 400 digits, 16 MB, NaN, impossible values or wrong types",
    "named in one line and skipped, exit 1; the other records are read",
)
@pytest.mark.parametrize("change", FILES.values(), ids=FILES)
def test_what_is_no_record_is_named_and_skipped(
    harness: Harness, tmp_path: Path, change: Callable[[dict[str, Any]], str]
) -> None:
    store = Store(tmp_path / "results")
    store.put(a_result())
    bad = store.path(a_trial(seed=1))
    bad.write_text(change(json.loads(json.dumps(a_result(a_trial(seed=1)).to_json()))))
    for command in (["tables"], ["ls", "runs"], ["status"]):
        said = harness(*command)
        assert said.code == 1
        assert said.err.count("\n") == 1
        assert str(bad) in said.err
        assert len(said.err) < 600
    assert len(store.results()[0]) == 1


@pytest.mark.fault("a pipe, a folder, or a link to nowhere in the place of a record", "named and skipped, exit 1")
def test_what_is_no_file_is_named_and_skipped(harness: Harness, tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    store.put(a_result())
    folder = store.path(a_trial()).parent
    os.mkfifo(folder / "000000000001.json")
    (folder / "000000000002.json").mkdir()
    (folder / "000000000003.json").symlink_to(tmp_path / "nowhere")
    said = harness("tables")
    assert said.code == 1
    assert said.err.count("cannot be read: ") == said.err.count("\n") == 3


@pytest.mark.fault("a record that is a folder, then harness rm as the line advises", "one line, exit 2")
def test_removing_a_record_that_is_a_folder_is_one_line(harness: Harness, tmp_path: Path) -> None:
    folder = Store(tmp_path / "results").path(a_trial())
    folder.mkdir(parents=True)
    said = harness("rm", a_trial().id)
    assert said.code == 2
    assert said.err == f"harness: cannot remove {folder}: Is a directory\n"


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "empty": lambda file: file.write_text(""),
    "cut": lambda file: file.write_text(file.read_text()[:100]),
    "foreign": lambda file: file.write_text('{"schema": 1, "id": "000000000000"}'),
    "R@1 = 7": lambda file: file.write_text(file.read_text().replace("0.25", "7.0")),
    "another trial's": lambda file: file.write_text(json.dumps(Stopped(a_trial(fold="val0"), 1, {}).to_json())),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
    "a link to nowhere": lambda file: (file.unlink(), file.symlink_to("nowhere")),
}


@pytest.mark.fault(
    "the record of a trial that ASHA stopped is empty, cut, foreign, impossible, another trial's, a folder or a link",
    "named by status and by the next run, exit 1, and the trial runs again; its result is stored",
)
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_record_of_a_stopped_trial_does_not_count(
    harness: Harness, tmp_path: Path, damage: Callable[[Path], Any]
) -> None:
    store = Store(tmp_path / "results")
    account = Account(experiment("triplet", trials=1, scheduler="asha"), store)
    (trial,) = account.search
    file = store.note(Stopped(trial, 1, {"R@1": 0.25}))
    assert not account.pending([trial])
    assert harness("status").code == 0
    damage(file)
    assert account.pending([trial]) == [trial]
    said = harness("status")
    assert said.code == 1
    assert said.err.startswith(f"harness: {file}: ")
    assert said.err.endswith("; skipped\n")
    assert said.err.count("\n") == 1
    assert store.put(a_result(trial))
    assert not account.pending([trial])


@pytest.mark.fault("the same, then harness run", "named once everything else is done, exit 1")
def test_a_run_names_a_damaged_record_of_a_stopped_trial(small: Path, harness: Harness, tmp_path: Path) -> None:
    file = tmp_path / "results" / "stopped" / "blobs" / "triplet" / "0123456789ab.json"
    file.parent.mkdir(parents=True)
    file.touch()
    said = harness("run", "--losses", "none", "--dataset", "blobs")
    assert said.code == 1
    assert f"harness: {file}: not JSON" in said.err


# --- copies ---


@pytest.mark.fault(
    "a record copied to `ID (conflicted copy).json`, to `ID.sync-conflict.json` and into other folders under runs/",
    "counts once; each copy is named and skipped, exit 1; show and rm find the original",
)
def test_a_copy_of_a_record_counts_for_nothing(harness: Harness, tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    for seed in (0, 1):
        store.put(a_result(a_trial(seed=seed), **{"R@1": 0.5 + seed / 10}))
    before = harness("tables").out
    original = store.path(a_trial())
    id, runs = original.stem, store.root / "runs"
    copies = [
        original.with_name(f"{id} (conflicted copy).json"),
        original.with_name(f"{id}.sync-conflict.json"),
        runs / "emoji" / "group" / f"{id}.json",
        runs / "emoji" / "triplet" / "old" / f"{id}.json",
        runs / f"{id}.json",
    ]
    for copy in copies:
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(original, copy)
    said = harness("tables")
    assert said.code == 1
    assert said.out == before
    for copy in copies:
        assert f"harness: {copy}: a copy of {id}, whose place is runs/emoji/triplet/{id}.json; skipped\n" in said.err
    assert harness("show", id).code == 0
    said = harness("import", str(store.root), "--results", str(tmp_path / "other"))
    assert said.code == 1
    assert said.err.count("a copy of") == len(copies)
    assert len(Store(tmp_path / "other").results()[0]) == 2
    assert harness("rm", id).code == 0
    assert not original.exists()
    assert "the record of" in harness("tables").err


@pytest.mark.fault(
    "the record of a failed trial copied to `ID (conflicted copy).json` and into another folder under failures/",
    "counts once; each copy is named and skipped, exit 1; show and rm find the original",
)
def test_a_copy_of_a_failure_counts_for_nothing(harness: Harness, tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    store.put(a_result())
    original = store.note(Failure(a_trial(seed=1), "ValueError: no", ""))
    renamed = original.with_name(f"{original.stem} (conflicted copy).json")
    elsewhere = original.parent.with_name("other") / original.name
    elsewhere.parent.mkdir()
    for copy in (renamed, elsewhere):
        shutil.copy(original, copy)
    said = harness("status")
    assert said.code == 1
    assert "1 failed" in said.out
    for copy in (renamed, elsewhere):
        assert said.err.count(f"harness: {copy}: a copy of {original.stem}, whose place is failures/") == 1
    assert harness("show", original.stem).out.count("ValueError: no") == 1
    assert harness("rm", original.stem).code == 0
    assert not original.exists()
    assert "failed" not in harness("status").out


# --- odd records through every command ---


class Folder:
    """A results folder with every kind of record, in which odd ones take turns. It lies so deep, and is the working
    directory's neighbour, that a file that a record leads astray is seen."""

    def __init__(self, root: Path, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.harness = root, harness
        self.parent = parent = root.joinpath("a", "b", "c", "d", "e")
        parent.mkdir(parents=True)
        self.results, self.other = parent / "results", parent / "other"
        monkeypatch.setenv("HARNESS_RESULTS", str(self.results))
        monkeypatch.chdir(parent)
        self.records = populate(self.results)
        self.before = self.contents()

    def contents(self) -> dict[Path, bytes]:
        return {file: file.read_bytes() for file in (self.results / "runs").rglob("*.json")}

    def put(self, mutant: Mutant) -> bool:
        """Store a mutant, in the place of the record with its id if there is one. Returns whether it can be read."""
        file = self.results / mutant.file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(mutant.text)
        results = {result.id: result for result in Store(self.results).results()[0]}
        if mutant.id in results:
            check_values(results[mutant.id])
        return mutant.id in results

    def restore(self) -> None:
        """Remove the mutants, and what commands have stored."""
        for file in self.contents():
            if file not in self.before:
                file.unlink()
        for file, content in self.before.items():
            file.write_bytes(content)
        shutil.rmtree(self.other, ignore_errors=True)

    def read_by_all(self, id: str) -> None:
        """Every command that reads records, except those that draw. A traceback or a control character fails the
        test."""
        commands = [*TABLES, ("ls", "runs"), ("status",), ("compare", "group", "triplet"), ("show", id), ("eval", id)]
        for command in (*commands, ("import", str(self.results), "--results", str(self.other))):
            assert is_harmless(self.harness(*command)), command

    def draw(self) -> None:
        for words in (
            ("figures", "--format", "png", "--out", str(self.parent / "figures")),
            ("report", "--out", str(self.parent / "report.html")),
        ):
            said = self.harness(*words)
            assert is_harmless(said), words
            assert said.code == 0, said.err  # what cannot be drawn is skipped

    def stray_files(self) -> set[Path]:
        """What lies outside of the folders and files that commands were given."""
        given = {self.results, self.other, self.parent / "figures", self.parent / "report.html"}
        theirs = (path for path in self.root.rglob("*") if not given & {path, *path.parents})
        return {path for path in theirs if path not in (self.parent, *self.parent.parents)}


def check_values(result: Result) -> None:
    """What tables print of it is possible."""
    known = r"(train )?(R@\d+|MAP@R|RP|NMI)"
    points = [(name, value) for row in result.curve for name, value in row.items()]
    fractions = [*result.metrics.values(), *(value for name, value in points if re.fullmatch(known, name))]
    assert all(type(value) in (int, float) and 0 <= value <= 1 for value in fractions)
    assert all(type(value) in (int, float) and -1 <= value <= 1 for name, value in points if name == "cosine")
    amounts = [*result.seconds.values(), *(row.get("images", 0) for row in result.curve), result.parameters or 0]
    assert all(type(amount) in (int, float) and 0 <= amount < 1e15 for amount in amounts)
    assert not has_controls(f"{result.trial.dataset}{result.trial.loss}")  # names of folders


def survive(folder: Folder, count: int, seed: int) -> list[Mutant]:
    """Put so many mutants through every command that draws nothing. Returns those that were taken for records."""
    accepted: list[Mutant] = []
    for mutant in mutants(folder.records, count, seed):
        if folder.put(mutant):
            accepted.append(mutant)
            folder.read_by_all(mutant.id)
        else:
            assert folder.harness("ls", "runs").code == 1
        folder.restore()
    assert not folder.stray_files()
    return accepted


@pytest.mark.fault(
    "a dozen mutated records (1 or 2 odd fields each, id recomputed) through every command that reads them",
    "read or named; no traceback, no impossible value, no control character, no file outside of the folders given",
)
def test_odd_records_break_no_command(harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(survive(Folder(tmp_path, harness, monkeypatch), count=12, seed=7)) > 2


def test_a_stray_file_is_seen_wherever_it_lies(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tmp_path, harness, monkeypatch)
    assert not folder.stray_files()
    places = {Path("x"), Path("../../../../x"), Path("sub/x")}
    for place in places:
        place.parent.mkdir(exist_ok=True)
        place.touch()
    assert {path.resolve() for path in folder.stray_files()} == {
        *(place.resolve() for place in places),
        Path("sub").resolve(),
    }


@pytest.mark.chaos_long
@pytest.mark.fault(
    "1,000 mutated records (1 or 2 odd fields each, id recomputed) through tables, ls, show, status, eval, compare, "
    "import, figures and report",
    "read or named; no traceback, no impossible value, no control character, no file outside of the folders given",
)
@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_odd_records_break_no_command(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    folder = Folder(tmp_path, harness, monkeypatch)
    accepted = survive(folder, count=100, seed=100 + seed)
    assert len(accepted) > 10
    for first in range(0, len(accepted), 10):  # drawing takes seconds, so ten are drawn at once
        for mutant in accepted[first : first + 10]:
            folder.put(mutant)
        folder.draw()
        folder.restore()
    assert not folder.stray_files()
