"""Prometheus and a run: what the dashboard of configs/grafana.json asks for is there."""

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster as RayCluster

from harness.execution.ray_metrics import exported
from harness.spec import Event, Failure, Job, Progress
from tests.execution.ray_runs import connected, experiment, run_of
from tests.factories import a_result
from tests.test_docs import module

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no prometheus; Debian's package has it"),
]
PATIENCE = 180.0  # seconds for what takes about 20: two intervals of Ray and of Prometheus

# a value that is set once is seen for two intervals of Ray: at most 20 times
SEEN_FOR_LONG = 'count_over_time(ray_harness_loss{{trial=~"{}"}}[10m]) > 35'
COUNTS = 'sum by (state) (ray_harness_trials{dataset=~".*"})'

dashboard = module("dashboard")


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """A Prometheus that looks at this address every second; yields its own."""
    settings = folder / "prometheus.yml"
    settings.write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: ray, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    listens = f"127.0.0.1:{free_port()}"
    words = [f"--config.file={settings}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={listens}"]
    with (folder / "log").open("w") as log:
        running = subprocess.Popen(["prometheus", *words], stdout=log, stderr=log)
    try:
        yield f"http://{listens}"
    finally:
        running.terminate()
        running.wait()


def until(answer: Callable[[], Any]) -> Any:
    """What is answered in the end: Prometheus needs some time to start, and to have looked."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = None
        with suppress(OSError):
            found = answer()
        if found or time.monotonic() > deadline:
            return found
        time.sleep(0.5)


def ask_all(server: str, folder: Path) -> dict[str, Any]:
    """What Prometheus has for each panel and each list of the dashboard; and a drawing of it."""
    board = dashboard.board()
    answers: dict[str, Any] = {}
    for panel in board["panels"]:
        query = dashboard.query(panel)
        answers[query] = until(lambda query=query: dashboard.ask(server, "query", query=query)["result"])
    for variable in board["templating"]["list"]:
        values = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable.get("definition", ""))
        if values:
            metric, label = values.groups()
            answers[values[0]] = until(
                lambda metric=metric, label=label: dashboard.ask(server, f"label/{label}/values", **{"match[]": metric})
            )
    dashboard.draw(server, folder / "dashboard.png", 60.0)
    return answers


def trials_with_a_loss(server: str, query: str = "ray_harness_loss") -> set[str]:
    return {one["metric"]["trial"] for one in dashboard.ask(server, "query", query=query)["result"]}


def test_every_query_of_the_dashboard_returns_data_and_only_trials_that_have_ended_vanish(
    cluster: RayCluster, tmp_path: Path
) -> None:
    """Some trials fail, one ends, and two are quiet after their first report until all has been asked."""
    over = tmp_path / "over"

    def quiet(job: Job) -> Iterator[Event]:
        trial = job.trial
        if trial.is_baseline or (trial.loss, trial.seed) == ("triplet", 0):
            yield Failure(trial, "as planned", "")
            return
        yield Progress("train", 1, 2, 64, 64, 0.25, 100.0, 9.0, metrics={"R@1": 0.5})
        deadline = time.monotonic() + 3 * PATIENCE
        while not over.exists() and trial.seed and time.monotonic() < deadline:
            time.sleep(0.2)
        yield a_result(trial)

    def ask(server: str, ended: str, silent: str) -> tuple[dict[str, Any], set[str], set[str]]:
        try:
            answers = ask_all(server, tmp_path)
            until(lambda: ended not in trials_with_a_loss(server))
            until(lambda: trials_with_a_loss(server, SEEN_FOR_LONG.format(silent)))
            earlier = trials_with_a_loss(server, "last_over_time(ray_harness_loss[1h])")
            return answers, earlier, trials_with_a_loss(server, SEEN_FOR_LONG.format(".*"))
        finally:
            over.touch()

    with connected(cluster, tmp_path / "storage", cpus_per_trial=4.0, events=quiet) as connection:
        run = run_of(experiment("group", "triplet", seeds=2), tmp_path, connection.execute)
        node = ray.nodes()[0]
        ended, silent = (trial.name for trial in run.account.final if trial.loss == "group")
        (tmp_path / "prometheus").mkdir()
        with (
            prometheus(tmp_path / "prometheus", f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}") as server,
            ThreadPoolExecutor(1) as pool,
            exported(run.census, "emoji"),
        ):
            asked = pool.submit(ask, server, ended, silent)
            run.dispatch(run.account.known)
            answers, earlier, seen_for_long = asked.result()
    assert [query for query, answer in answers.items() if not answer] == []
    assert {dashboard.query(panel) for panel in dashboard.board()["panels"]} < answers.keys()
    states = {one["metric"]["state"]: int(one["value"][1]) for one in answers[COUNTS]}
    assert sum(states.values()) == len(run.account.known)
    assert {ended, silent} <= earlier
    assert silent in seen_for_long
    assert ended not in seen_for_long
