"""What a cluster has and has pending: as Ray reports it, and what a run says and does then."""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster as RayCluster
from ray.core.generated import autoscaler_pb2
from ray.tune.experiment import Trial as TuneTrial
from ray.util.state import list_actors

from harness.execution import ray_nodes
from harness.execution.ray_cluster import Cluster
from harness.execution.ray_nodes import Autoscaler, Waiting, first_version, second_version
from harness.spec import Event, Job, Progress, UserError
from harness.storage import Storage
from tests.execution.ray_runs import Record, experiment, jobs_of
from tests.factories import a_result

GPU = {"CPU": 1.0, "GPU": 1.0}


# --- what Ray reports ---


def first_report(**changes: Any) -> dict[str, Any]:
    """The fields that are read, of what the first version of the autoscaler stores."""
    report = {
        "pending_launches": {},
        "pending_nodes": [],
        "node_type_mapping": {"10.0.0.1": "head"},
        "node_availability_summary": {"node_availabilities": {}},
    }
    return {"autoscaler_report": {**report, **changes}}


def test_the_first_version_says_what_it_starts_and_what_it_could_not() -> None:
    availability = {
        "gpu": {"unavailable_node_information": {"category": "InsufficientCapacity", "description": "none left"}},
        "big": {"unavailable_node_information": None},
    }
    report = first_report(
        pending_launches={"gpu": 2},
        pending_nodes=[["10.0.0.2", "gpu", "waiting-for-ssh"], ["10.0.0.3", "big", "setting-up"]],
        node_availability_summary={"node_availabilities": availability},
    )
    assert first_version(report) == Autoscaler({"gpu": 3, "big": 1}, (), "InsufficientCapacity")
    assert first_version(first_report()) == Autoscaler({})


@pytest.mark.parametrize("status", [first_report(node_type_mapping={"10.0.0.1": f"node_{14 * '0f3c'}"}), {}])
def test_the_first_version_without_a_configuration_is_no_autoscaler(status: Mapping[str, Any]) -> None:
    assert first_version(status) is None


def reply(types: tuple[str, ...], **state: Any) -> Any:
    nodes = [autoscaler_pb2.NodeState(ray_node_type_name=type) for type in types]
    return autoscaler_pb2.GetClusterStatusReply(
        autoscaling_state=autoscaler_pb2.AutoscalingState(**state),
        cluster_resource_state=autoscaler_pb2.ClusterResourceState(node_states=nodes),
    )


def test_the_second_version_says_what_it_starts_what_it_could_not_and_what_it_never_can() -> None:
    bundle = autoscaler_pb2.ResourceRequest(resources_bundle={"CPU": 1.0, "GPU": 8.0})
    failed = autoscaler_pb2.FailedInstanceRequest
    state = second_version(
        reply(
            ("head",),
            pending_instance_requests=[autoscaler_pb2.PendingInstanceRequest(ray_node_type_name="gpu", count=2)],
            pending_instances=[autoscaler_pb2.PendingInstance(ray_node_type_name="gpu")],
            infeasible_gang_resource_requests=[autoscaler_pb2.GangResourceRequest(requests=[bundle])],
            failed_instance_requests=[failed(reason="quota", failed_ts=2), failed(reason="network", failed_ts=1)],
        )
    )
    assert state == Autoscaler({"gpu": 3}, ({"CPU": 1.0, "GPU": 8.0},), "quota")


def test_the_second_version_without_a_configuration_is_no_autoscaler() -> None:
    assert second_version(reply(("", ""))) is None


def test_what_cannot_be_started_is_what_ray_reports_while_nothing_is_pending() -> None:
    needed = {"CPU": 1.0, "GPU": 0.0}
    assert Autoscaler({}, ({"CPU": 1.0},)).cannot_start(needed)
    assert not Autoscaler({}, ({"CPU": 2.0},)).cannot_start(needed)
    assert not Autoscaler({"cpu": 1}, ({"CPU": 1.0},)).cannot_start(needed)  # the maximum is reached by what comes


# --- what is said while nothing can run ---


