"""A dataset's images for a trial: from the cache of this node, of the files the trial was planned with."""

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness import config, plan
from harness.data import folds, listing, loading, stamps
from harness.data.cache import Step
from harness.data.listing import Listing
from harness.spec import Dataset, Experiment, Trial, UserError, finish
from tests.data.factories import ASPECTS, expected, lay_cub, unasserted


def own(folder: Path) -> Dataset:
    """A user's own dataset of four classes, of two images each, from what `things` has."""
    target = folder / "own"
    for number, file in enumerate(sorted((folder / "things").iterdir())):
        (target / f"class {number // 2}").mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target / f"class {number // 2}" / file.name)
    return listing.identify(replace(config.dataset(str(target)), protocol="quick"), Path())


def trial(dataset: Dataset, aspect: str) -> Trial:
    settings = {"resize": 16, "crop": 16, "aspect": aspect, "augment": "none"}
    experiment = Experiment(dataset, config.protocol("quick"), (config.loss("triplet"),), settings=settings)
    return plan.final(experiment, {})[0]


def load(dataset: Dataset, aspect: str, *, skip_bad: bool = False) -> folds.Images:
    return finish(loading.load(dataset, trial(dataset, aspect), skip_bad=skip_bad))


@pytest.mark.parametrize("aspect", ASPECTS)
def test_a_cache_needs_the_original_files_no_more(things: Listing, aspect: str) -> None:
    dataset = own(things.folder.parent)
    whole = load(dataset, aspect)
    shutil.rmtree(dataset.folder)
    again = load(dataset, aspect)
    assert np.array_equal(whole.pixels, again.pixels)
    assert whole.paths == again.paths == tuple(f"class {n // 2}/{n:03}.png" for n in range(8))


def test_progress_is_reported_while_images_are_decoded_and_not_again(
    things: Listing, decoded: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stamps, "SETTLED", 0)  # the first to open a cache verifies it
    dataset = own(things.folder.parent)
    reports: list[list[Step]] = [[], []]
    for number in range(2):
        finish(loading.load(dataset, trial(dataset, "square")), reports[number].append)
    assert set(reports[0]) == {(0, 8, ""), (8, 8, "")}
    assert reports[1] == []
    assert set(decoded.values()) == {1}


def test_embedded_images_are_decoded_once_per_process_however_many_trials_load_them(small: Path) -> None:
    dataset = config.dataset("blobs")
    first = loading.embedded(dataset)
    (loading.EMBEDDED / "blobs.npz").unlink()
    assert np.shares_memory(first.pixels, loading.embedded(dataset).pixels)


@pytest.mark.parametrize("aspect", ASPECTS)
def test_bad_images_stop_a_run_unless_it_is_asked_to_go_on_without(things: Listing, aspect: str) -> None:
    (things.folder / "003.png").write_text("not an image")
    dataset = own(things.folder.parent)
    with pytest.raises(UserError, match=r"1 of 8 images cannot be read, e\.g\. class 1/003\.png; .*--skip-bad-images"):
        load(dataset, aspect)
    without = load(dataset, aspect, skip_bad=True)
    assert without.skipped == ("class 1/003.png",)
    assert without.labels.tolist() == [0, 0, 1, 2, 2, 3, 3]
    assert len(without.paths) == len(without.offsets) == len(without.heights) == len(without.widths) == 7
    for number, path in enumerate(without.paths):
        np.testing.assert_array_equal(without.image(number), expected(Path(dataset.folder) / path, aspect))
    with pytest.raises(UserError, match="cannot be read"):  # what one trial may skip, the next one may not
        load(dataset, aspect)


@pytest.mark.parametrize("aspect", ASPECTS)
def test_a_dataset_without_one_good_image_says_so(things: Listing, aspect: str) -> None:
    for path in things.paths:
        (things.folder / path).write_text("not an image")
    with pytest.raises(UserError, match="8 of 8 images cannot be read"):
        load(own(things.folder.parent), aspect)


def test_a_worker_whose_files_changed_after_planning_says_so(tmp_path: Path) -> None:
    lay_cub(tmp_path / "here" / "cub")
    planned = listing.identify(unasserted("cub"), tmp_path / "here")
    image = tmp_path / "here" / "cub" / "images" / "001.Bird" / "Bird_0.jpg"
    image.write_text("longer than it was")
    changed = listing.identify(unasserted("cub"), tmp_path / "here").fingerprint
    with pytest.raises(UserError) as error:
        finish(loading.load(planned, trial(planned, "square"), str(tmp_path / "here")))
    said = str(error.value)
    assert said.startswith(f"cub: the files under {tmp_path / 'here' / 'cub'} are not those the run was planned with")
    assert f"(fingerprint {changed}, planned {planned.fingerprint})" in said


def test_a_worker_finds_its_own_copy_by_its_own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for node in ("driver", "worker"):
        lay_cub(tmp_path / node / "cub")
    planned = listing.identify(unasserted("cub"), tmp_path / "driver")
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path / "worker"))
    assert loading.planned_listing(planned, str(tmp_path / "driver")).folder == tmp_path / "driver" / "cub"
    assert loading.planned_listing(planned, str(tmp_path / "gone")).folder == tmp_path / "worker" / "cub"
    monkeypatch.delenv("HARNESS_DATA")
    with pytest.raises(UserError, match=f"cub: not found; searched {tmp_path / 'gone'}"):
        loading.planned_listing(planned, str(tmp_path / "gone"))
