"""`harness rm`, and `harness run --rerun`: what is removed or replaced."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.execution.announcement import announced
from harness.spec import Failure
from harness.storage import Storage
from harness.store import Store
from tests.cli.records import stored
from tests.conftest import Harness
from tests.factories import a_result


def test_rerun_replaces_and_rm_removes(small: Path, harness: Harness, tmp_path: Path) -> None:
    harness("run", "--losses", "none", "--dataset", "blobs")
    file = stored(tmp_path / "results")[0]
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "parameters": 12345}))
    assert harness("run", "--losses", "none", "--dataset", "blobs").err == ""
    assert json.loads(file.read_text())["parameters"] == 12345
    assert "[2/2]" in harness("run", "--losses", "none", "--dataset", "blobs", "--rerun").err
    assert json.loads(file.read_text())["parameters"] == record["parameters"]
    assert harness("rm", file.stem[:8]).code == 0
    assert not file.exists()
    assert "[1/1]" in harness("run", "--losses", "none", "--dataset", "blobs").err


def files_in(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def test_rm_names_and_removes_embeddings_weights_and_ensembles_and_gc_what_is_left(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    words = ("run", "--losses", "triplet", "--dataset", "blobs", "--seeds", "2")
    assert harness(*words, "--ensemble", "2", "--keep-weights", "all").code == 0
    results = tmp_path / "results"
    artifacts, store = results / "artifacts", Store(results)
    runs, _ = store.results()
    first, second = (run for run in runs if run.is_final)
    (ensemble,) = (run for run in runs if run.is_ensemble)
    assert harness("gc").out == "nothing to remove: every file belongs to a record, or to a run that can go on\n"
    said = harness("rm", first.id)
    assert said.code == 0
    assert f"  and its weights: weights/{first.id}-" in said.out
    assert f"  and its embeddings: embeddings/{first.id}-" in said.out
    assert f"  and the ensemble of 2 that was made from it: {ensemble.id}" in said.out
    assert not [name for name in files_in(results) if first.id in name and "experiments" not in name]
    assert not [name for name in files_in(results / "runs") if ensemble.id in name]

    failed = replace(first.trial, seed=7)
    lost = {f"weights/{second.id}-0.safetensors", "embeddings/abc.safetensors", "checkpoints/abc.pt", "damaged/x.pt"}
    for name in lost:
        (artifacts / name).parent.mkdir(exist_ok=True)
        (artifacts / name).write_bytes(bytes(100_000))
    store.note(Failure(failed, "RuntimeError: x", ""))
    (artifacts / "checkpoints" / f"{failed.id}.pt").write_bytes(b"it goes on from here")
    before = files_in(artifacts)
    listed = harness("gc")
    assert "0.4 MB  in 4 files" in listed.out
    assert listed.out.endswith("nothing was removed; --yes removes them\n")  # nobody is there to be asked
    assert files_in(artifacts) == before
    with announced(Storage(str(artifacts)), "harness run", "emoji", "quick") as plan:
        plan.update([failed], 0)
        assert "a run is at work here" in harness("gc", "--yes").err
    assert harness("gc", "--yes").out.endswith("removed\n")
    assert files_in(artifacts) == before - lost

    forgotten = harness("rm", failed.id)
    assert forgotten.out.startswith("removed failed trial ")
    assert "and its checkpoint" in forgotten.out
    assert not store.failures()
    assert not (artifacts / "checkpoints" / f"{failed.id}.pt").exists()
    (store.path(second.trial)).write_text("{")
    assert harness("gc", "--yes").code == 1  # it may refer to any file


def test_rm_of_an_unknown_id_is_refused(harness: Harness, tmp_path: Path) -> None:
    Store(tmp_path / "results").put(a_result())
    said = harness("rm", "zzz")
    assert (said.code, "no result or failed trial in" in said.err) == (2, True)


def test_gc_takes_the_end_of_its_input_for_a_no(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = tmp_path / "results" / "artifacts" / "embeddings" / "abc.safetensors"
    lost.parent.mkdir(parents=True)
    (tmp_path / "results" / "runs").mkdir()
    lost.write_bytes(bytes(100_000))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    said = harness("gc")
    assert (said.code, said.err) == (0, "")
    assert said.out.endswith("Remove them? [y/N]: \nnothing was removed; --yes removes them\n")
    assert lost.exists()
