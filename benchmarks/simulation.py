"""Trials that do nothing, on logical nodes and GPUs of this machine: what dispatching costs where there are many.

dispatch.py prints what is measured here. A logical GPU is a number in Ray's books; workers are real processes.
"""

import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from rich.console import Console

from harness import request
from harness.execution.account import Account
from harness.execution.display import Display
from harness.execution.pulse import Pulse
from harness.execution.ray_cluster import Cluster
from harness.execution.run import Run
from harness.request import Request
from harness.spec import Event, Experiment, Job, Progress, Result, Trial
from harness.storage import Storage
from harness.store import Store

GPUS_PER_NODE = 8
SAMPLE = 0.1  # seconds between two looks at what Ray has reserved

SETTINGS = {"resize": 32, "crop": 32}
LENGTHS = {"softmax": 1, "triplet": 2, "proxy_nca": 3, "group": 6}  # of a trial, in units; a fifth more or less
PRETRAINING, BASELINE = 5, 1


def made_up(trial: Trial) -> Result:
    metrics = dict.fromkeys(("R@1", "R@2", "R@4", "R@8", "MAP@R", "RP", "NMI"), 0.5)
    seconds = {"train": 0.0, "evaluate": 0.0, "total": 0.0}
    curve = tuple({"epoch": epoch, "loss": 1.0, "images_per_second": 1.0} for epoch in range(4))
    about = {"title": "Idle", "cite": "nobody", "conventions": {"NMI": "none"}, "parameters": 0, "artifacts": {}}
    return Result(trial=trial, metrics=metrics, curve=curve, seconds=seconds, provenance={}, **about)


def meet(folder: Path, workers: int) -> None:
    """In a worker: wait until so many are there. Else the first few would run most of the trials while the others
    start."""
    mine = folder / f"{os.getpid()}.here"
    if mine.exists():
        return
    mine.touch()
    while len(list(folder.glob("*.here"))) < workers:
        time.sleep(0.1)


def idle(folder: Path, workers: int, job: Job) -> Iterator[Event]:
    """What a worker does here: the trial ends at once with a made-up result."""
    meet(folder, workers)
    yield made_up(job.trial)


def talking(folder: Path, workers: int, reports: int, job: Job) -> Iterator[Event]:
    """A trial that does nothing but report the end of an epoch."""
    meet(folder, workers)
    for epoch in range(1, reports + 1):
        yield Progress("train", epoch, reports, 1, 1, 1.0, 1.0, 0.0)
    yield made_up(job.trial)


@dataclass(frozen=True)
class Work:
    """When a trial had a GPU and did something with it."""

    gpu: str
    begun: float
    ended: float


def work(folder: Path, seconds: float) -> None:
    """In a worker: do nothing for so long, and note when and on which GPU."""
    import ray

    context = ray.get_runtime_context()
    gpu = f"{context.get_node_id()}/{','.join(context.get_accelerator_ids()['GPU'])}"
    begun = time.time()
    time.sleep(seconds)
    with (folder / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps([gpu, begun, time.time()]) + "\n")


def begin(folder: Path) -> None:
    """In a worker: note when its process started, and when its first trial begins."""
    file = folder / f"{os.getpid()}.start"
    if not file.exists():
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        alive = float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
        file.write_text(json.dumps([time.time() - alive, time.time()]))


