"""The embedded dataset, the folds, and what a damaged file says."""

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from harness import config
from harness.data import folds, loading
from harness.spec import UserError

FOLDS = ("val0", "val1", "val2", "val3", "test")


@pytest.fixture(scope="module")
def emoji() -> folds.Images:
    return loading.embedded(config.dataset("emoji"))


def classes_of(images: folds.Images, indices: torch.Tensor) -> set[str]:
    return {images.classes[label] for label in images.labels[indices].tolist()}


def test_emoji_are_1036_classes_of_eight_drawings(emoji: folds.Images) -> None:
    assert emoji.pixels.shape == (8288 * 32 * 32 * 3,)
    assert emoji.pixels.dtype == np.uint8
    assert emoji.square == 32
    assert torch.equal(emoji.labels.bincount(), torch.full((1036,), 8))
    assert len(set(emoji.classes)) == 1036


def test_no_two_emoji_share_a_drawing(emoji: folds.Images) -> None:
    by_set = torch.from_numpy(emoji.pixels).reshape(1036, 8, -1)
    assert all(len(by_set[:, which].unique(dim=0)) == 1036 for which in range(8))


@pytest.mark.parametrize("name", FOLDS)
def test_no_class_is_on_both_sides_of_a_fold(emoji: folds.Images, name: str) -> None:
    fold = folds.fold(emoji, config.dataset("emoji"), name)
    assert not classes_of(emoji, fold.train) & classes_of(emoji, fold.test)
    for indices, labels in ((fold.train, fold.train_labels), (fold.test, fold.test_labels)):
        assert set(labels.tolist()) == set(range(len(classes_of(emoji, indices))))
        assert len(indices) == len(labels) == 8 * len(set(labels.tolist()))


def test_validation_folds_part_the_training_half_and_never_touch_the_test_half(emoji: folds.Images) -> None:
    dataset = config.dataset("emoji")
    final = folds.fold(emoji, dataset, "test")
    training, test = classes_of(emoji, final.train), classes_of(emoji, final.test)
    held_out = []
    for name in FOLDS[:4]:
        fold = folds.fold(emoji, dataset, name)
        assert classes_of(emoji, fold.train) | classes_of(emoji, fold.test) == training
        assert not (classes_of(emoji, fold.train) | classes_of(emoji, fold.test)) & test
        held_out.append(classes_of(emoji, fold.test))
    assert set.union(*held_out) == training
    assert sum(map(len, held_out)) == len(training)


def by_hash(names: Iterable[str], seed: str) -> list[str]:
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())


def test_which_emoji_train_test_and_validate_never_changes(emoji: folds.Images) -> None:
    dataset = config.dataset("emoji")
    order = by_hash(emoji.classes, "0")
    assert classes_of(emoji, folds.fold(emoji, dataset, "test").train) == set(order[:518])
    shuffled = by_hash(order[:518], "0:val")
    for number in range(4):
        held_out = shuffled[number::4]
        fold = folds.fold(emoji, dataset, f"val{number}")
        assert [held_out[label] for label in fold.test_labels.unique()] == held_out
        labels = emoji.labels[fold.test]
        assert [emoji.classes[label] for label in labels.tolist()] == [held_out[x] for x in fold.test_labels.tolist()]
    assert (order[0], shuffled[0]) == ("black-large-square", "telephone-receiver")


def test_the_split_is_a_shuffle_not_the_alphabet(emoji: folds.Images) -> None:
    training = sorted(classes_of(emoji, folds.fold(emoji, config.dataset("emoji"), "test").train))
    assert training[0] < "b"
    assert training[-1] > "w"


def test_a_file_with_another_checksum_is_refused_with_its_name(small: Path) -> None:
    dataset = config.dataset("blobs")
    file = loading.EMBEDDED / "blobs.npz"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match=r"blobs: .*blobs\.npz has sha256 .* expected"):
        loading.embedded(dataset)


def test_wrong_counts_are_told_with_what_was_expected_and_found(small: Path) -> None:
    with pytest.raises(UserError, match="blobs: expected 9 test classes, found 8"):
        loading.embedded(replace(config.dataset("blobs"), test_classes=9))
    with pytest.raises(UserError, match="blobs: expected 71 training images, found 72"):
        loading.embedded(replace(config.dataset("blobs"), train_images=71))


def test_a_missing_file_says_so(small: Path) -> None:
    (loading.EMBEDDED / "blobs.npz").unlink()
    with pytest.raises(UserError, match="is missing"):
        loading.embedded(config.dataset("blobs"))


@pytest.mark.parametrize(
    ("classes", "complaint"),
    [
        (3, "blobs: fold val0 has 1 held-out class; it needs at least 2; search needs more training classes"),
        (0, "blobs: fold val0 has 0 training classes; it needs at least 2; search needs more training classes"),
    ],
)
def test_too_few_classes_for_a_fold_are_counted_in_words(classes: int, complaint: str) -> None:
    sizes = {str(number): 2 for number in range(classes)}
    with pytest.raises(UserError) as error:
        folds.split(sizes, classes, replace(config.dataset("emoji"), name="blobs"), "val0")
    assert str(error.value) == complaint
