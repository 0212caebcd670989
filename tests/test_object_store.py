"""A bucket of an S3 server as storage: what is written there, and what is said when it fails."""

import contextlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from s3fs import S3FileSystem

from harness.execution.announcement import announced
from harness.spec import StorageError
from harness.storage import DamagedError, Storage, heartbeat
from tests.conftest import Harness, Said
from tests.factories import a_trial
from tests.s3 import BUCKET, S3

URI = f"s3://{BUCKET}/run"
RUN = ("run", "--dataset", "blobs", "--losses", "triplet", "--trials", "2", "--seeds", "2", "--ensemble", "2")
RUN += ("--set", "epochs=2", "--set", "pretrain_epochs=1", "--storage")


def test_what_is_written_is_read_back_listed_and_removed(s3: S3) -> None:
    storage = Storage(URI)
    storage.prepare()
    reference = storage.write_sealed("checkpoints/a.pt", "a", b"weights")
    assert storage.read_sealed("checkpoints/a.pt", "a") == b"weights"
    assert storage.names("checkpoints") == [reference["path"]] == ["checkpoints/a.pt"]
    assert s3.names() == ["run/checkpoints/a.pt"]
    storage.remove("checkpoints/a.pt")
    assert storage.read("checkpoints/a.pt") is None
    assert not storage.exists("checkpoints/a.pt")
    assert storage.names("checkpoints") == []
    assert s3.names() == []


def test_what_other_processes_write_and_remove_is_seen_at_once(s3: S3) -> None:
    """fsspec keeps listings and looks files up in them, sizes too."""
    storage = Storage(URI)
    storage.write("checkpoints/a.pt", b"a")
    assert storage.names("checkpoints") == ["checkpoints/a.pt"]
    s3.client.put_object(Bucket=BUCKET, Key="run/checkpoints/b.pt", Body=b"bb")
    s3.client.put_object(Bucket=BUCKET, Key="run/checkpoints/a.pt", Body=b"longer")
    assert storage.exists("checkpoints/b.pt")
    assert storage.read("checkpoints/b.pt") == b"bb"
    assert storage.read("checkpoints/a.pt") == b"longer"
    assert storage.sizes("checkpoints") == {"checkpoints/a.pt": 6, "checkpoints/b.pt": 2}
    s3.client.delete_object(Bucket=BUCKET, Key="run/checkpoints/b.pt")
    assert not storage.exists("checkpoints/b.pt")
    assert storage.read("checkpoints/b.pt") is None
    assert storage.names("checkpoints") == ["checkpoints/a.pt"]


def test_a_damaged_file_is_set_aside(s3: S3) -> None:
    storage = Storage(URI)
    storage.write("checkpoints/a.pt", b"junk")
    with pytest.raises(DamagedError) as damage:
        storage.read_sealed("checkpoints/a.pt", "a")
    storage.set_aside(damage.value)
    (moved,) = s3.names()
    assert moved.startswith("run/damaged/")
    assert moved.endswith("checkpoints-a.pt")


@pytest.mark.parametrize(
    ("request_of", "requests"),
    [
        (lambda storage: storage.write("a/b", b"content"), 1),
        (lambda storage: storage.read("a/b"), 2),  # its size, then the content: large ones come in parts, side by side
        (lambda storage: storage.read("a/missing"), 2),
        (lambda storage: storage.exists("a/b"), 1),
        (lambda storage: storage.names("a"), 1),
        (lambda storage: storage.sizes("a"), 1),
        (lambda storage: storage.remove("a/b"), 1),
    ],
)
def test_an_operation_takes_few_requests(s3: S3, request_of: Callable[[Storage], Any], requests: int) -> None:
    storage = Storage(URI)
    storage.write("a/b", b"before")
    s3.requests.clear()
    request_of(storage)
    assert s3.requests.total() == requests


@pytest.mark.parametrize("operation", ["read", "exists", "names", "write"])
def test_a_bucket_that_is_not_there_is_said_to_be(s3: S3, operation: str) -> None:
    """A file that is missing in a bucket is none; in no bucket, nothing can be said of it."""
    storage = Storage("s3://nowhere/run")
    arguments = ("a/b", b"content") if operation == "write" else ("a/b",)
    with pytest.raises(
        StorageError, match=r"^cannot \w+ \w+ --storage s3://nowhere/run: The specified bucket does not"
    ):
        getattr(storage, operation)(*arguments)


