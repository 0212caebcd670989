"""Three hosts on one machine: links are cut, raylets and workers are killed and stopped; nothing is lost or doubled."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.execution import heartbeat
from harness.storage import Storage
from tests.chaos.conftest import SlowRun
from tests.chaos.hosts import Hosts
from tests.processes import HARNESS, bits, finish, leftovers, records, until

pytestmark = [pytest.mark.chaos_long, pytest.mark.timeout(1800)]

SEARCH = ("--trials", "12", "--seeds", "2", "--ensemble", "2")


@pytest.fixture
def hosts(slow_run: SlowRun, request: pytest.FixtureRequest) -> Iterator[Hosts]:
    """As a test may ask for, the third one has neither the images nor a cache of them."""
    environment = {"NAP": "1.5", "HARNESS_CACHE": str(slow_run.folder / "cache"), "OMP_NUM_THREADS": "1"}
    with Hosts(3, environment) as started:
        if getattr(request, "param", "") == "no images on the third":
            started.hosts[2].hidden = slow_run.folder
        started.start()
        until(lambda: nodes(started) == 3, seconds=400)  # on a busy machine a node takes a minute to start
        yield started


def nodes(hosts: Hosts) -> int:
    """How many nodes the cluster has."""
    ask = f"import ray; ray.init('{hosts.address}', log_to_driver=False); print(sum(n['Alive'] for n in ray.nodes()))"
    words = hosts.hosts[0].command(sys.executable, "-c", ask)
    done = subprocess.run(words, capture_output=True, text=True, env=hosts.hosts[0].environment)
    return int(done.stdout.split()[-1]) if done.returncode == 0 else 0


def just_begun(results: Path) -> int:
    """The process of a trial that is in its first or second epoch; 0 if there is none."""
    for beat in heartbeat.read(Storage(str(results / "artifacts"))):
        early = "epoch 1/4" in beat.position or "epoch 2/4" in beat.position
        if early and Path(f"/proc/{beat.pid}").exists():
            return beat.pid
    return 0


class Running:
    """The command on the head, and what it has said so far."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(words, **pipes, text=True, env=environment, start_new_session=True)
        self.err, self.begun = "", time.monotonic()
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.err += f"{time.monotonic() - self.begun:.0f} s  {line}"

    def until_said(self, sign: str, times: int = 1) -> None:
        until(lambda: self.err.count(sign) >= times or self.process.poll() is not None, seconds=300)
        assert self.process.poll() is None, self.err


@pytest.mark.fault(
    "three hosts with tokens: the link of one is cut for 45 s and restored, a raylet is killed and started again, a "
    "worker is stopped for a minute, during a search with final runs and ensembles",
    "exit 0; nothing is lost or doubled, every result equals the undisturbed one to the bit",
)
def test_a_search_across_three_hosts_survives(
    slow_run: SlowRun, hosts: Hosts, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    results, reference = tmp_path / "results", tmp_path / "undisturbed"
    whole = finish(slow_run.command(reference, *SEARCH, "--executor", "local", nap=0))
    assert whole.returncode == 0, whole.stderr
    head, second, third = hosts.hosts
    words = slow_run.command(results, *SEARCH, "--address", hosts.address)
    running = Running(head.command(*words), head.environment)
    try:
        running.until_said(" epoch 2/4")
        third.switch("down")
        time.sleep(45)
        third.switch("up")
        running.until_said("] slow.Slow", times=2)
        assert second.kill("raylet/raylet") == 1
        time.sleep(5)
        second.stop()
        second.start(f"--address={hosts.address}")
        running.until_said("] slow.Slow", times=3)
        until(lambda: just_begun(results) != 0, seconds=300)
        worker = just_begun(results)
        os.kill(worker, signal.SIGSTOP)
        time.sleep(60)
        with contextlib.suppress(ProcessLookupError):  # on a busy machine its host may have been given up
            os.kill(worker, signal.SIGCONT)
        out, _ = running.process.communicate(timeout=900)
    finally:
        print(running.err)
        running.process.kill()
    assert running.process.returncode == 0, running.err
    assert bits(results) == bits(reference)
    assert not leftovers(results)
    assert out.startswith("### ")
    record_property("happened", f"{len(bits(reference))} records, all equal")


@pytest.mark.fault(
    "three hosts, one of which has neither the images nor a cache of them; then their cache is pushed to the storage",
    "first a table that names the host, exit 2 before a trial starts; then it takes them from the storage, and every "
    "result equals the undisturbed one to the bit",
)
@pytest.mark.parametrize("hosts", ["no images on the third"], indirect=True)
def test_a_host_without_images_takes_them_from_the_storage(
    slow_run: SlowRun, hosts: Hosts, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    head, _, third = hosts.hosts
    results, reference = tmp_path / "results", tmp_path / "undisturbed"
    seeds = ("--seeds", "6")
    whole = finish(slow_run.command(reference, *seeds, "--executor", "local", nap=0))
    assert whole.returncode == 0, whole.stderr
    run = head.command(*slow_run.command(results, *seeds, "--address", hosts.address))
    refused = subprocess.run(run, capture_output=True, text=True, env=head.environment)
    assert refused.returncode == 2, refused.stderr
    assert f"harness: nodes differ: {third.address}: images: photos: not found at " in refused.stderr
    rows = [line for line in refused.stderr.splitlines() if f" {third.address} " in line]
    assert "photos: not found" in rows[0]
    assert not results.exists() or not records(results)
    push = [*HARNESS, "data", "push", str(slow_run.folder / "photos"), "--storage", str(results / "artifacts")]
    push += ["--protocol", "cpu", "--set", "resize=16"]
    environment = {**os.environ, "HARNESS_CACHE": str(slow_run.folder / "cache")}
    pushed = subprocess.run(push, capture_output=True, text=True, env=environment)
    assert pushed.returncode == 0, pushed.stderr
    done = subprocess.run(run, capture_output=True, text=True, env=head.environment)
    print(done.stderr)
    assert done.returncode == 0, done.stderr
    assert f"{third.address}  photos: takes its images from the storage" in done.stderr
    assert bits(results) == bits(reference)
    where = {record["provenance"]["node"] for record in records(results).values()}
    assert third.name in where, "it ran trials, too"
    record_property("happened", f"{len(bits(reference))} records, all equal, on {len(where)} hosts")
