"""Ray's workers with a bucket as storage, whose server is slow and fails."""

import signal
import subprocess
from pathlib import Path

import pytest

from harness.execution import heartbeat
from harness.storage import Storage
from tests.chaos.conftest import SlowRun
from tests.processes import bits, environment, start_until, until
from tests.s3 import BUCKET, S3

URI = f"s3://{BUCKET}/run"
ALL = ("--trials", "2", "--seeds", "2", "--ensemble", "2", "--set", "pretrain_epochs=1")


def finish(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=500)


@pytest.mark.chaos_long
@pytest.mark.timeout(1500)
@pytest.mark.fault(
    "a driver killed while it searches, on an S3 store that is slow and fails one request in ten",
    "the same command continues, to the bits of a folder",
)
def test_a_killed_run_continues_from_a_bucket_with_the_same_bits(slow_run: SlowRun, s3: S3, tmp_path: Path) -> None:
    folder = finish(slow_run.command(tmp_path / "folder", "--executor", "local", *ALL, nap=0))
    assert folder.returncode == 0, folder.stderr
    s3.delay, s3.failing = 0.1, 0.1
    words = slow_run.command(tmp_path / "bucket", "--storage", URI, *ALL)
    running, seen = start_until(words, " epoch 2/4")
    running.send_signal(signal.SIGKILL)
    running.wait()
    storage = Storage(URI)
    beats = heartbeat.read(storage)
    assert beats
    until(lambda: all(beat.is_gone for beat in beats))  # its Ray follows it
    assert storage.names("checkpoints")
    again = finish(words)
    assert again.returncode == 0, again.stderr
    assert "pretrain" in seen
    assert "pretrain epoch" not in again.stderr  # is in the bucket
    assert bits(tmp_path / "bucket") == bits(tmp_path / "folder")
    assert {name.split("/")[1] for name in s3.names()} == {"embeddings", "weights", "pretrained"}
