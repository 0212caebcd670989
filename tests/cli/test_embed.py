"""`harness embed`: images through the network whose weights a run has kept."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from PIL import Image

import harness as harness_package
from harness import config
from harness.data import folds, loading
from harness.spec import UserError
from tests.conftest import Harness


@pytest.fixture
def artifacts(small: Path, harness: Harness, tmp_path: Path) -> Path:
    """Of two final runs, of which the better one's weights stay."""
    assert harness("run", "--losses", "triplet", "--dataset", "blobs", "--seeds", "2").code == 0
    return tmp_path / "results" / "artifacts"


@pytest.fixture
def images(small: Path, tmp_path: Path) -> list[str]:
    """The first three test images, as files."""
    dataset = config.dataset("blobs")
    loaded = loading.embedded(dataset)
    files = []
    for index in folds.fold(loaded, dataset, "test").test[:3].tolist():
        files.append(str(tmp_path / f"{index}.png"))
        Image.fromarray(loaded.image(index).numpy()).save(files[-1])
    return files


def with_weights(artifacts: Path) -> str:
    (file,) = (artifacts / "weights").iterdir()
    return file.stem.split("-")[0]


def test_images_are_embedded_as_the_run_embedded_them(
    artifacts: Path, images: list[str], harness: Harness, tmp_path: Path
) -> None:
    id = with_weights(artifacts)
    (file,) = (artifacts / "embeddings").glob(f"{id}-*.safetensors")
    stored = safetensors.numpy.load_file(file)["embeddings"]
    out = tmp_path / "out.npy"
    assert harness("embed", id, *images, "--out", str(out)).code == 0
    np.testing.assert_allclose(np.load(out), stored[:3], atol=1e-5)
    header, line = harness("embed", id[:8], images[0]).out.splitlines()
    name, *values = line.split(",")
    assert header == ",".join(["image", *map(str, range(len(values)))])
    assert name == f'"{images[0]}"'
    np.testing.assert_allclose([float(value) for value in values], stored[0], atol=1e-5)
    # from Python the same, by the name of the loss or by an id
    results = harness_package.load(tmp_path / "results")
    for which in ("triplet", id[:8]):
        np.testing.assert_array_equal(results.embed(which, images), np.load(out))
    np.testing.assert_allclose(np.linalg.norm(np.load(out), axis=1), 1, atol=1e-5)
    with pytest.raises(UserError, match="no loss or id named 'tripplet'; did you mean 'triplet'"):
        results.embed("tripplet", images)
    table = tmp_path / "out.csv"
    assert harness("embed", id, *images, "--out", str(table)).code == 0
    assert len(table.read_text().splitlines()) == 4  # a header and three images


def test_what_cannot_be_embedded_is_one_line(
    artifacts: Path, images: list[str], harness: Harness, tmp_path: Path
) -> None:
    id = with_weights(artifacts)
    (other,) = {file.stem.split("-")[0] for file in (artifacts / "embeddings").iterdir()} - {id}
    baseline = next((tmp_path / "results" / "runs" / "blobs" / "none").glob("*.json")).stem
    junk = tmp_path / "junk.png"
    junk.write_text("not an image")
    for words, complaint in (
        ((other, images[0]), f"the weights of {other} are not in "),
        ((other, images[0]), f"; those of {id} (seed "),
        ((baseline, images[0]), f"{baseline} is a baseline: only final runs of losses keep weights"),
        ((id, str(junk)), "junk.png: not an image"),
        ((id, images[0], "--out", "out.txt"), "--out out.txt: must be a .npy or a .csv file"),
    ):
        said = harness("embed", *words)
        assert said.code == 2
        assert complaint in said.err
        assert said.err.count("\n") == 1
