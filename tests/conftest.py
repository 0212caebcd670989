"""A small generated dataset with a tiny protocol, and the command line as a function."""

import hashlib
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from harness import config
from harness.cli import main as cli
from harness.data import loading
from harness.data.embedded.build_emoji import save

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster as RayCluster

    from tests.s3 import S3

DATASET = """
title = "Blobs"
cite = "generated"
version = 1
layout = "embedded"
sha256 = "{sha256}"
split_seed = 0
train_classes = 12
test_classes = 8
train_images = 72
test_images = 48
recall_at = [1, 2, 4, 8]
protocol = "tiny"
"""

PROTOCOL = """
title = "Tiny"
source = "tests"
select = "R@1"
folds = 1
[train]
backbone = "test_efficientnet"
weights = "none"
dim = 8
pooling = "avg"
layer_norm = false
freeze_bn = false
resize = 32
aspect = "square"
crop = 32
augment = "none"
crop_scale = 1.0
classes_per_batch = 4
samples_per_class = 3
pretrain_epochs = 0
pretrain_lr = 1e-3
pretrain_eps = 1e-8
pretrain_batch = 16
epochs = 1
optimizer = "adam"
lr = 1e-3
weight_decay = 0.0
head_lr_factor = 1.0
schedule = "one-cycle"
drops = []
checkpoint = "last"
precision = "fp32"
[search]
lr = [1e-4, 1e-2]
"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Under `make test` two processes share the tests. One runs all slow ones, because several Rays at a time are in
    each other's way; the rest goes file by file to whichever process is free."""
    for item in items:
        group = "slow" if item.get_closest_marker("slow") else item.path.stem
        item.add_marker(pytest.mark.xdist_group(group))


def heed_ctrl_c() -> None:
    """For a child before it starts: what a shell runs in the background, as it may these tests, ignores SIGINT, and
    under nohup SIGHUP."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Two torch threads on tiny tensors are slower than one, and reductions repeat only with a fixed number."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def cluster() -> Iterator["RayCluster"]:
    """A head with 8 logical CPUs and 2 logical GPUs on this machine, shared by all tests that need Ray."""
    from ray.cluster_utils import Cluster

    # ports of None and 0: any that are free, where another Ray has a dashboard and its agents too
    head = {"num_cpus": 8, "num_gpus": 2, "include_dashboard": True}
    head |= {"dashboard_port": None, "dashboard_agent_listen_port": 0}
    # Ray gives a job the address of the cluster that was started last in its head's folder: not that of other tests
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        started = Cluster(initialize_head=True, head_node_args={**head, "temp_dir": folder})
        yield started
        started.shutdown()


@pytest.fixture(scope="session")
def s3_server() -> Iterator["S3"]:
    from tests.s3 import S3

    server = S3()
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server: "S3", monkeypatch: pytest.MonkeyPatch) -> Iterator["S3"]:
    """An S3 server with an empty bucket, `bench`, which processes that start now find: a Ray, too."""
    from s3fs import S3FileSystem

    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    S3FileSystem.clear_instance_cache()  # another test's, with its credentials
    s3_server.reset()
    yield s3_server
    S3FileSystem.clear_instance_cache()


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An image cache of the test's own, and no data root but the one that it names."""
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HARNESS_DATA", raising=False)
    return tmp_path / "cache"


def blobs(classes: int = 20, samples: int = 6, size: int = 16) -> np.ndarray:
    """(classes, samples, size, size, 3): a class is a pattern of stripes; each sample has a colour of its own."""
    rng = np.random.default_rng(0)
    colours = rng.integers(0, 256, (classes, samples, 1, 1, 3))
    stripes = rng.integers(0, 2, (classes, 1, size, 1, 1)) * 80
    noise = rng.normal(0, 10, (classes, samples, size, size, 3))
    return np.clip(colours * 0.6 + stripes + noise, 0, 255).astype(np.uint8)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Dataset `blobs` and protocol `tiny` in place of the shipped ones; returns the folder of the configuration."""
    embedded, configs = tmp_path / "embedded", tmp_path / "configs"
    for folder in (embedded, configs / "datasets", configs / "protocols"):
        folder.mkdir(parents=True)
    images = blobs()
    names = np.array([f"class-{number}" for number in range(len(images))])
    save(embedded / "blobs.npz", images=images, classes=names)
    digest = hashlib.sha256((embedded / "blobs.npz").read_bytes()).hexdigest()
    (configs / "datasets" / "blobs.toml").write_text(DATASET.format(sha256=digest))
    (configs / "protocols" / "tiny.toml").write_text(PROTOCOL)
    monkeypatch.setattr(config, "CONFIGS", configs)
    monkeypatch.setattr(loading, "EMBEDDED", embedded)
    return configs


# What every run says before it looks further, and how much of it is stored.
FIRST_WORDS = re.compile(
    r"^\d\d:\d\d:\d\d (.*; loading torch \.\.\.|[^:]*\d+ (trial|ensemble)s?: .*|starting Ray \.\.\.|joining .*)\n",
    re.MULTILINE,
)


@dataclass
class Said:
    code: int
    out: str
    all_err: str

    @property
    def err(self) -> str:
        """Without the first words of a run."""
        return FIRST_WORDS.sub("", self.all_err)


Harness = Callable[..., Said]


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Harness:
    """The command line in this process, its results under tmp_path."""
    monkeypatch.setenv("HARNESS_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def call(*arguments: str) -> Said:
        capfd.readouterr()
        words = [*map(os.fspath, arguments)]
        if words[:1] == ["run"] and "--executor" not in words:  # Ray has tests of its own
            words += ["--executor", "local"]
        monkeypatch.setattr(sys, "argv", ["harness", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capfd.readouterr()
        code = end.value.code
        assert isinstance(code, int)
        return Said(code, out, err)

    return call
