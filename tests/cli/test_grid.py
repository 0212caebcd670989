"""`harness run --grid`: which cells run, and the table of them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness import config, plan
from harness.spec import Experiment
from harness.tables.grid import grid
from harness.tables.render.markdown import markdown
from harness.training import trial as train
from tests.conftest import Harness
from tests.factories import a_result

WORDS = ("run", "--losses", "group,triplet", "--dataset", "blobs")
GRID = ("--grid", "group.anchors=0,1", "--grid", "samples_per_class=2,3")


def records(tmp_path: Path) -> list[dict]:
    return [json.loads(file.read_text()) for file in sorted((tmp_path / "results").glob("runs/*/*/*.json"))]


def test_the_table_has_means_over_seeds_and_points_to_the_best() -> None:
    losses = (config.loss("group"), config.loss("triplet"))
    varied = {"group.anchors": (0, 2), "lr": (0.001,)}
    experiment = Experiment(config.dataset("emoji"), config.protocol("quick"), losses, seeds=2, grid=varied)
    cells = plan.grid(experiment)
    scores = [0.50, 0.60, 0.70, 0.71, 0.70499]  # group with 0 and with 2 anchors, triplet, whose second seed failed
    results = [a_result(cell, **{"R@1": score}) for cell, score in zip(cells, scores, strict=False)]
    table = grid(experiment, cells, results)
    assert table is not None
    assert markdown(table) == (
        "### Emoji · grid · quick · tf_efficientnet_lite0\n\n"
        "| Loss       |   group.anchors |    lr |   seeds |   R@1 |   to the best |\n"
        "|:-----------|----------------:|------:|--------:|------:|--------------:|\n"
        "| Group Loss |               0 | 0.001 |       2 |  55.0 |         -15.5 |\n"
        "| Group Loss |               2 | 0.001 |       2 |  70.5 |           0.0 |\n"
        "| Triplet    |                 | 0.001 |       1 |  70.5 |           0.0 |\n\n"
        "Validation classes (val0). Percent, mean over seeds; the difference in percentage points.\n"
    )


def test_a_grid_says_what_was_set_otherwise_than_the_protocol() -> None:
    settings = {"epochs": 1}
    varied = {"samples_per_class": (2, 4)}
    losses = (config.loss("triplet"),)
    experiment = Experiment(config.dataset("emoji"), config.protocol("quick"), losses, settings=settings, grid=varied)
    cells = plan.grid(experiment)
    table = grid(experiment, cells, [a_result(cell) for cell in cells])
    assert table is not None
    assert table.caption.startswith("Protocol quick, but epochs = 1 (protocol: 4). Validation")
    assert grid(experiment, cells, []) is None  # all failed


def test_cells_that_were_not_run_alike_or_not_trained_are_footnoted() -> None:
    experiment = Experiment(
        config.dataset("emoji"), config.protocol("quick"), (config.loss("triplet"),), grid={"lr": (0.1, 0.2, 0.3)}
    )
    cells = plan.grid(experiment)
    results = [replace(a_result(cell), provenance={"device_type": "cpu", "threads": 1}) for cell in cells]
    results[1] = replace(results[1], provenance={"device_type": "cpu", "threads": 2})
    results[2] = replace(results[2], curve=({"epoch": 1, "loss": 0.0},))
    table = grid(experiment, cells, results)
    assert table is not None
    assert [row.notes for row in table.rows] == [
        (),
        ("Run under other conditions: threads = 2 (usual: 1).",),
        ("Its loss was 0 in every epoch: it was not trained.",),
    ]
    assert "| Triplet[a] |" in markdown(table)


def test_a_grid_runs_its_cells_and_nothing_else_and_only_once(small: Path, harness: Harness, tmp_path: Path) -> None:
    planned = harness(*WORDS, *GRID, "--dry-run")
    assert planned.out.count("-blobs-val0-") == 6
    assert "samples_per_class=3 anchors=1" in planned.out
    assert "6 to run" in planned.out
    said = harness(*WORDS, *GRID)
    assert said.code == 0
    assert "[6/6]" in said.err
    found = records(tmp_path)
    assert {one["trial"]["fold"] for one in found} == {"val0"}
    cells = {
        (one["trial"]["loss"], one["trial"]["knobs"].get("anchors"), one["trial"]["samples_per_class"]) for one in found
    }
    assert cells == {("group", a, s) for a in (0, 1) for s in (2, 3)} | {("triplet", None, s) for s in (2, 3)}
    assert said.out.count("| Group Loss ") == 4
    assert said.out.count("| Triplet ") == 2

    again = harness(*WORDS, *GRID)
    assert (again.code, again.out, again.err) == (0, said.out, "")
    assert harness(*WORDS, *GRID, "--dry-run").out.count("  stored  ") == 6
    # what another command has stored is a cell, and the other way round
    set_ = ("--set", "fold=val0", "--set", "group.anchors=1", "--set", "samples_per_class=3")
    assert "group-" not in harness(*WORDS, *set_).err
    more = harness(*WORDS, "--grid", "group.anchors=0,1,2", "--grid", "samples_per_class=3,2")
    assert "[2/2] group-" in more.err


def test_a_grid_on_test_classes_is_allowed_and_says_that_nothing_is_selected(small: Path, harness: Harness) -> None:
    said = harness(
        *WORDS, "--losses", "triplet", "--grid", "samples_per_class=2,3", "--set", "fold=test", "--seeds", "2"
    )
    assert said.code == 0
    assert said.err.count("] triplet-blobs-test-") == 4
    assert "Test classes: nothing is selected by this table." in said.out
    assert "Raw pixels" not in said.out


def test_a_cell_that_failed_has_no_number_and_the_exit_code_says_so(
    small: Path, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = train.set_up

    def poisoned(job, *more):  # type: ignore[no-untyped-def]
        if job.trial.samples_per_class == 2:
            raise RuntimeError("no")
        return real(job, *more)

    monkeypatch.setattr(train, "set_up", poisoned)
    said = harness(*WORDS, "--losses", "triplet", "--grid", "samples_per_class=2,3")
    assert said.code == 1
    assert "1 failed" in said.err
    rows = [[word.strip() for word in line.split("|")[1:-1]] for line in said.out.splitlines() if "Triplet" in line]
    assert rows[0] == ["Triplet", "2", "0", "-", "-"]
    assert rows[1][:3] == ["Triplet", "3", "1"]
    assert rows[1][4] == "0.0"
