"""Nodes are prepared before trials start on them; those that differ stop the run, with a table."""

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.cluster_utils import Cluster as RayCluster
from ray.exceptions import RuntimeEnvSetupError, WorkerCrashedError

from harness.execution import ray_deaths, ray_listener, ray_nodes, ray_preparation
from harness.execution.node import Expected, Findings
from harness.execution.ray_cluster import Cluster
from harness.execution.ray_listener import TuneListener
from harness.execution.ray_nodes import Autoscaler
from harness.execution.ray_preparation import Node
from harness.execution.ray_searcher import JobQueue
from harness.spec import Event, Job, Progress, Trial, UserError
from harness.storage import Storage
from tests.execution.ray_runs import Record, connected, experiment, jobs_of
from tests.factories import a_result

EXPECTED = Expected("/shared", "probe", b"word", {})


def nodes(*findings: Findings | str, gpus: float = 0) -> list[Node]:
    rows = []
    for number, item in enumerate(findings, 1):
        row = Node(f"id{number}", f"10.0.0.{number}", gpus)
        if isinstance(item, Findings):
            row.findings = item
        else:
            row.error = item
        rows.append(row)
    return rows


def refused(rows: list[Node]) -> tuple[str, list[str]]:
    """The error, and the rows of the table without its rule."""
    said: list[str] = []
    with pytest.raises(UserError) as caught:
        ray_preparation.judge(EXPECTED, rows, said.append)
    return str(caught.value), [re.sub(r"  +", " | ", line) for line in said if not line.startswith("-")]


def test_nodes_without_a_problem_are_prepared() -> None:
    said: list[str] = []
    prepared = ray_preparation.judge(EXPECTED, nodes(Findings(contents=("a",)), Findings(contents=("a",))), said.append)
    assert prepared.nodes == {"id1", "id2"}
    assert not said


def test_what_differs_is_a_table_of_nodes_and_one_line() -> None:
    version = "timm 0.9, the driver has 1.0"
    images = Findings({"images": "cub: not found; searched /data/CUB_200_2011, /data/cub for images.txt and others"})
    error, table = refused(nodes(Findings(contents=("a",)), Findings({"packages": version}), images))
    assert error == (
        "nodes differ: 10.0.0.3: images: cub: not found; searched /data/CUB_200_2011, /data/cub for images.txt and "
        "others; nodes without images take them from the storage: harness data push"
    )
    assert table == [
        "node | storage | images | weights | packages | GPUs",
        "10.0.0.1 | ok | ok | ok | ok | ok",
        f"10.0.0.2 | ok | ? | ? | {version} | ?",
        "10.0.0.3 | ok | cub: not found; searched /data/CUB_200_2011, /data/cub for i... | ok | ok | ok",
    ]


def test_nodes_with_different_images_stop_the_run() -> None:
    error, table = refused(nodes(Findings(contents=("a" * 64,)), Findings(contents=("b" * 64,))))
    assert error.startswith("nodes differ: 10.0.0.1, 10.0.0.2: images: contents aaaaaaaaaaaa")
    assert "bbbbbbbbbbbb" in table[-1]


def test_a_node_where_torch_sees_fewer_gpus_stops_the_run_unless_gpus_are_numbers() -> None:
    error, _ = refused(nodes(Findings(gpus=2), Findings(gpus=1), gpus=2))
    assert error == "nodes differ: 10.0.0.2: GPUs: torch can use 1 of 2; mend it, or stop Ray there"
    assert ray_preparation.judge(EXPECTED, nodes(Findings(), Findings(), gpus=2), print).nodes == {"id1", "id2"}


def test_a_storage_that_some_do_not_see_is_named_with_them() -> None:
    error, _ = refused(nodes(Findings(), Findings({"storage": "not seen"}), Findings({"storage": "not seen"})))
    assert error == (
        "--storage /shared is not seen by 10.0.0.2, 10.0.0.3: name a folder that every node mounts, or a URI"
    )


def test_a_node_that_died_is_left_out_and_one_that_is_silent_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_preparation, "DEATH", 0)
    monkeypatch.setattr(ray_preparation, "alive_nodes", lambda: {"id1": "10.0.0.1"})
    assert ray_preparation.judge(EXPECTED, nodes(Findings(), "its process died"), print).nodes == {"id1"}
    monkeypatch.setattr(ray_preparation, "alive_nodes", lambda: {"id1": "10.0.0.1", "id2": "10.0.0.2"})
    error, table = refused(nodes(Findings(), "no answer"))
    assert error == "no answer from 10.0.0.2, which Ray counts as alive; stop Ray there, or restart it"
    assert table[-1] == "10.0.0.2 | no answer | ? | ? | ? | ? | ?"


