"""What is said and checked when a Ray is joined."""

import os
import subprocess
import sys

import pytest

ASKED = "Ray dashboard: http://127.0.0.1:8265  (it asks for a token: ray get-auth-token)\n"


@pytest.mark.parametrize(("mode", "line"), [("token", ASKED), ("disabled", ASKED.partition("  (")[0] + "\n")])
def test_the_dashboards_line_names_the_token_only_where_one_is_asked_for(mode: str, line: str) -> None:
    code = "from harness.execution.ray_checks import dashboard_line; print(dashboard_line('127.0.0.1:8265'))"
    environment = {**os.environ, "RAY_AUTH_MODE": mode}
    words = [sys.executable, "-c", code]
    assert subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout == line
