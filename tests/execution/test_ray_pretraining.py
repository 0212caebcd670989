"""A pre-training that trials share, on real Ray: one worker is at it, and what waits for it holds nothing."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster as RayCluster
from rich.console import Console

from harness.execution.account import Account
from harness.execution.display import Display
from harness.execution.ray_cluster import Cluster
from harness.execution.ray_worker import training_events
from harness.execution.run import Run
from harness.spec import Event, Job, Progress, Work
from harness.storage import Storage
from harness.store import Store
from tests.execution.ray_runs import experiment
from tests.factories import a_result

pytestmark = pytest.mark.slow
RATES = tuple(0.001 * number for number in range(1, 9))


@pytest.mark.parametrize("place", ["a folder", "S3"])
def test_a_pretraining_that_eight_trials_share_is_done_once_while_seven_gpus_are_free(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if place == "S3":
        request.getfixturevalue("s3")  # before Ray, whose workers must find it
    storage = Storage("s3://bench/run" if place == "S3" else str(tmp_path / "storage"))
    planned = experiment("triplet", settings={"pretrain_epochs": 2}, grid={"lr": RATES})
    store = Store(tmp_path / "results")
    store.prepare()
    account = Account(planned, store, storage=storage)
    begun = tmp_path / "begun"
    begun.mkdir()

    def events(job: Job) -> Iterator[Event]:
        """The pre-training is real. What needs it finds it in the storage, and lasts until all eight have begun."""
        if job.trial.is_pretraining:
            yield from training_events(job)
            return
        (need,) = job.needs
        assert Storage(job.storage).exists(need.artifacts["pretrained"]["path"])
        (begun / job.trial.id).touch()
        deadline = time.monotonic() + 300
        while len(list(begun.iterdir())) < len(RATES):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield a_result(job.trial)

    order: list[str] = []
    free: list[float] = []

    def watch(work: Work, event: Event) -> None:
        if isinstance(event, Progress):
            free.append(ray.available_resources().get("GPU", 0.0))
        else:
            order.append(work.loss)

    head = {"num_cpus": 8, "num_gpus": 8, "dashboard_agent_listen_port": 0}
    started = RayCluster(initialize_head=True, head_node_args=head)
    try:
        cluster = Cluster(address=started.address, gpus_per_trial=1.0, events=events)
        with (
            (tmp_path / "log").open("a") as log,
            cluster.connected(storage, lambda line: None) as running,
        ):
            run = Run(account, storage, running.execute, Display(Console(file=log, width=200)), listeners=[watch])
            results = run()
    finally:
        started.shutdown()
    assert not run.failures
    assert order == ["pretraining", *len(RATES) * ["triplet"]]  # the eight were at work together
    assert len(results) == len(RATES)
    assert free[-1] == 7.0
    assert min(free) == 7.0
