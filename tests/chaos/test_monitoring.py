"""The Prometheus command of docs/cluster.md, with the configuration that Ray writes."""

import os
import re
import secrets
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.autoscaling import RAY, free_port, kill
from tests.processes import command, environment, until
from tests.test_docs import ROOT, module

pytestmark = [
    pytest.mark.chaos_long,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no prometheus; Debian's package has it"),
]


def printed() -> str:
    (line,) = re.findall(r"^prometheus (?:.*\\\n)*.*$", (ROOT / "docs" / "cluster.md").read_text(), re.MULTILINE)
    return str(line).replace("\\\n", " ")


@pytest.fixture
def started() -> Iterator[ExitStack]:
    """Ends what is started, the last first."""
    with ExitStack() as stack:
        yield stack


def start(started: ExitStack, log: Path, words: list[str], variables: dict[str, str]) -> None:
    with log.open("ab") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file, env=variables, start_new_session=True)
    started.callback(kill, process)


@pytest.mark.fault(
    "the Prometheus command of docs/cluster.md on a cluster of two nodes that asks for a token, during a run",
    "it finds both nodes, and the gauges of the run",
)
def test_prometheus_finds_all_nodes_and_the_gauges_of_a_run(started: ExitStack, tmp_path: Path) -> None:
    folder = Path(started.enter_context(tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True)))
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_TMPDIR": str(folder)}
    variables, port = {**environment(), **token}, free_port()
    usual = ["--block", "--disable-usage-stats", "--num-cpus=1", "--dashboard-agent-listen-port=0"]
    usual += ["--min-worker-port=0", "--max-worker-port=0"]
    head = [f"--port={port}", f"--dashboard-port={free_port()}", f"--ray-client-server-port={free_port()}"]
    start(started, tmp_path / "head", [RAY, "start", "--head", *head, *usual], variables)
    configuration = folder / "ray" / "session_latest" / "metrics" / "prometheus" / "prometheus.yml"
    until(configuration.exists)
    address = f"127.0.0.1:{port}"
    start(started, tmp_path / "node", [RAY, "start", f"--address={address}", *usual], variables)

    server = f"127.0.0.1:{free_port()}"
    words = shlex.split(printed())
    changed = {
        "--config.file": f"--config.file={configuration}",
        "--storage.tsdb.path": f"--storage.tsdb.path={tmp_path / 'data'}",
        "--web.listen-address": f"--web.listen-address={server}",
    }
    assert words[0] == "prometheus"
    assert words[1].endswith(str(configuration).removeprefix(str(folder)))
    assert [word.partition("=")[0] for word in words[1:]] == [*changed]
    start(started, tmp_path / "prometheus", ["prometheus", *changed.values()], dict(os.environ))
    ask = module("dashboard").ask

    def found(query: str) -> list[Any]:
        with suppress(OSError):
            return list(ask(f"http://{server}", "query", query=query)["result"])
        return []

    until(lambda: len(found("ray_node_cpu_count")) == 2, 300)
    run = command(tmp_path / "results", "--address", address, seeds=100)  # it ends with the test
    start(started, tmp_path / "run", run, variables)
    until(lambda: bool(found("ray_harness_trials")) and bool(found("ray_harness_loss")), 300)