class Watch:
    """Waiting, with a cluster and a clock that are made up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, however_long: bool = False) -> None:
        self.now = 1000.0
        self.scaler: Autoscaler | None = Autoscaler({})
        self.room = False
        self.queued = False
        self.texts: list[str] = []
        self.unfit = set[str]()
        self.waiting = Waiting(GPU, self.texts.append, self.unfit, however_long=however_long)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(ray_nodes, "autoscaler", lambda: self.scaler)
        monkeypatch.setattr(ray_nodes, "is_queued", lambda: self.queued)
        monkeypatch.setattr(ray_nodes, "alive", lambda avoid=(): [GPU] if self.room and not avoid else [{"CPU": 1.0}])

    def after(self, seconds: float, status: str = TuneTrial.PENDING) -> list[str]:
        """What is told then."""
        self.texts.clear()
        self.now += seconds
        trial = TuneTrial("x", stub=True)
        trial.status = status
        self.waiting.on_step_begin(1, [trial])
        return list(self.texts)


WAITING = "waiting for a node with 1 CPU and 1 GPU: "
NOTHING = "Ray starts nothing for it (no such node type, or the maximum is reached)"


def test_what_is_waited_for_and_what_ray_has_pending_is_told_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    assert watch.after(0) == [WAITING + "Ray has nothing pending for it yet"]
    assert watch.after(5) == []
    watch.scaler = Autoscaler({"gpu": 2, "big": 1})
    assert watch.after(5) == [WAITING + "Ray is starting 1 x big, 2 x gpu"]
    assert watch.after(600) == []
    watch.room = True
    assert watch.after(5) == [""]
    watch.room = False  # the node has gone again
    assert watch.after(5, TuneTrial.RUNNING) == []  # a trial that runs needs none
    assert watch.after(5) == [WAITING + "Ray is starting 1 x big, 2 x gpu"]


def test_nodes_that_others_use_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several runs share a cluster. The first seconds of a run are no wait, and a node may just have died."""
    in_use = "waiting for a node with 1 CPU and 1 GPU: all that have as much are in use"
    watch = Watch(monkeypatch)
    watch.room = watch.queued = True
    assert watch.after(0) == []
    assert watch.after(29) == []
    assert watch.after(3) == [in_use]
    watch.scaler = Autoscaler({"gpu": 1})
    assert watch.after(3) == [f"{in_use}; Ray is starting 1 x gpu"]
    assert watch.after(3, TuneTrial.RUNNING) == [""]
    assert watch.after(3) == []
    watch.queued = False
    assert watch.after(60) == []  # its worker starts


def test_a_node_that_trials_avoid_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    watch.scaler, watch.room = None, True
    assert watch.after(0) == []
    watch.unfit.add("a")  # the only node with a GPU
    assert watch.after(5) == [WAITING + "this cluster has no autoscaler, so start one there (ray start)"]


def test_a_node_type_whose_name_begins_with_node_is_an_autoscalers() -> None:
    types = {"10.0.0.1": "node_head", "10.0.0.2": "node_gpu"}
    assert first_version(first_report(node_type_mapping=types)) == Autoscaler({})


def test_nothing_pending_for_a_minute_is_told_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    watch.after(0)
    assert watch.after(59) == []
    assert watch.after(2) == [WAITING + NOTHING]
    watch.scaler = Autoscaler({}, failure="QuotaExceeded")
    assert watch.after(5) == [f"{WAITING}{NOTHING}; the last start failed: QuotaExceeded"]
    watch.scaler = Autoscaler({"gpu": 1})
    assert watch.after(5) == [WAITING + "Ray is starting 1 x gpu"]
    watch.scaler = Autoscaler({})
    assert watch.after(5) == [WAITING + "Ray has nothing pending for it yet"]  # another minute


def test_what_ray_reports_as_infeasible_for_a_minute_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    watch.scaler = Autoscaler({}, (GPU,))
    watch.after(0)
    watch.after(59)
    with pytest.raises(
        UserError, match=r"--gpus-per-trial 1: no node has as many; .*; Ray reports that it can start none"
    ):
        watch.after(2)


def test_what_ray_reports_as_infeasible_is_waited_for_if_it_was_there_or_on_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for had_room, however_long in ((True, False), (False, True)):
        watch = Watch(monkeypatch, however_long=however_long)
        watch.scaler = Autoscaler({}, (GPU,))
        watch.room = had_room
        watch.after(0)
        watch.room = False
        watch.after(5)
        assert watch.after(61) == [WAITING + NOTHING]


# --- a real cluster without an autoscaler ---


