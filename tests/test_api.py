"""The Python interface: harness.run, harness.load and what Results can do."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import harness
from tests.processes import HARNESS


def run(tmp_path: Path, losses: str | list[str] = "group,triplet", **options: Any) -> harness.Results:
    folder = tmp_path / "results"
    return harness.run(losses, "blobs", results=folder, executor="local", quiet=True, **options)


def test_a_run_gives_the_final_results_and_load_finds_them_again(small: Path, tmp_path: Path) -> None:
    results = run(tmp_path, set={"epochs": 2, "group.anchors": 1}, seeds=2)
    assert not results.failures
    by_loss = sorted((result.trial.loss, result.trial.seed) for result in results)
    trained = [("group", 0), ("group", 1), ("triplet", 0), ("triplet", 1)]
    assert by_loss == [*trained[:2], ("none", 0), ("none", 0), ("none", 1), *trained[2:]]  # raw pixels: one seed
    assert {result.trial.epochs for result in results.filter(loss="triplet")} == {2}
    assert {result.trial.knobs["anchors"] for result in results.filter(loss="group")} == {1}
    loaded = harness.load(tmp_path / "results")
    assert {result.id for result in loaded} == {result.id for result in results}
    assert len(loaded) == len(results) == 7
    assert repr(loaded) == "<harness.Results: 7 results, 0 failures, 0 problems>"


def test_what_is_stored_is_not_run_again(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(tmp_path)
    from harness.execution import local

    monkeypatch.setattr(local, "execute", None)
    assert {result.id for result in run(tmp_path, ["triplet", "group"])} == {result.id for result in first}


def test_the_frame_has_a_row_per_result_and_filters_keep_what_is_named(small: Path, tmp_path: Path) -> None:
    run(tmp_path, "triplet", trials=2)
    results = harness.load(tmp_path / "results")
    frame = results.frame()
    assert list(frame["id"]) == [result.id for result in results]
    assert {"loss", "dataset", "fold", "purpose", "knob.margin", "R@1", "NMI"} <= set(frame.columns)
    assert {result.trial.fold for result in results.filter(fold="val0")} == {"val0"}
    assert len(results.filter(purpose="search")) == 2
    assert len(results.filter(loss="triplet", fold="test")) == 1
    shown = results.filter(backbone="test_efficientnet")
    assert "pixels" in {result.trial.backbone for result in shown}  # it has no network
    with pytest.raises(harness.UserError, match="no dataset with results named 'blob'; did you mean 'blobs'"):
        results.filter(dataset="blob")


def test_tables_are_those_of_the_command_line_and_know_the_search_whatever_is_filtered(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = run(tmp_path, "triplet", trials=2)
    loaded = harness.load(tmp_path / "results")
    table = loaded.tables()
    assert "| Triplet[a]" in table  # below raw pixels
    assert made.tables() == table
    assert loaded.filter(dataset="blobs", fold="test").tables() == table
    assert r"\toprule" in loaded.tables(format="latex")
    assert loaded.tables(format="csv").startswith("source,id,title")
    assert "MAP@R" in loaded.tables(metrics=["R@1", "MAP@R"])
    with pytest.raises(harness.UserError, match="no kind of table named 'loss'; did you mean 'losses'"):
        loaded.tables("loss")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"ensemble": 2}, "--ensemble 2: must be integers from 2 to --seeds (1)"),
        ({"grid": {"epochs": [1, 2]}, "trials": 2}, "--grid and --trials exclude each other"),
        ({"grid": {"epochs": [1, 2]}, "set": {"epochs": 1}}, "exclude each other"),
        ({"trials": 2, "set": {"fold": "val0"}}, "exclude each other"),
        ({"scheduler": "asha"}, "--scheduler asha: needs --executor ray"),
        ({"scheduler": "ahsa"}, "--scheduler ahsa: must be one of none, asha"),
        ({"trials": 1.5}, "--trials 1.5: must be an integer >= 0"),
        ({"set": {"epoch": 1}}, "no setting named 'epoch'; did you mean 'epochs'?"),
        ({"epochs": 2}, "no option named 'epochs'"),
    ],
)
def test_the_rules_between_options_hold_in_python_too(
    small: Path, tmp_path: Path, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(harness.UserError) as error:
        run(tmp_path, **options)
    assert complaint in str(error.value)
    assert not (tmp_path / "results").exists()


def test_a_grid_takes_lists_and_a_list_is_a_value_of_drops(small: Path, tmp_path: Path) -> None:
    results = run(tmp_path, "triplet", grid={"epochs": [1, 2]}, set={"drops": [3, 5], "dim": None})
    assert sorted(result.trial.epochs for result in results) == [1, 2]
    assert {(result.trial.drops, result.trial.dim, result.purpose) for result in results} == {((3, 5), None, "grid")}


def test_a_protocol_that_selects_by_what_the_dataset_does_not_measure_is_refused(small: Path, tmp_path: Path) -> None:
    file = small / "protocols" / "tiny.toml"
    file.write_text(file.read_text().replace('select = "R@1"', 'select = "R@10"'))
    with pytest.raises(harness.UserError, match=r"select=R@10: blobs is measured at R@1, R@2, R@4, R@8"):
        run(tmp_path, "triplet", trials=1)


def test_a_folder_without_results_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(harness.UserError, match="is not a results folder"):
        harness.load(tmp_path)


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, harness\n"
        "heavy = {'torch', 'ray', 'pandas', 'numpy', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_package_that_hides_ours_is_named(tmp_path: Path) -> None:
    (tmp_path / "losses").mkdir()
    (tmp_path / "losses" / "__init__.py").touch()
    words = [sys.executable, "-c", "import harness; harness.load('results')"]
    said = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert said.stderr.splitlines()[-1].startswith(f"ImportError: {tmp_path}/losses hides our package")
    path = {**os.environ, "PYTHONPATH": str(tmp_path)}
    said = subprocess.run([*HARNESS, "ls", "losses"], cwd=tmp_path, env=path, capture_output=True, text=True)
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.startswith(f"harness: {tmp_path}/losses hides our package")


def test_the_lines_of_the_readme_run_on_the_committed_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(__file__).parent.parent
    (lines,) = re.findall(r"^```python\n(.*?)^```$", (root / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(root)
    names: dict[str, Any] = {}
    exec(lines, names)
    assert len(names["frame"]) == len(names["results"])
    assert {result.trial.dataset for result in names["birds"]} == {"cub"}
    assert "| Normalized Softmax" in capsys.readouterr().out
