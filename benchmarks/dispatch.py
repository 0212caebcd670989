"""What dispatching through Ray costs and gains, as ratios measured side by side in one run.

    python benchmarks/dispatch.py             # everything, about 20 minutes on 2 cores
    python benchmarks/dispatch.py --noop 200  # smaller

(a) the same emoji trials: two workers with one thread each, against one process with one thread and with two;
(b) what a trial pays before its first step in a process that has run one before, as a reused worker has, against a
    fresh process;
(c) trials of 0 epochs dispatched and stored a second, and the driver's memory; then the same command with all stored.

Run it alone: the machine is shared by everything that is timed.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from rich.console import Console

from harness import plan, request
from harness.execution import local
from harness.execution.account import Account
from harness.execution.display import Display
from harness.execution.ray_cluster import Cluster
from harness.execution.run import Run
from harness.request import Request
from harness.spec import Event, Experiment, Job, Progress, Result, Trial
from harness.storage import Storage
from harness.store import Store

TINY = {"backbone": "test_efficientnet", "dim": 8, "resize": 32, "crop": 32, "fold": "val0"}


def experiment(seeds: int, **settings: object) -> Experiment:
    """Seeds of the triplet loss on emoji, as `harness run` names them."""
    weights = "none" if "backbone" in settings else None
    return request.experiment(Request(losses="triplet", seeds=seeds, weights=weights, set=settings))


def jobs(planned: Experiment, storage: str, threads: int | None = None) -> list[Job]:
    return [Job(trial, planned.dataset, storage, threads=threads) for trial in plan.final(planned, {})]


def timed(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def throughput(trials: int, epochs: int) -> None:
    planned = experiment(trials, **{**TINY, "epochs": epochs})
    seconds = {}
    for threads in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            todo = jobs(planned, folder, threads)
            seconds[threads] = timed(lambda todo=todo: local.execute(todo, lambda trial, event: None))
            print(f"    one process, {threads} thread(s): {seconds[threads]:.0f} s", flush=True)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, Cluster().connected(Storage(folder), print) as cluster:
        parallel = timed(lambda: cluster.execute(jobs(planned, folder), lambda trial, event: None))
    print(f"    two workers, 1 thread each: {parallel:.0f} s")
    print(
        f"(a) Ray against one process with 1 thread: {seconds[1] / parallel:.2f}x; with 2: {seconds[2] / parallel:.2f}x"
    )


FRESH = """
import time; begun = time.perf_counter()
from harness import plan, request
from harness.training import trial as train
from harness.spec import Job
planned = request.experiment(request.Request(losses="triplet", weights="none", set={settings}))
job = Job(plan.final(planned, {{}})[0], planned.dataset, {folder!r}, threads=1)
next(train.events(job))
print(time.perf_counter() - begun)
"""


def start_up(trials: int) -> None:
    """Seconds to the first look at the loss, 8 steps in; the same steps are subtracted from both sides by taking an
    already warm process's figure as what the steps themselves cost."""
    settings = {**TINY, "epochs": 1}
    with tempfile.TemporaryDirectory() as folder:
        fresh = []
        for _ in range(3):
            code = FRESH.format(settings=settings, folder=folder)
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            begun = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=environment)
            fresh.append(time.perf_counter() - begun)
    planned = experiment(trials + 1, **settings)
    torch.set_num_threads(1)
    from harness.training import trial as train

    with tempfile.TemporaryDirectory() as folder:
        reused, steps = [], []
        for number, job in enumerate(jobs(planned, folder, threads=1)):
            begun = time.perf_counter()
            events = train.events(job)
            first = next(events)
            assert isinstance(first, Progress)
            if number:
                reused.append(time.perf_counter() - begun)
                steps.append(first.step * 64 / first.images_per_second)
            events.close()  # type: ignore[attr-defined]
    warm = statistics.median(reused) - statistics.median(steps)
    cold = statistics.median(fresh) - statistics.median(steps)
    print(f"    fresh process: {cold:.2f} s, worker that has run a trial: {warm:.2f} s")
    print(f"(b) start-up of a later trial against a fresh process: {100 * warm / cold:.1f} %")


def idle(job: Job) -> Iterator[Event]:
    """What a worker does here: the trial ends at once with a made-up result."""
    yield made_up(job.trial)


def made_up(trial: Trial) -> Result:
    metrics = dict.fromkeys(("R@1", "R@2", "R@4", "R@8", "MAP@R", "RP", "NMI"), 0.5)
    seconds = {"train": 0.0, "evaluate": 0.0, "total": 0.0}
    curve = tuple({"epoch": epoch, "loss": 1.0, "images_per_second": 1.0} for epoch in range(4))
    about = {"title": "Idle", "cite": "nobody", "conventions": {"NMI": "none"}, "parameters": 0, "artifacts": {}}
    return Result(trial=trial, metrics=metrics, curve=curve, seconds=seconds, provenance={}, **about)


def overhead(trials: int) -> None:
    """Trials that do nothing: what is left is dispatching and storing."""
    settings = {"resize": 32, "crop": 32, "fold": "val0"}
    planned = experiment(trials, **settings)
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results"
        ended: list[float] = []
        with Cluster(events=idle).connected(Storage(folder), print) as cluster:
            store = Store(results)
            store.prepare()
            silent = Console(file=open(os.devnull, "w"))  # noqa: SIM115
            account = Account(planned, store)

            def clock(trial: Trial, event: Event) -> None:
                ended.append(time.perf_counter())

            display = Display(silent, planned.protocol)
            run = Run(account, Storage(folder), cluster.execute, display, listeners=[clock])
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            run.dispatch(account.final)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        rate = (len(ended) - 1) / (ended[-1] - ended[0])  # from the first end: the workers' start is left out
        print(
            f"(c) {rate:.1f} trials/s dispatched and stored; the driver grew {grown / trials * 1000:.0f} MB per 1,000"
        )
        words = [sys.executable, "-m", "harness", "run", "--losses", "triplet", "--seeds", str(trials)]
        words += ["--results", str(results), "--executor", "local"]
        words += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        subprocess.run(words, check=True, capture_output=True)  # the baselines are not stored yet
        again = timed(lambda: subprocess.run(words, check=True, capture_output=True))
        print(f"    harness run with all {trials} stored: {again:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=16, help="emoji trials for (a)")
    parser.add_argument("--epochs", type=int, default=14, help="of each, about 1.4 s an epoch on one core")
    parser.add_argument("--later", type=int, default=5, help="later trials for (b)")
    parser.add_argument("--noop", type=int, default=2000, help="trials for (c)")
    options = parser.parse_args()
    if options.later:
        start_up(options.later)
    if options.noop:
        overhead(options.noop)
    if options.trials:
        throughput(options.trials, options.epochs)


if __name__ == "__main__":
    main()
