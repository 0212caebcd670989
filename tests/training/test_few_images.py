"""A plain run on data of one's own, many classes with few images each, must not destroy what it starts from."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from tests.conftest import Harness

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_every_core_loss_ends_above_the_untrained_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harness: Harness
) -> None:
    """200 generated classes of 4 to 7 images; all settings but the size of the images at their defaults."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    runpy.run_path(str(BENCHMARKS / "sop_scale.py"))["class_folders"](tmp_path / "products", 200)
    run = harness("run", "--dataset", f"{tmp_path}/products", "--set", "resize=54", "--set", "crop=48")
    assert run.code == 0, run.err
    records = [json.loads(file.read_text()) for file in (tmp_path / "results").rglob("runs/products/*/*.json")]
    recalls = {record["trial"]["loss"]: record["metrics"]["R@1"] for record in records if record["parameters"]}
    untrained = recalls.pop("none")
    assert set(recalls) == {"group", "triplet", "proxy_nca", "normalized_softmax"}
    assert min(recalls.values()) > untrained, recalls
