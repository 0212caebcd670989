"""How many requests a run sends to an object store: counted by a real S3 server on loopback.

dispatch.py prints what is counted here.
"""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from tests.s3 import BUCKET, S3

TINY = ("backbone=test_efficientnet", "dim=8", "resize=32", "crop=32", "warmup_epochs=0")


@dataclass(frozen=True)
class Requests:
    """On average. A trial of more than 20 seconds adds one per 20 seconds, and its driver another one."""

    per_trial: float  # without its epochs
    per_epoch: float
    per_run: float  # whatever its trials


def count(server: S3, trials: int, epochs: int, *more: str) -> int:
    """Requests of a run of so many trials."""
    server.reset()
    with tempfile.TemporaryDirectory() as results:
        words = [sys.executable, "-m", "harness", "run", "--losses", "triplet", "--weights", "none", *more]
        words += ["--results", results, "--storage", f"s3://{BUCKET}/run"]
        words += ["--grid", f"lr={','.join(f'{number}e-4' for number in range(1, trials + 1))}"]
        words += [word for setting in (*TINY, f"epochs={epochs}") for word in ("--set", setting)]
        environment = {**os.environ, **server.environment, "OMP_NUM_THREADS": "1"}
        subprocess.run(words, check=True, capture_output=True, env=environment)
    return server.requests.total()


def requests(trials: int, epochs: int, *more: str) -> Requests:
    """From three runs: one has more epochs than the first, one more trials."""
    server = S3()
    try:
        first = count(server, trials, epochs, *more)
        longer = count(server, trials, 2 * epochs, *more)
        larger = count(server, 2 * trials, epochs, *more)
    finally:
        server.stop()
    per_epoch = (longer - first) / (trials * epochs)
    per_trial = (larger - first) / trials - epochs * per_epoch
    return Requests(per_trial, per_epoch, first - trials * (per_trial + epochs * per_epoch))
