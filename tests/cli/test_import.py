"""`harness import`: another machine's results."""

import json
from dataclasses import replace
from pathlib import Path

from PIL import Image

from harness.spec import Failure, Stopped
from harness.storage import Storage
from harness.store import Store
from tests.cli.records import stored
from tests.conftest import Harness
from tests.factories import a_result, a_trial


def test_import_merges_another_store(small: Path, harness: Harness, tmp_path: Path) -> None:
    other = tmp_path / "other"
    harness("run", "--losses", "triplet", "--dataset", "blobs", "--results", str(other))
    harness("run", "--losses", "none", "--dataset", "blobs")
    assert harness("import", str(other)).out == (
        "1 imported, 2 already here\nnot copied: 2 embeddings and weights (--artifacts copies them)\n"
    )
    assert harness("run", "--losses", "triplet", "--dataset", "blobs").err == ""
    stored(other)[0].write_text("{")
    said = harness("import", str(other))
    assert said.code == 1
    assert str(stored(other)[0]) in said.err


def test_import_carries_the_values_of_each_query(small: Path, harness: Harness, tmp_path: Path) -> None:
    other = tmp_path / "other"
    harness("run", "--losses", "triplet", "--dataset", "blobs", "--results", str(other))
    harness("import", str(other))
    theirs, ours = (sorted(folder.glob("runs/*/*/*.npz")) for folder in (other, tmp_path / "results"))
    assert len(theirs) == 3  # the loss and both baselines
    assert [file.read_bytes() for file in ours] == [file.read_bytes() for file in theirs]
    for file in ours:
        harness("rm", file.stem)
    assert not list((tmp_path / "results").glob("runs/*/*/*.npz"))
    theirs[0].write_bytes(b"damaged")
    theirs[1].unlink()
    said = harness("import", str(other))
    assert said.code == 1
    assert said.out.startswith("3 imported, 0 already here\n")
    assert [line.split(": ")[1] for line in said.err.splitlines()] == [str(file) for file in theirs[:2]]
    assert len(list((tmp_path / "results").glob("runs/*/*/*.npz"))) == 1


def test_import_copies_embeddings_and_weights_when_asked(small: Path, harness: Harness, tmp_path: Path) -> None:
    other, image = tmp_path / "other", tmp_path / "image.png"
    Image.new("RGB", (16, 16)).save(image)
    harness("run", "--losses", "triplet", "--dataset", "blobs", "--results", str(other))
    (run,) = [result for result in Store(other).results()[0] if result.is_final]
    harness("import", str(other))
    said = harness("embed", run.id, str(image))  # the record says that its weights were kept
    assert said.code == 2
    assert "are not in " in said.err
    assert "were not kept" not in said.err
    assert harness("import", str(other), "--artifacts").out == (
        "0 imported, 3 already here\nembeddings and weights copied: 2\n"
    )
    assert harness("embed", run.id, str(image)).code == 0
    assert harness("eval", run.id, "--nmi-recipe", "hartigan").code == 0
    assert harness("import", str(other), "--artifacts").out.endswith("embeddings and weights copied: 0\n")


def test_import_names_what_it_does_not_copy(harness: Harness, tmp_path: Path) -> None:
    ours, theirs = Store(tmp_path / "results"), Store(tmp_path / "other")
    for store, score in ((ours, 0.25), (theirs, 0.5)):
        store.put(a_result(**{"R@1": score, "NMI": 0.5}))
    theirs.note(Failure(a_trial(seed=1), "no", ""))
    theirs.note(Stopped(a_trial(seed=2, fold="val0"), 1, {}))
    said = harness("import", str(theirs.root))
    assert said.code == 0
    assert said.out.splitlines() == [
        "0 imported, 1 already here",
        f"{a_trial().id} is here with other numbers, which stay: R@1 25.0000 here, 50.0000 there",
        "not copied: 1 record in failures/",
        "not copied: 1 record in stopped/",
    ]
    assert Store(ours.root).get(a_trial()).metrics["R@1"] == 0.25


def test_a_record_of_a_newer_version_is_copied_with_all_that_it_says(harness: Harness, tmp_path: Path) -> None:
    theirs = Store(tmp_path / "other")
    theirs.put(a_result())
    file = theirs.path(a_trial())
    later = Storage(str(theirs.artifacts)).write_artifact("checkpoints", "later", b"of an unknown kind")
    record = {**json.loads(file.read_text()), "later": {"a": [1]}, "artifacts": {"later": later}}
    file.write_text(json.dumps(record))
    assert harness("import", str(theirs.root), "--artifacts").code == 0
    assert json.loads(Store(tmp_path / "results").path(a_trial()).read_text()) == record
    assert not (tmp_path / "results" / "artifacts" / "checkpoints").exists()  # trials would go on from what is there


def test_a_damaged_file_is_named_and_one_that_is_missing_is_counted(harness: Harness, tmp_path: Path) -> None:
    theirs = Store(tmp_path / "other")
    there = Storage(str(theirs.artifacts))
    entries = {kind: there.write_artifact(kind, "x", kind.encode()) for kind in ("embeddings", "weights")}
    theirs.put(replace(a_result(), artifacts=entries))
    there.write(entries["embeddings"]["path"], b"damaged")
    there.remove(entries["weights"]["path"])
    said = harness("import", str(theirs.root), "--artifacts")
    assert said.code == 1
    assert f"not copied: 1 embeddings and weights that are not in {theirs.artifacts}\n" in said.out
    assert said.err.count("\n") == 1
    assert f"{entries['embeddings']['path']} is damaged" in said.err
    assert not (tmp_path / "results" / "artifacts" / "embeddings").exists()