@pytest.mark.slow
def test_without_an_autoscaler_what_no_node_has_is_refused_unless_it_is_waited_for(
    cluster: RayCluster, tmp_path: Path
) -> None:
    jobs = jobs_of(experiment("triplet"), tmp_path)
    result = a_result(jobs[0].trial)
    texts: list[str] = []

    def start_node(text: str) -> None:
        texts.append(text)
        if len(texts) == 1:
            added.append(cluster.add_node(num_cpus=1, num_gpus=3))

    def run(**options: Any) -> Record:
        record = Record()
        joining = Cluster(address=cluster.address, gpus_per_trial=3.0, events=lambda job: iter([result]), **options)
        with joining.connected(Storage(str(tmp_path)), lambda line: None) as running:
            running.execute(jobs, record)
        return record

    added: list[Any] = []
    with pytest.raises(UserError, match=r"3: no node has as many; .* 2 GPUs; --wait-for-nodes waits for one that has"):
        run()
    try:
        record = run(wait_for_nodes=True, tell_waiting=start_node)
    finally:
        for node in added:
            cluster.remove_node(node)
    assert set(record.results) == {jobs[0].trial.id}
    assert texts == [
        "waiting for a node with 1 CPU and 3 GPUs: this cluster has no autoscaler, so start one there (ray start)",
        "",
    ]


OTHER = """
import sys
import ray
from ray.util import placement_group
ray.init(sys.argv[1], log_to_driver=False)
ray.get(placement_group([{"GPU": 2}]).ready())
print("has them", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_gpus_that_another_run_uses_are_waited_for(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_nodes, "QUEUE", 1.0)
    (job,) = jobs_of(experiment("triplet"), tmp_path)
    texts: list[str] = []
    words = [sys.executable, "-c", OTHER, cluster.address]
    other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(text: str) -> None:
        texts.append(text)
        if text and other.stdin is not None:
            other.stdin.close()  # it ends

    record = Record()
    result = a_result(job.trial)
    joining = Cluster(cluster.address, gpus_per_trial=1.0, events=lambda _: iter([result]), tell_waiting=tell)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "has them\n"
        with joining.connected(Storage(str(tmp_path)), print) as running:
            running.execute([job], record)
    finally:
        other.kill()
        other.wait()
    assert set(record.results) == {job.trial.id}
    assert texts == ["waiting for a node with 1 CPU and 1 GPU: all that have as much are in use", ""]


@pytest.mark.slow
def test_a_cluster_without_a_gpu_says_that_it_trains_on_cpus_and_how_to_wait_for_one(tmp_path: Path) -> None:
    lines: list[str] = []
    head = {"num_cpus": 1, "num_gpus": 0, "dashboard_port": None, "dashboard_agent_listen_port": 0}
    started = RayCluster(initialize_head=True, head_node_args=head)
    try:
        with Cluster(address=started.address).connected(Storage(str(tmp_path)), lines.append) as joined:
            assert joined.resources() == {"CPU": 1.0, "GPU": 0.0}
    finally:
        started.shutdown()
    (line,) = [line for line in lines if "GPU" in line]
    assert line == (
        "no node has a GPU now: trials train on CPUs; to wait for a GPU: --gpus-per-trial 1 --wait-for-nodes"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("more_may_follow", "idle"), [(True, 1), (False, 0)])
def test_idle_workers_are_let_go_while_a_trial_runs(
    cluster: RayCluster, tmp_path: Path, more_may_follow: bool, idle: int
) -> None:
    """Three trials start together, two of them end. One idle worker stays if the third can make another one ready."""
    jobs = jobs_of(experiment("triplet", seeds=3), tmp_path)
    last, ended = jobs[-1].trial.id, tmp_path / "ended"

    def given() -> Iterator[Job | None]:
        yield from jobs
        while more_may_follow and not ended.exists():
            yield None

    def events(job: Job) -> Iterator[Event]:
        (tmp_path / f"begun-{job.trial.id}").touch()
        while len(list(tmp_path.glob("begun-*"))) < 3 or (job.trial.id == last and not ended.exists()):
            yield Progress.idle("train", "waits")
            time.sleep(0.2)
        yield a_result(job.trial)

    record = Record()
    counts: list[int] = []

    def count(trial: Any, event: Event) -> None:
        if len(record.results) == 2:
            actors = list_actors(cluster.address, filters=[("state", "=", "ALIVE"), ("class_name", "=", "TrialWorker")])
            counts.append(len(actors))
            if counts[-3:] == 3 * [1 + idle]:
                ended.touch()

    record.interfere = count
    joining = Cluster(address=cluster.address, gpus_per_trial=0.5, events=events)
    with joining.connected(Storage(str(tmp_path)), lambda line: None) as running:
        running.execute(given(), record)
    assert len(record.results) == 3
    assert counts[-1] == 1 + idle
