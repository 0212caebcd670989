"""Many trials that do nothing, on a Ray of their own, with a worker killed every few seconds; prints what was measured.

python -m tests.chaos.idle_trials FOLDER TRIALS SECONDS    # SECONDS between two kills; 0: none
"""

import contextlib
import json
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from harness.execution.ray_cluster import Cluster
from harness.spec import Event, Job
from harness.storage import Storage
from tests.execution.ray_runs import experiment, run_of
from tests.factories import a_result


def idle(job: Job) -> Iterator[Event]:
    """10 ms while the worker is set up or reset, which is when a death is hardest to survive; then a result."""
    time.sleep(0.01)
    return iter([a_result(job.trial)])


def workers(driver: int) -> list[int]:
    """The workers of the Ray that a driver has started, whether they are being reset or train."""
    parents, titles = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            titles[int(folder.name)] = (folder / "cmdline").read_bytes().decode(errors="replace")
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has just ended
            continue
    found = [pid for pid, title in titles.items() if title.startswith("ray::TrialWorker")]
    return [pid for pid in found if parents.get(parents.get(pid, 0)) == driver]


def kill_every(seconds: float, ended: list[float], kills: list[int], done: threading.Event) -> None:
    """Not before a trial has ended since the last kill: on a busy machine a worker takes longer to start."""
    rng, seen = random.Random(0), 0
    while not done.wait(seconds):
        alive = workers(os.getpid())
        if alive and len(ended) > seen:
            seen = len(ended)
            kills.append(rng.choice(sorted(alive)))
            with contextlib.suppress(ProcessLookupError):
                os.kill(kills[-1], signal.SIGKILL)


def main(folder: Path, trials: int, seconds: float) -> None:
    ended, kills, done = list[float](), list[int](), threading.Event()
    with Cluster(events=idle).connected(Storage(str(folder / "storage")), lambda line: None) as cluster:
        running = run_of(experiment("triplet", seeds=trials), folder, cluster.execute)
        running.listeners = (lambda trial, event: ended.append(time.perf_counter()),)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        killer = threading.Thread(target=kill_every, args=(seconds, ended, kills, done), daemon=True)
        if seconds:
            killer.start()
        running.dispatch(running.account.final)
        done.set()
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    measured = {
        "rate": (len(ended) - 1) / (ended[-1] - ended[0]),  # from the first end on: the workers' start is left out
        "megabytes": grown,
        "kills": len(kills),
        "failures": len(running.failures),
        "ended": len(ended),
    }
    print(json.dumps(measured))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