def noted(folder: Path) -> list[Work]:
    lines = [line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    return sorted((Work(*json.loads(line)) for line in lines), key=lambda work: work.begun)


def seconds_of(trial: Trial, unit: float) -> float:
    units = PRETRAINING if trial.is_pretraining else LENGTHS.get(trial.loss, BASELINE)
    return unit * units * (0.8 + 0.4 * int(trial.id, 16) / 16**12)


def working(folder: Path, unit: float, job: Job) -> Iterator[Event]:
    """A trial as it is: shared pre-training is a trial of its own."""
    begin(folder)
    work(folder, seconds_of(job.trial, unit))
    yield made_up(job.trial)


def crowded(folder: Path, workers: int, unit: float, job: Job) -> Iterator[Event]:
    """A trial that works where all workers have started."""
    meet(folder, workers)
    yield from working(folder, unit, job)


def locking(folder: Path, unit: float, job: Job) -> Iterator[Event]:
    """A trial as it was: the first that needs a pre-training does it, and the others wait with their GPUs."""
    from filelock import FileLock

    begin(folder)
    for need in needs_of(job):
        done = folder / need.id
        with FileLock(f"{done}.lock"):
            if not done.exists():
                work(folder, seconds_of(need, unit))
                done.touch()
    yield from working(folder, unit, job)


def needs_of(job: Job) -> list[Trial]:
    from harness.spec.pretraining import pretraining_of

    need = pretraining_of(job.trial)
    return [need] if need else []


def experiment(losses: str = "triplet", **asked: object) -> Experiment:
    return request.experiment(Request(losses=losses, weights="none", **asked))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Arrival:
    """Of an event in the driver: the time, the CPU time that the driver has used, and whether it ends its trial."""

    time: float
    cpu: float
    ends: bool


@dataclass
class Simulation:
    """A run on logical GPUs, and what was seen of it in the driver."""

    gpus: int
    events: Callable[[Path], Callable[[Job], Iterator[Event]]]  # given a folder for notes, what a worker does
    work: list[Work] = field(default_factory=list)  # as workers noted it
    arrivals: list[Arrival] = field(default_factory=list)  # of events in the driver
    memory: list[float] = field(default_factory=list)  # of the driver at each end, in MB
    reserved: list[tuple[float, float]] = field(default_factory=list)  # GPUs that Ray has given away, over time
    starts: list[tuple[float, float]] = field(default_factory=list)  # of workers: of the process, of its first trial

    @contextlib.contextmanager
    def joined(self, planned: Experiment, address: str) -> Iterator[Run]:
        """The run, on the nodes at this address."""
        from ray import cloudpickle

        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import it
        with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
            store, storage = Store(Path(folder) / "results"), Storage(f"{folder}/storage")
            store.prepare()
            shares = {"cpus_per_trial": 1 / GPUS_PER_NODE, "gpus_per_trial": 1.0}
            with Cluster(address, **shares, events=self.events(Path(folder))).connected(
                storage, lambda line: None
            ) as ray:
                sampling = Pulse(self.sample, SAMPLE)
                sampling.start()
                display = Display(Console(file=nowhere))
                yield Run(Account(planned, store), storage, ray.execute, display, listeners=[self.hear])
                sampling.end()
            self.work = noted(Path(folder))
            self.starts = [json.loads(file.read_text()) for file in Path(folder).glob("*.start")]

    def hear(self, trial: Trial, event: Event) -> None:
        ended = not isinstance(event, Progress)
        self.arrivals.append(Arrival(time.perf_counter(), time.process_time(), ended))
        if ended:
            self.memory.append(resident())

    def sample(self) -> None:
        import ray

        held = self.gpus - ray.available_resources().get("GPU", 0.0)
        self.reserved.append((time.time(), held))

    def rate(self, *, ends: bool) -> float:
        """Events per second, from the first one on: the workers' start is left out."""
        first, *_, last = [arrival for arrival in self.arrivals if arrival.ends == ends]
        return self.count(ends=ends) / (last.time - first.time)

    def work_per_event(self, *, ends: bool, part: slice = slice(None)) -> float:
        """Milliseconds of CPU time in the driver; other work on the machine changes it little."""
        arrivals = [arrival for arrival in self.arrivals if arrival.ends == ends][part]
        return 1000 * (arrivals[-1].cpu - arrivals[0].cpu) / (len(arrivals) - 1)

    def count(self, *, ends: bool) -> int:
        """After the first."""
        return sum(arrival.ends == ends for arrival in self.arrivals) - 1

    @property
    def growth(self) -> float:
        """Of the driver, in MB per 1,000 trials; from the first tenth of them on, when everything is imported."""
        first = len(self.memory) // 10
        return 1000 * (self.memory[-1] - self.memory[first]) / (len(self.memory) - 1 - first)

    def delays(self) -> list[float]:
        """Seconds between the end of a trial and the start of the next one on its GPU."""
        of_gpu = defaultdict(list)
        for one in self.work:
            of_gpu[one.gpu].append(one)
        return [later.begun - earlier.ended for works in of_gpu.values() for earlier, later in pairwise(works)]

    @property
    def span(self) -> tuple[float, float]:
        """From the first trial's start to the last one's end."""
        return self.work[0].begun, max(one.ended for one in self.work)

    @property
    def occupancy(self) -> "Occupancy":
        begin, end = self.span
        worked = sum(one.ended - one.begun for one in self.work)
        inside = [held for moment, held in self.reserved if begin <= moment <= end]
        reserved = statistics.mean(inside) * (end - begin)
        starting = sum(ready - max(start, begin) for start, ready in self.starts if ready > begin)
        return Occupancy(worked, reserved, self.gpus * (end - begin), end - begin, starting)


@dataclass(frozen=True)
class Occupancy:
    """GPU seconds: in which a trial worked, that Ray had reserved for trials, and that were there."""

    worked: float
    reserved: float
    there: float
    seconds: float  # from the first start to the last end
    starting: float  # of the reserved: in which processes of workers started

    @property
    def of_started(self) -> float:
        """Of the reserved time without the start of workers, whose share is small where trials are long."""
        return self.worked / (self.reserved - self.starting)

    @property
    def of_reserved(self) -> float:
        return self.worked / self.reserved

    @property
    def of_there(self) -> float:
        return self.worked / self.there


def resident() -> float:
    """Memory of this process now, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextlib.contextmanager
def nodes(gpus: int) -> Iterator[str]:
    """The address of a Ray whose nodes have up to 8 logical GPUs each."""
    from ray.cluster_utils import Cluster as Nodes

    sizes = [min(GPUS_PER_NODE, gpus - first) for first in range(0, gpus, GPUS_PER_NODE)]
    shares = {"num_cpus": 1, "dashboard_agent_listen_port": 0}  # few CPUs: Ray starts a process for each in advance
    head = {**shares, "num_gpus": sizes[0], "include_dashboard": False, "dashboard_port": None}  # any that is free
    started = Nodes(initialize_head=True, head_node_args=head)
    try:
        for size in sizes[1:]:
            started.add_node(**shares, num_gpus=size)
        started.wait_for_nodes()
        yield started.address
    finally:
        started.shutdown()


def throughput(address: str, gpus: int, trials: int) -> Simulation:
    """Trials that end at once."""
    simulation = Simulation(gpus, lambda notes: partial(idle, notes, gpus))
    with simulation.joined(experiment(seeds=max(trials, gpus), set={**SETTINGS, "fold": "val0"}), address) as run:
        run.dispatch(run.account.final)
    return simulation


def reports(address: str, gpus: int, per_trial: int) -> Simulation:
    """Trials that do nothing but report, one on each GPU."""
    simulation = Simulation(gpus, lambda notes: partial(talking, notes, gpus, per_trial))
    with simulation.joined(experiment(seeds=gpus, set={**SETTINGS, "fold": "val0"}), address) as run:
        run.dispatch(run.account.final)
    return simulation


def turnover(address: str, gpus: int, rounds: int, seconds: float) -> Simulation:
    """Trials of some seconds, several rounds of them on each GPU."""
    unit = seconds / LENGTHS["triplet"]
    simulation = Simulation(gpus, lambda notes: partial(crowded, notes, gpus, unit))
    with simulation.joined(experiment(seeds=rounds * gpus, set={**SETTINGS, "fold": "val0"}), address) as run:
        run.dispatch(run.account.final)
    return simulation


def search(address: str, gpus: int, unit: float, trials: int, seeds: int, *, barriers: bool) -> Simulation:
    """A search of four losses of unlike length with shared pre-training, then their final runs."""
    events = locking if barriers else working
    simulation = Simulation(gpus, lambda notes: partial(events, notes, unit))
    settings = {**SETTINGS, "pretrain_epochs": 1}
    with simulation.joined(experiment(",".join(LENGTHS), trials=trials, seeds=seeds, set=settings), address) as run:
        if barriers:
            in_phases(run)
        else:
            run()
    return simulation


def in_phases(run: Run) -> None:
    """The order with barriers: the baselines and final runs begin when the search of every loss has ended."""
    account = run.account
    dispatch_all(run, account.search)
    account.choose(LENGTHS)
    dispatch_all(run, [*account.baselines, *account.final])


def dispatch_all(run: Run, trials: Iterable[Trial]) -> None:
    """All at once, whatever they need: each sees to that itself."""

    def hear(trial: Trial, event: Event) -> None:
        for listener in (run.recorder, *run.listeners):
            listener(trial, event)

    run.executor([run.job(trial) for trial in run.account.pending(trials)], hear)
