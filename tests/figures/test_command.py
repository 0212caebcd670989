"""`harness figures`."""

from pathlib import Path

import numpy as np

from harness import config
from harness.store import Store
from tests.conftest import Harness
from tests.figures.factories import sources


def test_the_command_draws_what_it_can_and_says_what_is_missing(small: Path, harness: Harness, tmp_path: Path) -> None:
    assert harness("run", "--losses", "triplet", "--dataset", "blobs", "--seeds", "2", "--ensemble", "2").code == 0
    said = harness("figures", "--format", "png")
    assert said.code == 0, said.err
    end = "blobs-tiny-test_efficientnet.png"
    folder = tmp_path / "results" / "figures"
    expected = ["retrieval-triplet", "tsne-triplet", "cost", "ensemble"]
    assert said.out.splitlines() == [str(folder / f"{name}-{end}") for name in expected]
    assert {file.name for file in folder.iterdir()} == {f"{name}-{end}" for name in expected}
    assert all(file.stat().st_size > 1000 for file in folder.iterdir())
    skipped = said.err.splitlines()
    assert [line.split(":")[0] for line in skipped] == [
        f"skipped {name}" for name in ("grid", "training", "curves", "overfitting", "search", "pairwise")
    ]
    assert skipped[2].endswith("harness run --dataset blobs --protocol tiny --losses triplet --curves --seeds 3")

    out = tmp_path / "elsewhere"
    said = harness("figures", "retrieval", "--queries", "worst", "--out", str(out), "--format", "pdf")
    assert said.out.splitlines() == [str(out / "retrieval-triplet-worst-blobs-tiny-test_efficientnet.pdf")]
    for arguments, complaint in (
        (["retrieval", "--queries", "48"], "--queries 48: must be 0 to 47"),
        (["tsne", "--loss", "grup"], "no loss named 'grup'; known: triplet"),
        (
            ["curves"],
            "no final runs with curves of two epochs or more for blobs, tiny, test_efficientnet; create them with",
        ),
        (["retreival"], "no figure named 'retreival'; did you mean 'retrieval'"),
        (["cost", "--format", "gif"], "--format gif: must be png, pdf, svg, or several with commas"),
        (["cost", "--dataset", "emoji"], "no dataset with results named 'emoji'"),
        (["retrieval", "--storage", str(out)], "the embeddings of"),
    ):
        said = harness("figures", *arguments)
        assert said.code == 2, arguments
        assert complaint in said.err
        assert said.err.count("\n") == 1


def test_the_rows_of_the_embeddings_are_the_images_of_the_test_half(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    """The pictures of a class's rows are the stored drawings of that class, resized."""
    from harness.data import listing, loading
    from harness.figures import pictures as module

    harness("run", "--losses", "triplet", "--dataset", "blobs")
    where = Store(tmp_path / "results")
    (run,) = [one for one in where.results()[0] if one.trial.loss == "triplet"]
    some = module.load(run, sources(where.artifacts))
    images = loading.embedded(listing.identify(config.dataset("blobs"), tmp_path))
    for row in (0, 17, 47):
        picture = some.picture(row)
        assert picture.shape == (32, 32, 3)
        number = int(some.test[row])
        assert images.classes.index(images.paths[number].split("/")[0]) - images.train_classes == some.labels[row]
        stored = images.image(number).numpy().astype(float)
        assert np.abs(picture.astype(float).mean(axis=(0, 1)) - stored.mean(axis=(0, 1))).max() < 3


def test_without_results_the_command_says_what_makes_some(harness: Harness) -> None:
    said = harness("figures")
    assert said.code == 2
    assert "make some with: harness run" in said.err
