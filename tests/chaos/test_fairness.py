"""Unequal treatment that a table must show, and damaged records of experiments."""

import contextlib
import json
import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from harness.spec import ExperimentRecord
from harness.store import Store
from tests.chaos.mutants import ODD, populate
from tests.conftest import Harness
from tests.factories import an_experiment

RUN = ("run", "--dataset", "blobs", "--losses")


@pytest.mark.fault(
    "one loss is searched with 3 trials, another not at all, in two commands",
    "the table says which row had no search",
)
def test_unequal_searches_are_told_apart_by_row(small: Path, harness: Harness) -> None:
    harness(*RUN, "triplet", "--trials", "3")
    harness(*RUN, "proxy_nca")
    out = harness("tables").out
    assert "Budget per loss: 3 random-search trials (except where a footnote says otherwise)" in out
    assert out.count("No random search (usual: 3 random-search trials).") == 1
    (mark,) = {line[2] for line in out.splitlines() if "No random search" in line}
    (row,) = [line for line in out.splitlines() if line.startswith("| Proxy-NCA")]
    assert mark in row.partition("[")[2].partition("]")[0].split(",")


@pytest.mark.fault(
    "values that a search found for one network, crop and length are used with another",
    "a footnote says what they were found with, and the caption that a search found them",
)
def test_values_found_elsewhere_are_said_to_be(small: Path, harness: Harness) -> None:
    file = small / "protocols" / "tiny.toml"
    found = "[tuned.blobs.triplet]\nmargin = 0.3\ntrials = 7\nfound_with = { epochs = 1, resize = 32, crop = 32 }\n"
    file.write_text(file.read_text() + found)
    words = (*RUN, "triplet", "--set", "epochs=2", "--set", "resize=24", "--set", "crop=24")
    here = "epochs = 1 (here: 2); resize = 32 (here: 24); crop = 32 (here: 24)"
    assert f"\ntriplet: values were found with {here}.\n" in harness(*words, "--dry-run").out
    said = harness(*words)
    assert "values found by 7 trials of random search on validation classes" in said.out
    assert "no random search" not in said.out
    assert f"Its values were found with {here}." in said.out
    protocol = "resize = 24 (protocol: 32); crop = 24 (protocol: 32); epochs = 2 (protocol: 1)"
    assert f"Protocol tiny, but {protocol}." in said.out
    assert "were found with" not in harness(*RUN, "triplet", "--dry-run").out + harness(*RUN, "triplet").out


@pytest.mark.fault(
    "the record of an experiment is cut short, foreign, edited or copied",
    "one line names it, everything else is shown, and the exit code is 1",
)
@pytest.mark.parametrize("damage", ["cut", "foreign", "edited", "copied", "folder"])
def test_a_damaged_record_of_an_experiment_is_one_line(
    small: Path, harness: Harness, tmp_path: Path, damage: str
) -> None:
    harness(*RUN, "triplet")
    folder = tmp_path / "results" / "experiments"
    (file,) = folder.glob("*.json")
    text = file.read_text()
    wrong = folder / "copy.json" if damage == "copied" else file
    if damage == "folder":
        file.unlink()
        file.mkdir()
    else:
        changed = json.dumps({**json.loads(text), "seeds": 9})
        wrong.write_text({"cut": text[:50], "foreign": "[1, 2]", "edited": changed, "copied": text}[damage])
    commands = [("tables",), ("status",), ("tables", "--table", "search"), ("import", str(tmp_path / "results"))]
    if damage == "cut":
        commands.append(("report",))  # draws, which takes seconds
    for command in commands:
        said = harness(*command)
        assert said.code == 1, command
        assert len(said.err.splitlines()) == 1, command
        assert said.err.startswith(f"harness: {wrong}: ")
    assert "| Triplet" in harness("tables").out
    said = harness(*RUN, "triplet")
    if damage == "copied":
        assert (said.code, "| Triplet" in said.out) == (1, True)
    else:
        assert said.code == 2
        assert said.err.startswith(f"harness: {file}: ")
        assert said.err.endswith("; remove it: the same command writes it again\n")


@pytest.mark.fault(
    "one field of an experiment's record holds something odd: 1e300, a terminal's command, a list, 10^400, ...",
    "the record is refused in one line, or tables, status and `show` work with it",
)
def test_an_odd_record_of_an_experiment_breaks_no_command(harness: Harness, tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    results = populate(store.root)
    search, final = ([run.id for run in results if run.is_single and run.trial.on_test is on] for on in (False, True))
    good = an_experiment(search=tuple(sorted(search)), final=tuple(sorted(final)), trials=2)
    accepted = []
    for name in good.to_json():
        for odd in ODD:
            data = {**good.to_json(), name: odd}
            with contextlib.suppress(TypeError, ValueError, AttributeError):  # what cannot be hashed keeps the old id
                data["id"] = replace(good, **{name: tuple(odd) if isinstance(odd, list) else odd}).id
            with contextlib.suppress(ValueError):
                accepted.append(ExperimentRecord.from_json(json.loads(json.dumps(data))))
    assert len(accepted) > 50
    for record in random.Random(0).sample(accepted, 25):
        store.put_experiment(record)
        for command in (("tables", "--table", "all"), ("status",), ("show", final[0])):
            said = harness(*command)
            assert said.code == 0, said.err
            assert "\x1b" not in said.out
        (store.root / "experiments" / f"{record.id}.json").unlink()


@pytest.mark.fault(
    "several drivers of one request write its record at the same moment",
    "the record is whole at every moment, and complete in the end",
)
def test_drivers_that_write_one_record_at_once_leave_it_whole(tmp_path: Path) -> None:
    start = an_experiment(search=("a" * 12,), trials=1)
    end = replace(start, final=("b" * 12,), chosen={"triplet": {"margin": 0.1}})
    problems: list[str] = []

    def drive() -> None:
        store = Store(tmp_path / "results")
        for _ in range(20):
            for record in (start, end):
                store.put_experiment(record)
                problems.extend(store.experiments()[1])

    drivers = [threading.Thread(target=drive) for _ in range(4)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    assert not problems
    assert Store(tmp_path / "results").experiments() == ([end], [])
    assert [path.name for path in (tmp_path / "results").rglob("*.*")] == [f"{end.id}.json"]
