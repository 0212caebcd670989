"""A dataset's images for a trial: from the cache of this node, of the files the trial was planned with."""

import shutil
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness import config, plan
from harness.data import folds, listing, loading
from harness.data.listing import Listing
from harness.spec import Dataset, Experiment, Trial, UserError
from tests.data.factories import ASPECTS, expected, lay_cub, unasserted
from tests.spec.test_spec import a_trial


def own(folder: Path) -> Dataset:
    """A user's own dataset of four classes, of two images each, from what `things` has."""
    target = folder / "own"
    for number, file in enumerate(sorted((folder / "things").iterdir())):
        (target / f"class {number // 2}").mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target / f"class {number // 2}" / file.name)
    return listing.identify(replace(config.dataset(str(target)), protocol="quick"), Path())


def trial(dataset: Dataset, aspect: str) -> Trial:
    settings = {"resize": 16, "crop": 16, "aspect": aspect, "augment": "none"}
    asked = Experiment(dataset, config.protocol("quick"), (config.loss("triplet"),), settings=settings)
    return plan.final(asked, {})[0]


def finish(steps: Generator[tuple[int, int], None, folds.Images]) -> folds.Images:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def load(dataset: Dataset, aspect: str, *, skip_bad: bool = False) -> folds.Images:
    return finish(loading.load(dataset, trial(dataset, aspect), "", skip_bad=skip_bad))


@pytest.mark.parametrize("aspect", ASPECTS)
def test_a_cache_needs_the_original_files_no_more(things: Listing, aspect: str) -> None:
    dataset = own(things.folder.parent)
    whole = load(dataset, aspect)
    shutil.rmtree(dataset.folder)
    loading.forget()
    again = load(dataset, aspect)
    assert np.array_equal(whole.pixels, again.pixels)
    assert whole.paths == again.paths == tuple(f"class {n // 2}/{n:03}.png" for n in range(8))


@pytest.mark.parametrize("aspect", ASPECTS)
def test_bad_images_stop_a_run_unless_it_is_asked_to_go_on_without(things: Listing, aspect: str) -> None:
    (things.folder / "003.png").write_text("not an image")
    dataset = own(things.folder.parent)
    with pytest.raises(UserError, match=r"class 1/003\.png cannot be read, one of 1;.*--skip-bad-images"):
        load(dataset, aspect)
    without = load(dataset, aspect, skip_bad=True)
    assert without.skipped == ("class 1/003.png",)
    assert without.labels.tolist() == [0, 0, 1, 2, 2, 3, 3]
    assert len(without.paths) == len(without.offsets) == len(without.heights) == len(without.widths) == 7
    for number, path in enumerate(without.paths):
        np.testing.assert_array_equal(without.one(number), expected(Path(dataset.folder) / path, aspect))
    with pytest.raises(UserError, match="cannot be read"):  # what one trial may skip, the next one may not
        load(dataset, aspect)


@pytest.mark.parametrize("aspect", ASPECTS)
def test_a_dataset_without_one_good_image_says_so(things: Listing, aspect: str) -> None:
    for path in things.paths:
        (things.folder / path).write_text("not an image")
    with pytest.raises(UserError, match="cannot be read, one of 8"):
        load(own(things.folder.parent), aspect)


def test_a_worker_whose_files_changed_after_planning_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HARNESS_DATA", raising=False)
    loading.forget()
    lay_cub(tmp_path / "here" / "cub")
    planned = listing.identify(unasserted("cub"), tmp_path / "here")
    image = tmp_path / "here" / "cub" / "images" / "001.Bird" / "Bird_0.jpg"
    image.write_text("longer than it was")
    changed = listing.identify(unasserted("cub"), tmp_path / "here").fingerprint
    with pytest.raises(UserError) as error:
        list(loading.load(planned, a_trial(), str(tmp_path / "here")))
    said = str(error.value)
    assert said.startswith(f"cub: the files under {tmp_path / 'here' / 'cub'} are not those the run was planned with")
    assert f"(fingerprint {changed}, planned {planned.fingerprint})" in said


def test_a_worker_finds_its_own_copy_by_its_own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("driver", "worker"):
        lay_cub(tmp_path / place / "cub")
    planned = listing.identify(unasserted("cub"), tmp_path / "driver")
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path / "worker"))
    assert loading.find(planned, str(tmp_path / "driver")).folder == tmp_path / "driver" / "cub"
    assert loading.find(planned, str(tmp_path / "gone")).folder == tmp_path / "worker" / "cub"
    monkeypatch.delenv("HARNESS_DATA")
    with pytest.raises(UserError, match=f"cub: no data; looked for images.txt in {tmp_path / 'gone'}"):
        loading.find(planned, str(tmp_path / "gone"))
