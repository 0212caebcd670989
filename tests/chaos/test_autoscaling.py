"""A cluster whose autoscaler starts nodes when trials need them, and stops them when they have nothing to do."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.execution import announcement
from harness.storage import Storage
from tests.chaos.autoscaling import FakeCloud
from tests.processes import HARNESS, command, records, until

pytestmark = [pytest.mark.chaos_long, pytest.mark.timeout(1200)]

# Two trials wait for each other, on two nodes; one of them then ends, and the other one when it may.
MEET = """
import os
import time
from pathlib import Path
from losses.base import Loss

PLACE = Path("{place}")


class Meet(Loss):
    title, cite, family = "Meet", "me", "classification"

    def forward(self, embeddings, labels):
        if not hasattr(self, "met"):
            self.met = True
            mine = PLACE / f"begun-{{os.getpid()}}"
            mine.touch()
            while len(list(PLACE.glob("begun-*"))) < 2:
                time.sleep(0.2)
            while mine == min(PLACE.glob("begun-*")) and not (PLACE / "go").exists():
                time.sleep(0.2)
        return (embeddings - embeddings.mean(0)).square().mean()
"""


class Running:
    """The command, and what it has said so far."""

    def __init__(self, words: list[str], environment: dict[str, str], folder: Path) -> None:
        self.file = folder / "said"
        with self.file.open("w") as file:
            self.process = subprocess.Popen(words, stdout=file, stderr=file, env=environment, start_new_session=True)

    @property
    def said(self) -> str:
        return self.file.read_text()

    def until(self, condition: Callable[[], bool]) -> None:
        until(lambda: condition() or self.process.poll() is not None, seconds=300)
        assert condition(), self.said

    def until_said(self, sign: str) -> None:
        self.until(lambda: sign in self.said)


@pytest.fixture(params=[1, 2], ids=["autoscaler v1", "autoscaler v2"])
def cloud(request: pytest.FixtureRequest) -> Iterator[FakeCloud]:
    with FakeCloud(request.param) as started:
        yield started


@pytest.fixture
def running(cloud: FakeCloud, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts `harness run` on the cluster; it does not outlive the test."""
    started: list[Running] = []

    def run(*options: str, losses: str = "triplet") -> Running:
        words = command(tmp_path / "results", "--address", cloud.address, *options, losses=losses)
        started.append(Running(words, cloud.environment, tmp_path))
        return started[-1]

    yield run
    for one in started:
        print(one.said)
        one.process.kill()
        one.process.wait()


@pytest.mark.fault(
    "--gpus-per-trial 1 on a cluster whose autoscaler has no node with a GPU yet",
    "says what it waits for, and what Ray starts for it; two nodes come, one goes as soon as it has nothing to do, "
    "none is left at the end",
)
def test_from_no_node_to_two_and_back_to_none(
    cloud: FakeCloud, running: Callable[..., Running], tmp_path: Path
) -> None:
    (tmp_path / "meet.py").write_text(MEET.format(place=tmp_path))
    run = running("--gpus-per-trial", "1", losses=f"{tmp_path}/meet.py:Meet")
    run.until_said("waiting for a node with 1 CPU and 1 GPU: ")
    if cloud.version == 1:  # version 2 reports nothing while this provider starts its nodes, and then they are there
        storage = Storage(str(tmp_path / "results" / "artifacts"))
        run.until(lambda: any("Ray is starting" in plan.waits_for for plan in announcement.read(storage)))
        run.until_said("waiting for a node with 1 CPU and 1 GPU: Ray is starting ")
    run.until(lambda: len(list(tmp_path.glob("begun-*"))) == 2)
    assert cloud.nodes == 2
    run.until(lambda: cloud.nodes == 1)
    assert len(records(tmp_path / "results")) == 4  # three baselines and the trial that has ended
    (tmp_path / "go").touch()
    run.process.wait(timeout=300)
    assert run.process.returncode == 0
    assert len(records(tmp_path / "results")) == 5
    until(lambda: cloud.nodes == 0, seconds=300)


@pytest.mark.fault(
    "--gpus-per-trial 8 on a cluster whose autoscaler has no such type of node",
    "what Ray reports as infeasible is refused; where it reports nothing, or with --wait-for-nodes, run and status say "
    "that Ray starts nothing, and the run waits on",
)
def test_what_the_autoscaler_never_starts(cloud: FakeCloud, running: Callable[..., Running], tmp_path: Path) -> None:
    nothing = "waiting for a node with 1 CPU and 8 GPUs: Ray starts nothing for it (no such node type, or the maximum"
    asked = ("--gpus-per-trial", "8")
    if cloud.version == 2:
        run = running(*asked)
        run.process.wait(timeout=300)
        assert run.process.returncode == 2
        assert "--gpus-per-trial 8: no node has as many; the nodes have 1 CPUs and 0 GPUs; Ray reports" in run.said
        assert "Traceback" not in run.said
        asked = (*asked, "--wait-for-nodes")
    run = running(*asked)
    run.until_said(nothing)
    status = [*HARNESS, "status", "--results", str(tmp_path / "results")]
    assert f"\n  {nothing}" in subprocess.run(status, capture_output=True, text=True, env=cloud.environment).stdout
    assert run.process.poll() is None
    run.process.terminate()
    assert run.process.wait(timeout=300) == 143
    assert cloud.nodes == 0


@pytest.mark.fault(
    "no --gpus-per-trial on a cluster whose nodes have no GPU now",
    "one line says that it trains on CPUs, and how to wait; nodes that Ray starts for their CPUs go again",
)
def test_a_run_that_does_not_ask_for_a_gpu_says_so(cloud: FakeCloud, running: Callable[..., Running]) -> None:
    run = running()
    run.until_said(
        "no node has a GPU now: trials train on CPUs, also those of nodes that Ray starts; "
        "to wait for a GPU: --gpus-per-trial 1\n"
    )
    run.process.wait(timeout=300)
    assert run.process.returncode == 0
    assert "waiting for a node" not in run.said
    until(lambda: cloud.nodes == 0, seconds=300)
