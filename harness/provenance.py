"""Where a number comes from: versions, commit, machine."""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import harness
import losses
from harness.spec import Job, printable, redacted
from losses import own

if TYPE_CHECKING:
    import torch

PACKAGES = ("torch", "torchvision", "timm", "numpy", "pillow")  # numbers depend on their versions


def origin() -> dict[str, str | None]:
    """What only the command knows, not its workers. Imports nothing heavy."""
    words = [*program(), *sys.argv[1:]]
    return {"command": printable(shlex.join(map(redacted, words))), "commit": commit()}


def program() -> list[str]:
    """What was called, as it is typed."""
    file = Path(sys.argv[0])
    return ["python", "-m", "harness"] if file.parts[-2:] == ("harness", "__main__.py") else [file.name]


def gather(job: Job, device: "torch.device", weights_sha256: str | None, images: Mapping[str, Any]) -> dict[str, Any]:
    """What the worker knows, also of the images, and the command's origin."""

    return {
        **job.origin,
        "harness": harness.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "node": platform.node(),
        **conditions(device),
        "packages": versions() | plugin_version(job.trial.loss),
        "data": job.dataset.path or None,  # of a user's own
        "weights_file": os.path.basename(job.weights_file) if job.trial.weights_kind == "file" else None,
        "weights_sha256": weights_sha256,
        **images,
        "sources": {path: own.digest(text) for path, text in job.sources.items()},  # of a user's own loss
        "pid": os.getpid(),
        "finished": now(),
    }


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def conditions(device: "torch.device") -> dict[str, Any]:
    """What moves the numbers of a training and is not part of its trial, as `gather` tells it."""
    import torch

    return {
        "device_type": device.type,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu(),
        "threads": torch.get_num_threads(),
        "packages": {"torch": version_of("torch")},
    }


def versions() -> dict[str, str | None]:
    return {name: version_of(name) for name in PACKAGES}


def plugin_version(loss: str) -> dict[str, str]:
    """The installed package that a loss is from, and its version; empty for other losses."""
    point = losses.plugins().get(loss)
    package = point.dist if point else None
    return {package.name: package.version} if package else {}


def version_of(name: str) -> str | None:
    """Of an installed package."""
    try:
        return version(name)
    except (PackageNotFoundError, ValueError):  # a ValueError if it is no name
        return None


@cache
def commit() -> str | None:
    """The checkout's commit, with a + if files differ from it; None for an installed package."""
    here = Path(__file__).resolve().parent.parent
    if not (here / ".git").exists():
        return None
    try:
        head = _git(here, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git(here, "status", "--porcelain", "--", "harness", "losses", "configs") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def has_gpu() -> bool:
    """Whether the driver of a GPU that torch would use has left its device files. Imports no torch."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists()


@cache
def cpu() -> str:
    """The processor's name, where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "cpu"