def test_nodes_that_are_silent_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    monkeypatch.setattr(ray_preparation.time, "monotonic", lambda: sum(naps))
    monkeypatch.setattr(ray_preparation.time, "sleep", naps.append)
    monkeypatch.setattr(ray_preparation, "alive_nodes", lambda: {f"id{number}": "" for number in range(1, 21)})
    error, _ = refused(nodes(*20 * ["no answer"]))
    assert error.startswith("no answer from 10.0.0.1, 10.0.0.10, ")
    assert sum(naps) <= ray_preparation.DEATH + 1


def test_progress_is_of_all_nodes_together() -> None:
    shown: list[Progress] = []
    rows = nodes("", "")
    ray_preparation.show_all(rows, shown.append)
    assert not shown, "nothing had to be prepared"
    for row, step in zip(rows, (40, 10), strict=True):
        row.progress = Progress("images", 1, 1, step, 100, float("nan"), 5.0, 12.0)
        row.images = 100
    ray_preparation.show_all(rows, shown.append)
    rows[0].findings = Findings()
    ray_preparation.show_all(rows, shown.append)
    assert [(progress.step, progress.steps, progress.images_per_second) for progress in shown] == [
        (50, 200, 10.0),
        (110, 200, 5.0),
    ]


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_process_that_dies_while_it_prepares_starts_again_once(monkeypatch: pytest.MonkeyPatch, deaths: int) -> None:
    said: list[Any] = [*[WorkerCrashedError()] * deaths, Progress.idle("images"), Findings()]
    streams: list[Iterator[object]] = []

    def get(item: Any) -> Any:
        if isinstance(item, WorkerCrashedError):
            raise item
        return item

    def started(*words: object) -> Iterator[object]:
        streams.append(iter(said[len(streams) :]))
        return streams[-1]

    monkeypatch.setattr(ray_preparation.ray, "get", get)
    monkeypatch.setattr(ray_preparation.ray, "wait", lambda streams, timeout: (streams, []))
    monkeypatch.setattr(ray_preparation, "started", started)
    monkeypatch.setattr(ray_preparation, "ANSWER", -1)  # who has said nothing by now is late, unless it starts again
    monkeypatch.setattr(ray_preparation, "judge", lambda expected, nodes, say: nodes)
    (row,) = ray_preparation.prepare(EXPECTED, [], nodes(""), print, print)  # type: ignore[misc,attr-defined]
    if deaths == 1:
        assert (row.findings, row.error) == (Findings(), "")
    else:
        assert row.error.startswith("its process died: WorkerCrashedError: ")
    assert len(streams) == 2


def test_an_error_of_many_lines_keeps_its_reason() -> None:
    def stream() -> Iterator[object]:
        raise RuntimeEnvSetupError("Failed to create runtime env\nOSError: the package is gone")
        yield

    (row,) = nodes("")
    row.starts = ray_preparation.STARTS
    assert ray_preparation.hear(row, stream(), print)  # type: ignore[arg-type]
    assert row.error == (
        "its process died: RuntimeEnvSetupError: Failed to set up runtime environment. Failed to create runtime env "
        "OSError: the package is gone"
    )


def test_a_node_whose_process_dies_while_the_node_lives_is_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_preparation, "DEATH", 0)
    monkeypatch.setattr(ray_preparation, "alive_nodes", lambda: {"id1": "10.0.0.1"})
    error, _ = refused(nodes("its process died: OutOfMemoryError"))
    assert error == "nodes differ: 10.0.0.1: answer: its process died: OutOfMemoryError"


def test_the_task_that_prepares_a_node_asks_for_no_cpu_and_no_gpu() -> None:
    """It starts where trials of another run hold them all."""
    options: Any = ray_preparation.look
    assert options._default_options["num_cpus"] == 0
    assert not options._default_options.get("num_gpus")


# --- nodes that come later ---


