"""The embedded dataset, the folds, and what a damaged file says."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness import config, data, transforms
from harness.spec import UserError

FOLDS = ("val0", "val1", "val2", "val3", "test")


@pytest.fixture(scope="module")
def emoji() -> data.Images:
    return data.load(config.dataset("emoji"))


def classes_of(images: data.Images, indices: torch.Tensor) -> set[str]:
    return {images.classes[label] for label in images.labels[indices].tolist()}


def test_emoji_are_1036_classes_of_eight_drawings(emoji: data.Images) -> None:
    assert emoji.pixels.shape == (8288, 32, 32, 3)
    assert emoji.pixels.dtype == torch.uint8
    assert torch.equal(emoji.labels.bincount(), torch.full((1036,), 8))
    assert len(set(emoji.classes)) == 1036


def test_no_two_emoji_share_a_drawing(emoji: data.Images) -> None:
    by_set = emoji.pixels.reshape(1036, 8, -1)
    assert all(len(by_set[:, which].unique(dim=0)) == 1036 for which in range(8))


@pytest.mark.parametrize("name", FOLDS)
def test_no_class_is_on_both_sides_of_a_fold(emoji: data.Images, name: str) -> None:
    fold = data.fold(emoji, config.dataset("emoji"), name)
    assert not classes_of(emoji, fold.train) & classes_of(emoji, fold.test)
    for indices, labels in ((fold.train, fold.train_labels), (fold.test, fold.test_labels)):
        assert set(labels.tolist()) == set(range(len(classes_of(emoji, indices))))
        assert len(indices) == len(labels) == 8 * len(set(labels.tolist()))


def test_validation_folds_part_the_training_half_and_never_touch_the_test_half(emoji: data.Images) -> None:
    dataset = config.dataset("emoji")
    final = data.fold(emoji, dataset, "test")
    training, test = classes_of(emoji, final.train), classes_of(emoji, final.test)
    held_out = []
    for name in FOLDS[:4]:
        fold = data.fold(emoji, dataset, name)
        assert classes_of(emoji, fold.train) | classes_of(emoji, fold.test) == training
        assert not (classes_of(emoji, fold.train) | classes_of(emoji, fold.test)) & test
        held_out.append(classes_of(emoji, fold.test))
    assert set.union(*held_out) == training
    assert sum(map(len, held_out)) == len(training)


def test_the_split_is_a_shuffle_not_the_alphabet(emoji: data.Images) -> None:
    training = sorted(classes_of(emoji, data.fold(emoji, config.dataset("emoji"), "test").train))
    assert training[0] < "b"
    assert training[-1] > "w"


def test_a_file_with_another_checksum_is_refused_with_its_name(small: Path) -> None:
    dataset = config.dataset("blobs")
    file = data.EMBEDDED / "blobs.npz"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match=r"blobs: .*blobs\.npz has sha256 .* expected"):
        data.load(dataset)


def test_wrong_counts_are_told_with_what_was_expected_and_found(small: Path) -> None:
    with pytest.raises(UserError, match="blobs: expected 9 test classes, found 8"):
        data.load(replace(config.dataset("blobs"), test_classes=9))
    with pytest.raises(UserError, match="blobs: expected 71 training images, found 72"):
        data.load(replace(config.dataset("blobs"), train_images=71))


def test_a_missing_file_says_so(small: Path) -> None:
    (data.EMBEDDED / "blobs.npz").unlink()
    with pytest.raises(UserError, match="is missing"):
        data.load(config.dataset("blobs"))


# --- transforms ---


def test_plain_is_torchvisions_resize_and_centre_crop() -> None:
    from torchvision.transforms import v2

    pixels = torch.randint(256, (3, 40, 40, 3), dtype=torch.uint8)
    expected = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Resize((32, 32)), v2.CenterCrop(24)])
    torch.testing.assert_close(transforms.plain(pixels, 32, 24), expected(pixels.permute(0, 3, 1, 2)))


def test_drawings_stay_images_differ_from_each_other_and_repeat_with_their_generator() -> None:
    pixels = torch.randint(256, (1, 32, 32, 3), dtype=torch.uint8).expand(16, -1, -1, -1)

    def once(seed: int) -> torch.Tensor:
        return transforms.drawings(pixels, 64, 64, torch.Generator().manual_seed(seed))

    looks = once(0)
    assert looks.shape == (16, 3, 64, 64)
    assert looks.min() >= 0
    assert looks.max() <= 1
    assert len(looks.flatten(1).unique(dim=0)) == 16
    assert torch.equal(looks, once(0))
    assert not torch.equal(looks, once(1))


def test_drawings_keep_paper_white_or_invert_it_to_black() -> None:
    white = torch.full((200, 8, 8, 3), 255, dtype=torch.uint8)
    looks = transforms.drawings(white, 8, 8, torch.Generator().manual_seed(0)).flatten(1)
    assert ((looks < 1e-6) | (looks > 1 - 1e-6)).all()
    inverted = (looks.mean(dim=1) < 0.5).float().mean()
    assert 0.02 < inverted < 0.25
