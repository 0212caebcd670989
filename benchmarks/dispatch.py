"""What dispatching through Ray costs and gains, as ratios measured side by side in one run.

    python benchmarks/dispatch.py                                # every part, one after another
    python benchmarks/dispatch.py --parts rate --concurrent 20   # one part, at one number of trials at once
    python benchmarks/dispatch.py --parts rate,pauses --noop 200 # smaller

requests    how many requests a run sends to an object store, per trial and per epoch
startup     what a trial pays before its first step in a process that has run one before, as a reused worker has,
            against a fresh process
rate        trials that end at once, on logical GPUs: how many are dispatched and stored per second, what each takes of
            the driver's CPU time, and what the driver's memory grows by
reports     how many reports of running trials the driver takes per second, on logical GPUs
pauses      the delay between a trial's end and the start of the next one on its logical GPU
stored      `harness run` with all trials stored
occupancy   how much of the GPU time a search of four losses of unlike length with shared pre-training uses on 8 logical
            GPUs, beside the order that waited for all searches to end, and held GPUs while one trial pre-trained
throughput  the same emoji trials: two workers with one thread each, against one process with one thread and with two

Run it alone: the machine is shared by everything that is timed. A part takes minutes on 2 cores, because every logical
GPU has a worker, and their processes start first.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import object_store
import simulation
import torch

from harness import plan, request
from harness.execution import local
from harness.execution.ray_cluster import Cluster
from harness.request import Request
from harness.spec import Event, Experiment, Failure, Job, Progress, Trial
from harness.storage import Storage
from harness.store import Store

ROUNDS = 4  # of trials on each logical GPU
STORED = {"resize": 32, "crop": 32, "fold": "val0"}
TINY = {"backbone": "test_efficientnet", "dim": 8, "resize": 32, "crop": 32, "fold": "val0"}


def experiment(seeds: int, **settings: object) -> Experiment:
    """Seeds of the triplet loss on emoji, as `harness run` names them."""
    weights = "none" if "backbone" in settings else None
    return request.experiment(Request(losses="triplet", seeds=seeds, weights=weights, set=settings))


def finish(trial: Trial, event: Event) -> None:
    """A trial that fails takes no time, so it must not count."""
    if isinstance(event, Failure):
        raise RuntimeError(f"{trial.name}: {event.error}")


def jobs(planned: Experiment, storage: str, threads: int = 1) -> list[Job]:
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
            seconds[threads] = timed(lambda todo=todo: local.execute(todo, finish))
            print(f"    one process, {threads} thread(s): {seconds[threads]:.0f} s", flush=True)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, Cluster().connected(Storage(folder), print) as cluster:
        parallel = timed(lambda: cluster.execute(jobs(planned, folder), finish))
    print(f"    two workers, 1 thread each: {parallel:.0f} s")
    print(
        f"throughput: Ray against one process with 1 thread: {seconds[1] / parallel:.2f}x; "
        f"with 2: {seconds[2] / parallel:.2f}x"
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
    print(f"startup: a later trial against a fresh process: {100 * warm / cold:.1f} %")


def rate(address: str, gpus: int, trials: int) -> None:
    """Trials that do nothing: what is left is dispatching and storing."""
    fast = simulation.throughput(address, gpus, trials)
    tenth = max(2, trials // 10)
    first, last = (fast.work_per_event(ends=True, part=part) for part in (slice(tenth), slice(-tenth, None)))
    print(f"rate: {gpus} at once: {fast.rate(ends=True):.1f} trials/s dispatched and stored")
    print(f"    CPU time of the driver per trial: {first:.1f} ms at first, {last:.1f} ms at the end of {trials}")
    print(f"    the driver grew {fast.growth:.0f} MB per 1,000 trials", flush=True)


def reports(address: str, gpus: int, trials: int) -> None:
    talk = simulation.reports(address, gpus, max(2, trials // gpus))
    per_second, work = talk.rate(ends=False), talk.work_per_event(ends=False)
    print(
        f"reports: {gpus} at once: {per_second:.0f} reports/s, {work:.1f} ms of CPU time of the driver each", flush=True
    )


def pauses(address: str, gpus: int, trials: int) -> None:
    """A few rounds of trials, however many `trials` the other parts have."""
    seconds = 2 + gpus / 10
    delays = sorted(simulation.turnover(address, gpus, ROUNDS, seconds).delays())
    middle, late = statistics.median(delays), delays[int(0.95 * len(delays))]
    print(
        f"pauses: {gpus} at once, {seconds:.0f} s each: a GPU has none for {middle:.2f} s (95 %: {late:.2f} s)",
        flush=True,
    )


def stored(trials: int) -> None:
    """`harness run` where nothing is left to do."""
    planned = experiment(trials, **STORED)
    with tempfile.TemporaryDirectory() as results:
        store = Store(Path(results))
        store.prepare()
        for trial in plan.final(planned, {}):
            store.put(simulation.made_up(trial))
        words = [sys.executable, "-m", "harness", "run", "--losses", "triplet", "--seeds", str(trials)]
        words += ["--results", results, "--executor", "local"]
        words += [word for name, value in STORED.items() for word in ("--set", f"{name}={value}")]
        subprocess.run(words, check=True, capture_output=True)  # the baselines are not stored yet
        again = timed(lambda: subprocess.run(words, check=True, capture_output=True))
        print(f"stored: harness run with all {trials} stored: {again:.1f} s", flush=True)


def occupancy(address: str, gpus: int, unit: float, trials: int, seeds: int) -> None:
    free = simulation.search(address, gpus, unit, trials, seeds, barriers=False).occupancy
    bound = simulation.search(address, gpus, unit, trials, seeds, barriers=True).occupancy
    shares = {
        "of the GPU time that was reserved": "of_reserved",
        "of it without the start of workers": "of_started",
        "of all that was there": "of_there",
    }
    for words, share in shares.items():
        now, before = getattr(free, share), getattr(bound, share)
        shares_of_both = f"{now:.1%} {words}, with barriers and locks in {before:.1%}"
        print(f"occupancy: trials worked in {shares_of_both}: {now / before:.2f}x")
    print(f"    the run took {free.seconds:.0f} s, with barriers and locks {bound.seconds:.0f} s", flush=True)


def storage_requests(trials: int) -> None:
    counted = object_store.requests(trials, epochs=2)
    each = f"{counted.per_trial:.1f} requests per trial and {counted.per_epoch:.1f} per epoch"
    print(f"requests: on an object store: {each}; {counted.per_run:.0f} per run", flush=True)


ON_LOGICAL_GPUS = {"rate": rate, "reports": reports, "pauses": pauses}
PARTS = ("requests", "startup", *ON_LOGICAL_GPUS, "stored", "occupancy", "throughput")


def names(words: str) -> list[str]:
    """The parts that --parts names."""
    parts = words.split(",")
    for part in parts:
        if part not in PARTS:
            raise argparse.ArgumentTypeError(f"no part named {part!r}; known: {', '.join(PARTS)}")
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=names, default=list(PARTS), help="which of them, separated by commas")
    parser.add_argument("--trials", type=int, default=16, help="emoji trials of throughput")
    parser.add_argument("--epochs", type=int, default=14, help="of each, about 1.4 s an epoch on one core")
    parser.add_argument("--later", type=int, default=5, help="later trials of startup")
    parser.add_argument("--noop", type=int, default=2000, help="trials of rate and stored, reports of reports")
    parser.add_argument(
        "--concurrent",
        default="2,20,48",
        help="logical GPUs of rate, reports and pauses; each has a process of about 200 MB",
    )
    parser.add_argument("--unit", type=float, default=4.0, help="seconds of the shortest loss's trials in occupancy")
    parser.add_argument("--requests", type=int, default=4, help="trials of requests")
    options = parser.parse_args()
    if "requests" in options.parts:
        storage_requests(options.requests)
    if "startup" in options.parts:
        start_up(options.later)
    measured = [measure for part, measure in ON_LOGICAL_GPUS.items() if part in options.parts]
    for gpus in map(int, options.concurrent.split(",") if measured else ()):
        with simulation.nodes(gpus) as address:
            for measure in measured:
                measure(address, gpus, options.noop)
    if "stored" in options.parts:
        stored(options.noop)
    if "occupancy" in options.parts:
        with simulation.nodes(8) as address:
            occupancy(address, 8, options.unit, trials=12, seeds=3)
    if "throughput" in options.parts:
        throughput(options.trials, options.epochs)


if __name__ == "__main__":
    main()
