"""Before the first trial starts on a node: a task without a GPU prepares it and checks what trials will find there."""

import contextlib
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import ray
from ray import ObjectRefGenerator
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tabulate import tabulate

from harness import provenance
from harness.execution import node
from harness.execution.node import COLUMNS, Expected, Findings
from harness.files import writing
from harness.spec import Event, Job, Progress, UserError, bounded, first_line
from harness.storage import Storage

ANSWER = 60  # seconds within which a node must have looked into the storage: it starts a process for that
DEATH = 30  # seconds after which Ray has noticed that a node died
LONGEST_REASON = 600  # characters of what Ray says of a process that died
STARTS = 2  # of the process that prepares a node: on a busy machine Ray may fail to start one
INTERVAL = 1.0  # seconds between two reports of a node
SILENT = "no answer"
ANSWERS = "answer"  # the column of nodes that say nothing
CHECKED_FIRST = (node.STORAGE, node.VERSIONS)  # if one of them is wrong, the rest is not looked at
LONGEST = 60  # characters of a problem in the table

Events = Callable[[Job], Iterator[Event]]
Show = Callable[[Progress], None]
Say = Callable[[str], None]


class UnfitNodeError(Exception):
    """A trial cannot run on its node, but may run on another one."""


@dataclass(frozen=True)
class Preparation:
    """What is expected of every node, and which nodes were prepared when the run began."""

    expected: Expected
    nodes: frozenset[str] = frozenset()


@dataclass
class Node:
    """A node while it is prepared."""

    id: str
    address: str
    gpus: float  # that Ray counts
    progress: Progress | None = None  # its last sign of life
    images: int = 0  # in its caches as far as it had to prepare them
    findings: Findings | None = None
    starts: int = 1  # of its process
    error: str = ""  # why it ended without findings

    @property
    def is_open(self) -> bool:
        return self.findings is None and not self.error


@contextlib.contextmanager
def expectations(storage: Storage) -> Iterator[Expected]:
    """What nodes must find. The driver leaves a file in the storage, which nodes read, also those that come later."""
    name, word = f"probe-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex.encode()
    with writing(f"to --storage {storage.title}"):
        storage.write(name, word)
    try:
        yield Expected(storage.uri, name, word, provenance.versions())
    finally:
        storage.remove(name)


def candidates(cpus: float, gpus: float | None) -> list[Node]:
    """The nodes that are there and on which a trial has room."""
    alive = [row for row in ray.nodes() if row["Alive"]]
    if gpus is None:
        gpus = float(any(row["Resources"].get("GPU", 0) > 0 for row in alive))
    return [
        Node(row["NodeID"], row["NodeManagerAddress"], row["Resources"].get("GPU", 0) if gpus else 0)
        for row in alive
        if row["Resources"].get("CPU", 0) >= cpus and row["Resources"].get("GPU", 0) >= gpus
    ]


def prepare(expected: Expected, jobs: Sequence[Job], nodes: Sequence[Node], show: Show, say: Say) -> Preparation:
    """Prepare the nodes, all at once. A UserError, after a table of them, if one is not as the trials need it. A node
    that goes away meanwhile is left out."""
    if len(nodes) > 1:
        say(f"preparing {len(nodes)} nodes ...")
    streams = {one.id: started(expected, jobs, one) for one in nodes}
    deadline = time.monotonic() + ANSWER
    while waiting := [one for one in nodes if one.is_open]:
        ready, _ = ray.wait([streams[one.id] for one in waiting], timeout=INTERVAL)
        for one in waiting:
            if streams[one.id] in ready:
                if not hear(one, streams[one.id], show):
                    streams[one.id] = started(expected, jobs, one)
                    deadline = time.monotonic() + ANSWER
            elif one.progress is None and time.monotonic() > deadline:
                one.error = SILENT
        show_all(nodes, show)
    return judge(expected, nodes, say)


def started(expected: Expected, jobs: Sequence[Job], one: Node) -> ObjectRefGenerator:
    there = NodeAffinitySchedulingStrategy(one.id, soft=False)
    return look.options(scheduling_strategy=there).remote(expected, tuple(jobs), one.gpus)


@ray.remote(num_cpus=0, max_retries=0, num_returns="streaming")
def look(expected: Expected, jobs: Sequence[Job], gpus: float) -> Iterator[Progress | Findings]:
    """On the node: its progress, then what it has found. It holds no CPU, so that it never waits for trials of another
    run, and uses all of them."""
    steps, last = node.prepare(expected, jobs, gpus), -math.inf
    while True:
        try:
            progress = next(steps)
        except StopIteration as end:
            yield end.value
            return
        except Exception as error:  # such as a package that cannot be imported
            yield Findings({node.VERSIONS: first_line(error)})
            return
        if progress.note or time.monotonic() - last >= INTERVAL:
            last = time.monotonic()
            yield progress


def hear(one: Node, items: ObjectRefGenerator, show: Show) -> bool:
    """Take up what a node says next. False if its process has died, and is to start again."""
    try:
        item = ray.get(next(items))
    except StopIteration:
        one.error = "its process ended"
    except RayError as error:
        if one.starts < STARTS:
            one.starts += 1
            return False
        reason = bounded(" ".join(str(error).split()), LONGEST_REASON)  # why Ray started none is in later lines
        one.error = f"its process died: {type(error).__name__}: {reason}"
    else:
        if isinstance(item, Findings):
            one.findings = item
        elif item.note:
            show(Progress.idle("images", note=f"{one.address}  {item.note}"))
        else:
            one.progress = item
            one.images = max(one.images, item.steps if item.step else 0)
    return True


