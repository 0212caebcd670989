"""`harness weights`, and what a run says of data and weights that are not there."""

import hashlib
from pathlib import Path

import pytest
import torch

from harness.backbones import downloads, weights
from tests.cli.records import stored
from tests.conftest import Harness
from tests.data.factories import draw, lay_cub
from tests.data.test_download import Site, site  # noqa: F401 the server that misbehaves

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def served(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:  # noqa: F811
    """The server has the weights of a small network, under a name that begins with their sha256."""
    import timm

    torch.save(timm.create_model("test_resnet").state_dict(), tmp_path / "state.pth")
    site.content = (tmp_path / "state.pth").read_bytes()
    digest = hashlib.sha256(site.content).hexdigest()[:9]
    address = f"http://127.0.0.1:{site.server_address[1]}/test_resnet-{digest}.pth"
    monkeypatch.setattr(downloads, "URLS", {"test_resnet": address})
    return site


def test_weights_are_downloaded_continued_checked_and_found(
    root: Path, harness: Harness, served: Site, tmp_path: Path
) -> None:
    served.fault, served.faults, served.piece = "short", 4, 30_000  # each connection brings a piece, then fails
    said = harness("weights", "download", "test_resnet")
    assert said.code == 2
    assert "rerun the same command to continue from 120,000 bytes" in said.err
    said = harness("weights", "download", "test_resnet")
    assert said.code == 0, said.err
    assert served.requested[-1] == "bytes=120000-"
    file = downloads.place("test_resnet")
    assert file.read_bytes() == served.content
    assert harness("weights", "download", "test_resnet").out == f"test_resnet: exists already as {file}\n"
    assert weights.resolve("test_resnet", "hub") == (
        f"file:{hashlib.sha256(served.content).hexdigest()[:12]}",
        str(file),
    )
    words = ("--dataset", "blobs", "--set", "backbone=test_resnet", "--weights", "hub")
    said = harness("run", "--losses", "none", *words)
    assert said.code == 0, said.err
    assert len(stored(tmp_path / "results")) == 2


def test_weights_with_another_sha256_are_not_kept(harness: Harness, served: Site) -> None:
    served.content = served.content[:-1] + b"x"
    said = harness("weights", "download", "test_resnet")
    assert said.code == 2
    assert "the download was removed" in said.err
    assert not downloads.place("test_resnet").exists()


def test_other_names_are_told_where_their_weights_come_from(harness: Harness) -> None:
    said = harness("weights", "download", "resnet50")
    assert said.code == 2
    assert "known: bn_inception. timm's hub is asked when a run starts: --weights hub" in said.err


def test_one_message_says_all_that_a_run_lacks_and_how_to_get_it(root: Path, harness: Harness, tmp_path: Path) -> None:
    words = ("run", "--losses", "none", "--data-root", str(root), "--set", "backbone=bn_inception", "--weights", "hub")
    said = harness(*words, "--dataset", "sop")
    assert said.code == 2
    assert said.err.count("\n") == 1
    assert "neither its images" in said.err or "not found" in said.err
    assert "harness weights download bn_inception" in said.err
    lay_cub(root / "cub", each=4, write=draw)
    said = harness(*words, "--dataset", "cub")
    assert said.code == 2
    assert said.err == (
        "harness: the weights of bn_inception are not here; get them with: harness weights download bn_inception; "
        "or give --weights FILE, or none\n"
    )
    assert not (tmp_path / "results").exists()


def test_both_are_named_where_the_dataset_has_an_address(harness: Harness, tmp_path: Path) -> None:
    said = harness("run", "--dataset", "sop", "--data-root", str(tmp_path))
    assert said.code == 2
    assert said.err.endswith("get both: harness data download sop && harness weights download bn_inception\n")
