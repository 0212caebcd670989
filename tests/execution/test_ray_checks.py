"""What is said and checked when a Ray is joined."""

import os
import subprocess
import sys

import pytest

from harness.execution import ray_checks
from harness.spec import UserError

ASKED = "Ray dashboard: http://127.0.0.1:8265  (it asks for a token: ray get-auth-token)\n"


@pytest.mark.parametrize(("mode", "line"), [("token", ASKED), ("disabled", ASKED.partition("  (")[0] + "\n")])
def test_the_dashboards_line_names_the_token_only_where_one_is_asked_for(mode: str, line: str) -> None:
    code = "from harness.execution.ray_checks import dashboard_line; print(dashboard_line('127.0.0.1:8265'))"
    environment = {**os.environ, "RAY_AUTH_MODE": mode}
    words = [sys.executable, "-c", code]
    assert subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout == line


def test_a_machine_that_is_no_node_of_the_cluster_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_checks.services, "find_node_ids", list)
    monkeypatch.setattr(ray_checks, "START", 0)
    with pytest.raises(UserError) as caught:
        ray_checks.check_node("head:6379")
    assert str(caught.value) == (
        "--address head:6379: this machine is no node of the cluster; start the command on one of its nodes, or make "
        "this one a node that runs no trials: ray start --address=head:6379 --num-cpus=0"
    )


def test_a_node_that_is_just_starting_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [[], [], ["1f2e"]]
    monkeypatch.setattr(ray_checks.services, "find_node_ids", lambda: answers.pop(0))
    monkeypatch.setattr(ray_checks.time, "sleep", lambda seconds: None)
    ray_checks.check_node("head:6379")
    assert not answers
