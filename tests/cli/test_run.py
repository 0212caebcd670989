"""`harness run` as a user types it: what runs, what is stored, what is printed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.data import loading
from harness.store import Store
from harness.training import trial as train
from tests.cli.records import stored
from tests.conftest import Harness, heed_ctrl_c

QUICK = ("run", "--losses", "group,triplet", "--dataset", "blobs")


def test_run_then_tables_then_nothing_is_missing(small: Path, harness: Harness, tmp_path: Path) -> None:
    first = harness(*QUICK)
    assert first.code == 0
    for words in (
        "### Blobs · losses · tiny · test\\_efficientnet",
        "| Raw pixels",
        "| Untrained network",
        "| Group Loss",
    ):
        assert words.replace("\\", "") in first.out.replace("\\", "")
    assert "epoch 1/1  loss" in first.err
    assert "[4/4]" in first.err
    files = {file: file.read_bytes() for file in stored(tmp_path / "results")}
    assert len(files) == 4

    second = harness(*QUICK)
    assert (second.code, second.out, second.err) == (0, first.out, "")
    first_word, overview = (line[9:] for line in second.all_err.splitlines())
    assert first_word == "2 losses on blobs, protocol tiny: 4 trials; loading torch ..."
    assert overview == "4 trials: all stored, nothing to run"
    assert first.out.startswith(harness("tables").out)
    assert {file: file.read_bytes() for file in stored(tmp_path / "results")} == files


def test_more_seeds_run_only_the_new_ones(small: Path, harness: Harness) -> None:
    harness(*QUICK, "--losses", "triplet")
    again = harness(*QUICK, "--losses", "triplet", "--seeds", "2")
    assert "[2/2]" in again.err  # the second seed of the loss and of the untrained, random network
    assert "±" in again.out
    assert "2 seeds" in again.out


def test_search_chooses_on_validation_classes_and_reports_on_test_classes(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    said = harness("run", "--losses", "triplet", "--dataset", "blobs", "--trials", "3")
    assert said.code == 0
    records = [json.loads(file.read_text()) for file in stored(tmp_path / "results")]
    searched = [r for r in records if r["trial"]["fold"] == "val0"]
    (final,) = [r for r in records if r["trial"]["fold"] == "test" and r["trial"]["loss"] == "triplet"]
    best = max(searched, key=lambda r: (r["metrics"]["R@1"], [-ord(c) for c in r["id"]]))
    assert len(searched) == 3
    assert final["trial"]["knobs"] == best["trial"]["knobs"]
    assert final["trial"]["lr"] == best["trial"]["lr"]
    again = harness("run", "--losses", "triplet", "--dataset", "blobs", "--trials", "3")
    winner, comparable = (line[9:] for line in again.err.splitlines())  # nothing runs
    assert winner == (
        f"triplet: best of 3 on validation classes: R@1 {100 * best['metrics']['R@1']:.1f} with "
        f"margin={final['trial']['knobs']['margin']} lr={final['trial']['lr']} ({best['id']}); 1 final run"
    )
    assert "not comparable" in comparable
    assert winner in said.err


def test_a_search_that_draws_the_same_values_twice_still_chooses(small: Path, harness: Harness) -> None:
    said = harness("run", "--losses", "deep_spectral", "--dataset", "blobs", "--trials", "3", "--set", "lr=1e-3")
    assert said.code == 0
    assert said.err.count("-val0-") == 3  # its beginning, an epoch, its end: one trial, not three
    assert "| Deep Spectral" in said.out


def test_a_run_on_a_validation_fold_says_where_its_results_are(small: Path, harness: Harness) -> None:
    said = harness("run", "--losses", "triplet", "--dataset", "blobs", "--set", "fold=val0")
    assert (said.code, said.out) == (0, "")
    assert "harness ls runs" in said.err


def test_dry_run_prints_the_plan_and_runs_nothing(small: Path, harness: Harness, tmp_path: Path) -> None:
    harness("run", "--losses", "none", "--dataset", "blobs")
    said = harness(*QUICK, "--trials", "2", "--seeds", "2", "--dry-run")
    assert said.code == 0
    assert said.out.count("-blobs-val0-") == 4
    assert said.out.count("stored") == 2
    assert "then 4 final runs with the values of the best R@1" in said.out
    assert "9 to run: about 0:0" in said.out  # 4 of the search, the untrained network's second seed, 4 final
    assert "MB of disk" in said.out
    assert len(stored(tmp_path / "results")) == 2
    alone = harness("run", "--losses", "triplet", "--dataset", "blobs", "--trials", "1", "--dry-run")
    assert "then 1 final run with the values of the best R@1" in alone.out


def test_the_plan_of_a_search_shows_all_that_is_drawn(small: Path, harness: Harness) -> None:
    with (small / "protocols" / "tiny.toml").open("a") as file:
        file.write("weight_decay = [1e-5, 1e-3]\n")
    said = harness("run", "--losses", "triplet", "--dataset", "blobs", "--trials", "2", "--dry-run")
    drawn = re.findall(r"-val0-\S+ .* weight_decay=(\S+) margin=", said.out)
    assert len(set(drawn)) == 2


def test_losses_accept_a_dash(small: Path, harness: Harness) -> None:
    said = harness(
        *("run", "--losses", "proxy-nca,proxy_nca", "--dataset", "blobs", "--dry-run", "--set", "proxy-nca.scale=2")
    )
    assert said.out.count("proxy_nca-blobs-test-") == 1
    assert "scale=2.0" in said.out


def test_a_failed_trial_does_not_stop_the_others_and_is_tried_again(
    small: Path, harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = train.set_up

    def poisoned(job, *more):  # type: ignore[no-untyped-def]
        bench, loss = real(job, *more)
        if job.trial.loss == "group":
            loss.classifier.weight.data[0, 0] = float("nan")
        return bench, loss

    monkeypatch.setattr(train, "set_up", poisoned)
    said = harness(*QUICK)
    assert said.code == 1
    assert "loss is nan at epoch 1, step 1" in said.err
    (failed,) = Store(tmp_path / "results").failures()
    assert f"1 failed; harness show {failed.stem} tells why; the same command tries again" in said.err
    assert "| Triplet" in said.out
    assert "| Group Loss" not in said.out
    (failure,) = (tmp_path / "results" / "failures").rglob("*.json")
    assert str(failure) in said.err
    assert "Traceback" in json.loads(failure.read_text())["traceback"]

    monkeypatch.setattr(train, "set_up", real)
    again = harness(*QUICK)
    assert again.code == 0
    assert "[1/1] group-" in again.err
    assert not list((tmp_path / "results" / "failures").rglob("*.json"))


def test_a_damaged_dataset_file_is_told_before_anything_runs(small: Path, harness: Harness) -> None:
    file = loading.EMBEDDED / "blobs.npz"
    file.write_bytes(b"x" + file.read_bytes())
    said = harness(*QUICK)
    assert said.code == 2
    assert "sha256" in said.err
    assert said.err.count("\n") == 1


def test_a_results_folder_that_cannot_be_written_is_told_before_anything_runs(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    said = harness(*QUICK, "--results", str(tmp_path / "file"))
    assert said.code == 2
    assert f"cannot write results to {tmp_path / 'file'}" in said.err
    said = harness("tables", "--out", str(tmp_path / "file"))
    assert said.code == 2


def test_a_broken_record_is_named_skipped_and_in_the_exit_code(small: Path, harness: Harness, tmp_path: Path) -> None:
    whole = harness(*QUICK)
    foreign = tmp_path / "results" / "runs" / "blobs" / "triplet" / "foreign.json"
    foreign.write_text('{"cut": ')
    for command in (("tables",), QUICK):
        said = harness(*command)
        assert said.code == 1
        assert whole.out.startswith(said.out)
        assert str(foreign) in said.err
        assert "skipped" in said.err


def test_what_a_record_says_of_its_command_is_the_users(small: Path, harness: Harness, tmp_path: Path) -> None:
    harness("run", "--losses", "none", "--dataset", "blobs")
    (record, *_) = [json.loads(file.read_text()) for file in stored(tmp_path / "results")]
    assert record["provenance"]["command"].startswith("harness run --losses none --dataset blobs")


@pytest.mark.slow
def test_ctrl_c_keeps_what_finished_and_the_same_command_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness", "run", "--losses", "triplet", "--results", str(tmp_path)]
    command += ["--executor", "local", "--weights", "none"]
    for setting in ("backbone=test_efficientnet", "resize=32", "crop=32", "epochs=200"):
        command += ["--set", setting]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE}
    running = subprocess.Popen(command, **pipes, text=True, env=environment, preexec_fn=heed_ctrl_c)
    assert running.stderr is not None
    deadline = time.monotonic() + 240
    lines = []
    while time.monotonic() < deadline:
        lines.append(running.stderr.readline())
        if "epoch 2/200" in lines[-1]:
            break
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130, "".join(lines) + err
    assert "interrupted; finished trials are stored" in err
    assert "Traceback" not in err
    assert out == ""
    assert len(stored(tmp_path)) == 2  # the baselines
    again = [part.replace("epochs=200", "epochs=1") for part in command]
    finished = subprocess.run(again, capture_output=True, text=True, env=environment)
    assert finished.returncode == 0
    assert "[1/1] triplet-" in finished.stderr
