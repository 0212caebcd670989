"""A cluster on this machine whose autoscaler starts and stops nodes: Ray's fake provider, with no fixed ports."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.processes import processes, until

RAY = str(Path(sys.executable).with_name("ray"))
HEAD_ID = "f" * 51 + "00000"  # the provider's name for it
PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
IDLE_MINUTES = 0.1
EMPTY = (
    "cluster_synced_files",
    "head_setup_commands",
    "head_start_ray_commands",
    "initialization_commands",
    "rsync_exclude",
    "rsync_filter",
    "setup_commands",
    "worker_setup_commands",
    "worker_start_ray_commands",
)


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("", 0))
        return int(place.getsockname()[1])


@dataclass
class FakeCloud:
    """A head with a CPU, and up to two nodes with a CPU and a GPU each, which its autoscaler starts when they are
    needed."""

    version: int  # of the autoscaler
    stack: ExitStack = field(default_factory=ExitStack)
    environment: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def configuration(self) -> dict[str, Any]:
        provider = {
            "type": "external",  # the wheel lacks the file of defaults of the type fake_multinode
            "module": PROVIDER,
            "gcs_address": self.address,
            "head_node_id": HEAD_ID,
            "launch_multiple": True,
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        }
        head = {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0}
        gpu = {"resources": {"CPU": 1, "GPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 2}
        return {
            "cluster_name": "fake",
            "max_workers": 2,
            "idle_timeout_minutes": IDLE_MINUTES,
            "provider": provider,
            "auth": {},
            "available_node_types": {"ray.head.default": head, "gpu": gpu},
            "head_node_type": "ray.head.default",
            "file_mounts": {},
            **{name: [] for name in EMPTY},
        }

    def __enter__(self) -> Self:
        with ExitStack() as undo:  # if a step fails; else at the end
            folder = Path(undo.enter_context(tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True)))
            (folder / "cluster.json").write_text(json.dumps(self.configuration))  # JSON is YAML
            self.environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
            self.environment |= {"OMP_NUM_THREADS": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
            self.environment.pop("RAY_ADDRESS", None)
            head = {**self.environment, "RAY_FAKE_CLUSTER": "1", "RAY_TMPDIR": str(folder)}
            if self.version == 2:
                head["RAY_enable_autoscaler_v2"] = "1"
                head |= {"RAY_CLOUD_INSTANCE_ID": HEAD_ID, "RAY_NODE_TYPE_NAME": "ray.head.default"}
            words = [RAY, "start", "--head", "--block", f"--port={self.port}", "--num-cpus=1", "--num-gpus=0"]
            words += [f"--autoscaling-config={folder / 'cluster.json'}", "--disable-usage-stats"]
            words += ["--include-dashboard=false", f"--dashboard-port={free_port()}", "--dashboard-agent-listen-port=0"]
            words += ["--min-worker-port=0", "--max-worker-port=0", f"--ray-client-server-port={free_port()}"]
            log = undo.enter_context((folder / "log").open("wb"))
            self.head = subprocess.Popen(words, stdout=log, stderr=log, env=head, start_new_session=True)
            undo.callback(self.stop)
            until(self.answers)
            self.stack = undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stack.close()

    @property
    def nodes(self) -> int:
        """How many there are beside the head."""
        return sum("raylet/raylet" in words for words in processes(self.head.pid).values()) - 1

    def answers(self) -> bool:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
            return self.nodes == 0
        return False

    def stop(self) -> None:
        kill(self.head)


def kill(leader: subprocess.Popen[bytes]) -> None:
    """A process and all of its session."""
    for pid in processes(leader.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    leader.wait()
