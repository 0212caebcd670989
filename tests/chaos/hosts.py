"""Hosts on one machine: network namespaces on a bridge, each with its own host name, Ray folder and `ray start`."""

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

RAY = str(Path(sys.executable).with_name("ray"))


def root(*words: str) -> None:
    """Run a command that only root may run; the test is skipped where it fails."""
    try:
        subprocess.run(words, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", "") or str(error)
        pytest.skip(f"network namespaces are not allowed here: {' '.join(words)}: {reason.strip()}")


@dataclass
class Host:
    """A network namespace with a link to the bridge."""

    name: str
    address: str
    link: str  # the bridge's end of it
    folder: Path
    environment: dict[str, str]
    ray: subprocess.Popen[bytes] | None = None
    hidden: Path | None = None  # a folder that is another one here, empty at first

    def command(self, *words: str) -> list[str]:
        """What runs these words on this host: in its network, under its name, with a Ray folder of its own."""
        empty = self.folder / "empty"
        empty.mkdir(exist_ok=True)
        binds = {str(self.folder): self.environment["RAY_TMPDIR"]}
        if self.hidden is not None:
            binds[str(empty)] = str(self.hidden)
        mounts = [f"mount --bind {source} {target}" for source, target in binds.items()]
        enter = "; ".join([f"hostname {self.name}", *mounts, 'exec "$@"'])
        inside = ["ip", "netns", "exec", self.name, "unshare", "--uts", "--mount"]
        return [*inside, "sh", "-c", enter, "sh", *words]

    def start(self, *options: str) -> None:
        """`ray start`, until it is stopped."""
        words = self.command(RAY, "start", f"--node-ip-address={self.address}", "--num-cpus=2", "--block", *options)
        log = (self.folder / "log").open("ab")
        self.ray = subprocess.Popen(words, stdout=log, stderr=log, env=self.environment, start_new_session=True)

    def processes(self, title: str) -> list[int]:
        """The processes of its Ray whose command line holds a title."""
        assert self.ray is not None
        words = ["ps", "-ww", "-o", "pid=,args=", "-s", str(self.ray.pid)]
        lines = subprocess.run(words, capture_output=True, text=True).stdout.splitlines()
        return [int(line.split()[0]) for line in lines if title in line]

    def kill(self, title: str) -> int:
        """How many processes there were."""
        found = self.processes(title)
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        return len(found)

    def stop(self) -> None:
        if self.ray is not None:
            self.kill("")
            self.ray.wait()

    def switch(self, state: str) -> None:
        """Cut its link (down) or restore it (up)."""
        subprocess.run(["ip", "link", "set", self.link, state], check=True)


@dataclass
class Hosts:
    """Some hosts on a bridge; the first one is the head of their cluster. Removed at the end."""

    count: int
    environment: dict[str, str]
    hosts: list[Host] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack)

    @property
    def address(self) -> str:
        return f"{self.hosts[0].address}:6379"

    def __enter__(self) -> Self:
        tag = secrets.token_hex(2)
        with ExitStack() as undo:  # if a step fails; else at the end
            place = Path(undo.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))  # Ray's sockets need a short path
            (place / "ray").mkdir()
            shared = {**os.environ, **self.environment, "RAY_TMPDIR": str(place / "ray"), "RAY_AUTH_MODE": "token"}
            shared["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
            bridge = f"hb{tag}"
            root("ip", "link", "add", bridge, "type", "bridge")
            undo.callback(subprocess.run, ["ip", "link", "del", bridge])
            root("ip", "link", "set", bridge, "up")
            for number in range(1, self.count + 1):
                name, link, address = f"h{number}-{tag}", f"v{number}{tag}", f"10.77.0.{number}"
                folder = place / name
                folder.mkdir()
                root("ip", "netns", "add", name)
                undo.callback(subprocess.run, ["ip", "netns", "del", name])
                root("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
                root("ip", "link", "set", link, "master", bridge, "up")
                root("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
                root("ip", "-n", name, "link", "set", "eth0", "up")
                root("ip", "-n", name, "link", "set", "lo", "up")
                host = Host(name, address, link, folder, shared)
                undo.callback(host.stop)
                self.hosts.append(host)
            self.stack = undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stack.close()

    def start(self) -> None:
        head, *others = self.hosts
        head.start("--head", "--port=6379", "--include-dashboard=false", "--disable-usage-stats")
        for host in others:
            host.start(f"--address={self.address}")