def photos_nowhere(tmp_path: Path, seeds: int) -> list[Job]:
    """Of a dataset whose images no node has."""
    jobs = jobs_of(experiment("triplet", seeds=seeds), tmp_path / "storage")
    nowhere = {"name": "photos", "layout": "folder", "folder": "/nowhere", "path": "/nowhere"}
    return [dataclasses.replace(job, dataset=dataclasses.replace(job.dataset, **nowhere)) for job in jobs]


@pytest.mark.slow
def test_a_trial_that_finds_its_node_unfit_starts_again_elsewhere(cluster: RayCluster, tmp_path: Path) -> None:
    """The first node is there when the run begins; its trials do not look for images. A second one joins."""
    jobs = photos_nowhere(tmp_path, seeds=2)
    results = {job.trial.id: a_result(job.trial) for job in jobs}
    refused, added = tmp_path / "refused", []

    def wait(job: Job) -> Iterator[Event]:
        while not refused.exists():
            yield Progress.idle("train")
        yield results[job.trial.id]

    def interfere(trial: Trial, event: Event) -> None:
        if not added:
            added.append(cluster.add_node(num_cpus=1, num_gpus=3))
        if isinstance(event, Progress) and "is unfit" in event.note:
            refused.touch()

    record = Record(interfere)
    first = cluster.add_node(num_cpus=1, num_gpus=3)
    try:
        with connected(cluster, tmp_path / "storage", gpus_per_trial=3.0, events=wait) as running:
            running.execute(jobs, record)
    finally:
        for node in (first, *added):
            cluster.remove_node(node)
    notes = [progress.note for progress in record.progress if progress.note]
    assert notes
    assert re.search(r"^[\d.]+ is unfit: images: photos: not found at /nowhere.*; the trial starts again", notes[0])
    assert set(record.results) == set(results)
    assert not record.failures


@pytest.mark.slow
def test_a_node_without_images_stops_the_run_before_a_trial_starts(cluster: RayCluster, tmp_path: Path) -> None:
    jobs, said = photos_nowhere(tmp_path, seeds=1), list[str]()
    storage = Storage(str(tmp_path / "storage"))
    steps: list[str] = []

    @contextlib.contextmanager
    def noting(step: str) -> Iterator[Any]:
        steps.append(step)
        yield lambda progress: None
        steps.append(f"no more {step}")

    running = Cluster(address=cluster.address, exporting=lambda: noting("gauges"))
    connection = running.connected(storage, said.append, jobs, lambda: noting("preparing"))
    with pytest.raises(UserError, match=r"nodes differ: [\d.]+: images: photos: not found at /nowhere"), connection:
        raise AssertionError("it was connected")
    assert any(re.search(r"^[\d.]+ +ok +photos: not found", line) for line in said)
    assert not [name for name in storage.names("") if "probe" in name]
    assert steps == ["gauges", "preparing"]  # whose nodes are prepared for long is seen in Prometheus


@pytest.mark.parametrize("coming", [False, True])
def test_a_trial_that_no_node_is_fit_for_fails_unless_nodes_are_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coming: bool
) -> None:
    """Else it would be waited for without end; of nodes that an autoscaler starts, the first one is not the last."""
    (job,) = photos_nowhere(tmp_path, seeds=1)
    monkeypatch.setattr(ray_deaths, "alive_nodes", frozenset)
    monkeypatch.setattr(ray_listener, "candidates", lambda cpus, gpus: [Node("id1", "10.0.0.1", 0)])
    monkeypatch.setattr(ray_nodes, "autoscaler", lambda: Autoscaler({"gpu": 1} if coming else {}))
    queue, record = JobQueue([]), Record()
    listener = TuneListener(queue, record, max_failures=3)
    name = job.trial.name
    queue.known[name] = job
    queue.open.add(name)
    listener.nodes[name] = "id1"
    story = tmp_path / "error.txt"
    story.write_text("Traceback\nharness.execution.ray_preparation.UnfitNodeError: 10.0.0.1 is unfit: weights: gone\n")
    config: dict[str, Any] = {"trial": name}
    died: Any = SimpleNamespace(config=config, evaluated_params={}, error_file=str(story))
    listener.on_trial_error(0, [], died)
    errors = [failure.error for failure in record.failures]
    assert errors == ([] if coming else ["no node is fit for it: 10.0.0.1 is unfit: weights: gone"])
    assert queue.unfit == {"id1"}
    assert list(queue.again) == ([job] if coming else [])
    assert not listener.deaths.undecided, "a node that is unfit is no death"