def test_a_request_that_fails_is_repeated_as_often_as_the_user_says(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    s3.failing = 1.0
    with pytest.raises(StorageError, match=r"^cannot write to --storage s3://bench/run: We encountered an internal"):
        Storage(URI).write("a", b"")
    assert s3.requests.total() == 2


def refused(said: Said, line: str) -> None:
    """One line, and nothing else."""
    assert said.code == 2
    assert line in said.err.strip().splitlines()[-1]
    assert "Traceback" not in said.all_err
    assert len(said.err.strip().splitlines()) == 1, said.err


@pytest.mark.parametrize("words", [RUN[:-1], ("status",), ("gc",)])
def test_a_command_says_in_one_line_what_is_wrong_with_the_store(
    s3: S3, small: Path, harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    (tmp_path / "results" / "runs").mkdir(parents=True)
    nowhere = "s3://nowhere/run"
    refused(harness(*words, "--storage", nowhere), f"--storage {nowhere}: The specified bucket does not exist")
    s3.check_keys(True)
    refused(harness(*words, "--storage", URI), f"--storage {URI}: The AWS Access Key Id you provided does not exist")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    S3FileSystem.clear_instance_cache()
    refused(harness(*words, "--storage", URI), f"--storage {URI}: Unable to locate credentials")


def test_user_and_password_of_a_uri_are_in_no_message_and_no_file(
    s3: S3, small: Path, harness: Harness, tmp_path: Path
) -> None:
    """S3 takes none there: botocore says so, and repeats them."""
    said = harness(*RUN, "s3://somebody:hunter2@bench/run")
    refused(said, "cannot write to --storage s3://***@bench/run: ")
    assert "hunter2" not in said.all_err
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and b"hunter2" in file.read_bytes()]


def records(results: Path) -> dict[str, Any]:
    """What training and evaluation gave, by id."""
    files = [json.loads(file.read_text()) for file in results.glob("runs/*/*/*.json")]
    return {one["id"]: (one["metrics"], [row["loss"] for row in one["curve"]]) for one in files}


@pytest.fixture
def in_folder(small: Path, harness: Harness, tmp_path: Path) -> dict[str, Any]:
    """The records of the same run with a folder as storage."""
    assert harness(*RUN, str(tmp_path / "storage"), "--results", str(tmp_path / "folder")).code == 0
    return records(tmp_path / "folder")


def test_a_run_whose_requests_fail_one_in_ten_gives_the_same_bits(
    s3: S3, in_folder: dict[str, Any], harness: Harness, tmp_path: Path
) -> None:
    s3.failing = 0.1
    said = harness(*RUN, URI)
    s3.failing = 0.0
    assert said.code == 0, said.err
    assert records(tmp_path / "results") == in_folder
    # what stays is what records refer to: nothing of a driver, of a running trial, or of Tune
    assert {name.split("/")[1] for name in s3.names()} == {"embeddings", "weights", "pretrained"}


def test_requests_of_a_run(s3: S3, small: Path, harness: Harness) -> None:
    assert harness(*RUN, URI).code == 0
    trials, epochs = 4, 2  # of the loss; two epochs each
    assert s3.count("PUT .*/checkpoints/") == trials * epochs + s3.count("PUT .*/pretrained/")
    assert s3.count("PUT .*/embeddings/") == 2
    # a trial that is shorter than 20 s says once that it begins
    assert 0 < s3.count("PUT .*/running/") <= s3.count("DELETE .*/running/")


def test_the_end_of_an_interrupted_run_takes_few_requests_however_many_trials_it_has(s3: S3) -> None:
    """After SIGTERM there are ten seconds."""
    storage = Storage(URI)
    trials = [a_trial(seed=seed) for seed in range(200)]
    for trial in trials[:9]:
        storage.write(heartbeat(trial.id), b"{}")
    storage.write(heartbeat("another"), b"{}")
    with contextlib.suppress(KeyboardInterrupt), announced(storage, "harness run", "emoji", "quick") as plan:
        plan.update(trials, 0)
        s3.requests.clear()
        raise KeyboardInterrupt
    assert s3.requests.total() <= 4
    assert storage.names("running") == ["running/another.json"]


def test_an_outage_ends_the_run_and_the_same_command_continues(
    s3: S3, in_folder: dict[str, Any], harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3.last = 60  # requests; then it is out of order
    said = harness(*RUN, URI)
    assert said.code == 2
    last = said.err.strip().splitlines()[-1]
    assert re.search(rf"cannot (read from|write to) --storage {URI}: (We encountered an i|I)nternal ", last), said.err
    assert last.endswith("finished trials are stored, the same command continues")
    assert "Traceback" not in said.all_err
    done = records(tmp_path / "results")
    assert done.keys() < in_folder.keys()
    s3.last = None
    assert harness(*RUN, URI).code == 0
    assert records(tmp_path / "results") == in_folder


def measured_again(harness: Harness, run: Path, storage: str) -> dict[str, float]:
    """The metrics of a stored run as `harness eval` finds them. Its new record is removed."""
    said = harness("eval", run.stem, "--nmi-recipe", "hartigan", "--storage", storage)
    assert said.code == 0, said.err
    (record,) = [file for file in run.parent.glob("*.json") if file != run]
    metrics: dict[str, float] = json.loads(record.read_text())["metrics"]
    record.unlink()
    return metrics


def test_a_stored_network_is_used_from_the_bucket(s3: S3, small: Path, harness: Harness, tmp_path: Path) -> None:
    words = ("run", "--dataset", "blobs", "--losses", "triplet", "--storage", URI, "--keep-weights", "all")
    assert harness(*words).code == 0
    (file,) = (tmp_path / "results").glob("runs/blobs/triplet/*.json")
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    said = harness("embed", file.stem, str(tmp_path / "a.png"), "--storage", URI)
    assert said.code == 0, said.err
    assert len(said.out.splitlines()[-1].split(",")) == 1 + 8
    measured = measured_again(harness, file, URI)
    assert s3.count("GET .*/embeddings/") > 0
    for name in s3.names():
        copied = tmp_path / "folder" / name.removeprefix("run/")
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_bytes(s3.client.get_object(Bucket=BUCKET, Key=name)["Body"].read())
    s3.requests.clear()
    assert measured_again(harness, file, str(tmp_path / "folder")) == measured
    assert s3.requests.total() == 0
    words = ("eval", file.stem, "--nmi-recipe", "hartigan", "--storage", "s3://nowhere/run")
    refused(harness(*words), "--storage s3://nowhere/run: The specified bucket does not exist")
    shutil.rmtree(tmp_path / "results" / "artifacts", ignore_errors=True)  # nothing lies there
    assert harness("embed", file.stem, str(tmp_path / "a.png"), "--storage", URI).out == said.out
    missing = harness("embed", file.stem, str(tmp_path / "a.png"), "--storage", "s3://nowhere/run")
    refused(missing, "--storage s3://nowhere/run: The specified bucket does not exist")