def show_all(nodes: Sequence[Node], show: Show) -> None:
    """The images of all nodes together."""
    total = sum(one.images for one in nodes)
    if total:
        busy = [one.progress for one in nodes if one.is_open and one.progress is not None]
        left = sum(progress.steps - progress.step for progress in busy if progress.step)
        rate = sum(progress.images_per_second for progress in busy)
        seconds = max((progress.seconds_left for progress in busy), default=0.0)
        show(Progress("images", 1, 1, total - left, total, math.nan, rate, seconds))


def judge(expected: Expected, nodes: Sequence[Node], say: Say) -> Preparation:
    """A UserError unless the nodes are as trials need them, and alike."""
    deadline = time.monotonic() + DEATH
    nodes = [one for one in nodes if not one.error or not dies(one.id, deadline)]
    problems = {one.address: dict(one.findings.problems if one.findings else {ANSWERS: one.error}) for one in nodes}
    found = [(one, one.findings) for one in nodes if one.findings]
    if len({findings.contents for _, findings in found if findings.contents}) > 1:
        for one, findings in found:
            digests = ", ".join(digest[:12] for digest in findings.contents)
            problems[one.address].setdefault(node.IMAGES, f"contents {digests}")
    if any(findings.gpus for _, findings in found):  # else people number resources, and there is no GPU
        for one, findings in found:
            if findings.gpus < one.gpus and not findings.problems:
                problems[one.address][node.GPUS] = f"torch can use {findings.gpus} of {one.gpus:g}"
    if any(problems.values()):
        for line in table(problems).splitlines():
            say(line)
        raise UserError(complaint(expected, problems))
    return Preparation(expected, frozenset(one.id for one in nodes))


def table(problems: Mapping[str, Mapping[str, str]]) -> str:
    """A row for each node."""
    columns = [name for name in (ANSWERS, *COLUMNS) if name in COLUMNS or any(name in row for row in problems.values())]
    rows = []
    for address, row in sorted(problems.items()):
        seen = () if ANSWERS in row else CHECKED_FIRST if {*CHECKED_FIRST} & {*row} else columns
        cells = [row.get(column, "ok" if column in seen else "?") for column in columns]
        rows.append([address, *(cell if len(cell) <= LONGEST else f"{cell[:LONGEST]}..." for cell in cells)])
    return tabulate(rows, headers=["node", *columns], disable_numparse=True)


def complaint(expected: Expected, problems: Mapping[str, Mapping[str, str]]) -> str:
    """The first kind of problem, which nodes have it, and what to do."""
    column = next(name for name in (ANSWERS, *COLUMNS) if any(name in row for row in problems.values()))
    unfit = sorted(address for address, row in problems.items() if column in row)
    nodes = ", ".join(unfit)
    if column == ANSWERS and problems[unfit[0]][column] == SILENT:
        return f"no answer from {nodes}, which Ray counts as alive; stop Ray there, or restart it"
    if column == node.STORAGE:
        title = Storage(expected.storage).title
        return f"--storage {title} is not seen by {nodes}: name a folder that every node mounts, or a URI"
    more = {
        ANSWERS: "",
        node.IMAGES: "; nodes without images take them from the storage: harness data push",
        node.WEIGHTS: "; put the same file there, or use --weights package or none",
        node.VERSIONS: "; install the same there",
        node.GPUS: "; mend it, or stop Ray there",
    }
    return f"nodes differ: {nodes}: {column}: {problems[unfit[0]][column]}{more[column]}"


def alive_nodes() -> dict[str, str]:
    """The addresses of the nodes, by their ids."""
    return {row["NodeID"]: row["NodeManagerAddress"] for row in ray.nodes() if row["Alive"]}


def dies(id: str, deadline: float) -> bool:
    """Whether a node that did not answer turns out to be dead: Ray lists it as alive for some seconds more."""
    while id in alive_nodes():
        if time.monotonic() > deadline:
            return False
        time.sleep(1)
    return True


# --- in the worker: a node that came later ---

_fit: set[tuple[str, ...]] = set()  # what this process has found on its node


def checked(preparation: Preparation | None, job: Job, events: Iterator[Event], gpus: float) -> Iterator[Event]:
    """The events of a job. On a node that was not there when the run began they begin with its preparation, and an
    UnfitNodeError if it is not as the trial needs it."""
    context = ray.get_runtime_context()
    trained = job.measurement is None  # a measurement needs neither images nor weights
    if trained and preparation is not None and context.get_node_id() not in preparation.nodes:
        trial = job.trial
        what = (str(trial.resize), trial.aspect, trial.backbone, trial.weights, job.dataset.fingerprint)
        if what not in _fit:
            findings = yield from node.prepare(preparation.expected, (job,), gpus)
            if findings.problems:
                address = alive_nodes().get(context.get_node_id(), "its node")
                yield Progress.idle("images", note=f"{address} is unfit: {findings}; the trial starts again elsewhere")
                raise UnfitNodeError(f"{address} is unfit: {findings}")
            _fit.add(what)
    yield from events
