"""What the network sees of an image is what torchvision.transforms.v2 makes of it, for the same parameters."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from harness import config, plan
from harness.data import transforms
from harness.data.folds import Images
from harness.spec import Experiment, Trial

SQUARE = ((8, 8),) * 6  # height, width
KEPT = ((8, 8), (8, 9), (13, 8), (8, 21), (17, 8), (8, 12))
LARGE = ((256, 256), (256, 341), (384, 256), (257, 256))


def trial(resize: int = 8, crop: int = 8, crop_scale: float = 1.0) -> Trial:
    settings = {"resize": resize, "crop": crop, "crop_scale": crop_scale}
    experiment = Experiment(
        config.dataset("emoji"), config.protocol("quick"), (config.loss("triplet"),), settings=settings
    )
    return plan.final(experiment, {})[0]


def stored(sizes: Sequence[tuple[int, int]]) -> Images:
    """Images as a cache has them, one after the other. A pixel tells its row and its column (modulo 256, like all in a
    byte) in red and green; blue is noise."""
    rng = np.random.default_rng(0)
    parts = []
    for height, width in sizes:
        rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
        parts.append(np.stack([rows, columns, rng.integers(0, 256, (height, width))], axis=2).astype(np.uint8).ravel())
    heights, widths = np.array(sizes).T
    return Images(
        pixels=np.concatenate(parts),
        offsets=np.concatenate([[0], (3 * heights * widths).cumsum()[:-1]]),
        heights=heights,
        widths=widths,
        labels=torch.arange(len(sizes)),
        classes=tuple(map(str, range(len(sizes)))),
        train_classes=1,
    )


def first(images: Images, number: int) -> Tensor:
    """The whole image as torchvision takes it, (3, h, w)."""
    return images.image(number).permute(2, 0, 1)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def everything(images: Images) -> Tensor:
    return torch.arange(len(images.labels))


# --- the centre crop ---


@pytest.mark.parametrize(
    ("sizes", "crop"),
    [(sizes, crop) for sizes in (SQUARE, KEPT) for crop in (1, 3, 4, 5, 7, 8)]
    + [(LARGE[:1], crop) for crop in (224, 227, 255, 256)]
    + [(LARGE, crop) for crop in (224, 227, 255, 256)],
)
def test_the_centre_crop_is_torchvisions_odd_differences_too(sizes: tuple[tuple[int, int], ...], crop: int) -> None:
    images = stored(sizes)
    batch = transforms.plain(images, everything(images), trial(sizes[0][0], crop))
    for number in range(len(sizes)):
        assert torch.equal(batch[number], tv.center_crop(first(images, number), [crop, crop]))


def test_plain_takes_the_images_that_are_asked_for_in_that_order() -> None:
    images = stored(KEPT)
    which = torch.tensor([4, 0, 4, 2])
    batch = transforms.plain(images, which, trial(8, 5))
    alone = [transforms.plain(images, number[None], trial(8, 5)) for number in which]
    assert torch.equal(batch, torch.cat(alone))


@pytest.mark.parametrize(("resize", "crop"), [(32, 24), (32, 27), (64, 64), (64, 57)])
def test_images_stored_at_another_size_get_torchvisions_resize_and_centre_crop(resize: int, crop: int) -> None:
    images = stored(((40, 40),) * 3)
    pixels = torch.from_numpy(images.pixels).view(3, 40, 40, 3)
    expected = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Resize((resize, resize)), v2.CenterCrop(crop)])
    batch = transforms.plain(images, everything(images), trial(resize, crop))
    torch.testing.assert_close(batch, expected(pixels.permute(0, 3, 1, 2)))


# --- random crop and flip ---


def seen(batch: Tensor, number: int) -> tuple[int, int, bool]:
    """Top, left and whether it is mirrored, from what the pixels tell."""
    window = batch[number].long()
    mirrored = bool(window[1, 0, 0] > window[1, 0, -1])
    return int(window[0, 0, 0]), int(window[1, 0, -1 if mirrored else 0]), mirrored


@pytest.mark.parametrize(
    ("sizes", "crop"),
    [(SQUARE, 5), (SQUARE, 3), (SQUARE, 8), (KEPT, 5), (KEPT, 3), (KEPT, 8), (((256, 256),) * 4, 227)],
)
def test_a_random_crop_is_torchvisions_crop_and_flip(sizes: tuple[tuple[int, int], ...], crop: int) -> None:
    images = stored(sizes)
    which = everything(images).repeat(8)
    batch = transforms.augmented(images, which, trial(sizes[0][0], crop), "crop", seeded(0))
    flips = set()
    for row, number in enumerate(which.tolist()):
        top, left, mirrored = seen(batch, row)
        expected = tv.crop(first(images, number), top, left, crop, crop)
        assert torch.equal(batch[row], tv.horizontal_flip(expected) if mirrored else expected)
        flips.add(mirrored)
    assert flips == {True, False}


def test_a_window_is_the_one_that_is_named_up_to_the_last_pixel_of_the_file() -> None:
    images = stored(KEPT)
    which, top, left = torch.tensor([5, 0, 3, 5]), torch.tensor([3, 0, 3, 0]), torch.tensor([7, 3, 16, 0])
    batch = images.crop(which, 5, top, left)
    for row, (number, *corner) in enumerate(zip(which.tolist(), top.tolist(), left.tolist(), strict=True)):
        assert torch.equal(batch[row].permute(2, 0, 1), tv.crop(first(images, number), *corner, 5, 5))


@pytest.mark.parametrize("size", [(8, 8), (8, 11), (10, 8)])
def test_every_position_comes_up_equally_often_the_last_too_and_half_are_mirrored(size: tuple[int, int]) -> None:
    images = stored((size, (8, 30)))  # one of another size, so that they are not taken for squares
    count = 4000
    batch = transforms.augmented(images, torch.zeros(count).long(), trial(8, 5), "crop", seeded(0))
    positions = Counter(seen(batch, row) for row in range(count))
    possible = [(t, le, m) for t in range(size[0] - 4) for le in range(size[1] - 4) for m in (False, True)]
    assert set(positions) == set(possible)
    expected = count / len(possible)
    assert all(abs(often - expected) < 5 * math.sqrt(expected) for often in positions.values())
    mirrored = sum(often for (_, _, flipped), often in positions.items() if flipped)
    assert abs(mirrored - count / 2) < 2 * math.sqrt(count)


def test_crops_of_images_stored_at_another_size_are_windows_of_the_resized_image() -> None:
    images = stored(((6, 6),) * 2)
    which = everything(images).repeat(20)
    batch = transforms.augmented(images, which, trial(9, 7), "crop", seeded(0))
    resize = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Resize((9, 9))])
    corners = Counter()
    for row, number in enumerate(which.tolist()):
        whole = resize(first(images, number)[None])[0]
        for top, left in ((top, left) for top in range(3) for left in range(3)):
            window = whole[:, top : top + 7, left : left + 7]
            corners[top, left] += any(torch.allclose(batch[row], look) for look in (window, window.flip(2)))
    assert corners.total() == len(which)
    assert len(corners) == 9
    assert min(corners.values()) > 0


# --- resized crops ---


@pytest.mark.parametrize(("sizes", "crop"), [(LARGE[:1] * 4, 227), (LARGE, 224), (LARGE, 96), (KEPT, 8), (SQUARE, 5)])
def test_a_resized_crop_is_torchvisions(sizes: tuple[tuple[int, int], ...], crop: int) -> None:
    images = stored(sizes)
    a_trial = trial(sizes[0][0], crop, crop_scale=0.25)
    which = everything(images)
    boxes = transforms.draw_boxes(*map(torch.from_numpy, images.sides), 0.25, seeded(3)).tolist()
    batch = transforms.augmented(images, which, a_trial, "resized-crop", seeded(3))
    theirs = v2.RandomResizedCrop(crop, scale=(0.25, 1.0))
    flips = set()
    for number, box in enumerate(boxes):
        theirs.make_params = lambda _, box=box: dict(zip(("top", "left", "height", "width"), box, strict=True))
        cut = theirs(first(images, number))
        assert torch.equal(cut, tv.resized_crop(first(images, number), *box, size=[crop, crop], antialias=True))
        looks = [torch.equal(batch[number], look) for look in (cut, tv.horizontal_flip(cut))]
        assert any(looks)
        flips.add(looks[0])
    assert flips == {True, False}


def theirs_drawn(height: int, width: int, scale: float, count: int) -> np.ndarray:
    """(count, 4): top, left, height, width as torchvision draws them."""
    picture = [torch.zeros(3, height, width, dtype=torch.uint8)]
    draw = v2.RandomResizedCrop(8, scale=(scale, 1.0))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return np.array(
            [[*map(draw.make_params(picture).get, ("top", "left", "height", "width"))] for _ in range(count)]
        )


def ours_drawn(height: int, width: int, scale: float, count: int) -> np.ndarray:
    sides = torch.full((count,), height), torch.full((count,), width)
    return transforms.draw_boxes(*sides, scale, seeded(0)).numpy()


@pytest.mark.parametrize(
    ("height", "width", "scale"), [(256, 256, 0.25), (256, 256, 0.08), (256, 341, 0.16), (512, 256, 0.4), (8, 8, 0.08)]
)
def test_boxes_are_distributed_as_torchvision_draws_them(height: int, width: int, scale: float) -> None:
    theirs, ours = (draw(height, width, scale, 4000) for draw in (theirs_drawn, ours_drawn))

    def values(boxes: np.ndarray) -> list[np.ndarray]:
        """What is compared: the box, its area and ratio, where it lies in the room there is, both places at once."""
        top, left, h, w = boxes.T
        down, across = top / np.maximum(height - h, 1), left / np.maximum(width - w, 1)
        return [top, left, h, w, h * w, w / h, down, across, down - across]

    for their, our in zip(values(theirs), values(ours), strict=True):
        # two samples of 4,000 of one distribution differ by more than this once in a thousand times
        assert ks_2samp(their, our).statistic < 0.044
    top, left, h, w = ours.T
    assert (h > 0).all() and (w > 0).all() and (top >= 0).all() and (left >= 0).all()  # noqa: PT018
    assert (top + h <= height).all()
    assert (left + w <= width).all()
    assert (top + h == height).any()
    assert (left + w == width).any()


def test_where_no_box_fits_it_is_torchvisions_largest_centred_one() -> None:
    sizes = [(100, 1000), (1000, 100), (101, 1003), (1003, 101), (7, 100), (100, 7), (1, 50), (50, 1), (33, 256)]
    for height, width in sizes:  # whatever is drawn, it is larger than the short side
        (theirs,) = np.unique(theirs_drawn(height, width, 0.9, 20), axis=0)
        (ours,) = np.unique(ours_drawn(height, width, 0.9, 20), axis=0)
        np.testing.assert_array_equal(ours, theirs)
    heights, widths = torch.tensor(sizes).T
    together = transforms.draw_boxes(heights, widths, 0.9, seeded(0)).numpy()
    alone = [ours_drawn(height, width, 0.9, 1)[0] for height, width in sizes]
    np.testing.assert_array_equal(together, alone)


def test_where_hardly_a_box_fits_it_is_as_often_the_whole_image_as_with_torchvision() -> None:
    theirs, ours = (
        (draw(300, 400, 1.0, 2000) == (0, 0, 300, 400)).all(axis=1).mean() for draw in (theirs_drawn, ours_drawn)
    )
    assert 0.8 < theirs < 0.99
    assert ours == pytest.approx(theirs, abs=0.03)


# --- whatever the augmentation ---


@pytest.mark.parametrize("augment", ["none", "crop", "resized-crop"])
@pytest.mark.parametrize("sizes", [SQUARE, KEPT])
def test_batches_are_bytes_with_channels_last_in_memory(augment: str, sizes: tuple[tuple[int, int], ...]) -> None:
    images = stored(sizes)
    batch = transforms.augmented(images, everything(images), trial(8, 5, 0.5), augment, seeded(0))
    assert batch.shape == (6, 3, 5, 5)
    assert batch.dtype == torch.uint8
    assert batch.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("augment", ["crop", "resized-crop", "drawings"])
def test_draws_repeat_with_their_generator_and_only_with_it(augment: str) -> None:
    images = stored(SQUARE)
    which = everything(images).repeat(4)

    def once(seed: int) -> Tensor:
        return transforms.augmented(images, which, trial(8, 5, 0.25), augment, seeded(seed))

    looks = once(0)
    torch.manual_seed(99)  # the global generator plays no part
    assert torch.equal(looks, once(0))
    assert not torch.equal(looks, once(1))
    assert len(looks[::6].flatten(1).unique(dim=0)) > 1  # one image, four looks


@pytest.mark.parametrize("augment", ["none", "crop", "resized-crop", "drawings"])
def test_the_stored_pixels_stay_as_they_are(augment: str) -> None:
    images = stored(SQUARE)
    before = images.pixels.copy()
    batch = transforms.augmented(images, everything(images), trial(8, 8, 0.25), augment, seeded(0))
    batch.zero_()
    np.testing.assert_array_equal(images.pixels, before)


def test_without_augmentation_a_batch_is_what_is_evaluated() -> None:
    images = stored(KEPT)
    batch = transforms.augmented(images, everything(images), trial(8, 5), "none", seeded(0))
    assert torch.equal(batch, transforms.plain(images, everything(images), trial(8, 5)))


def test_bytes_become_torchvisions_floats_and_floats_stay() -> None:
    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    floats = transforms.to_float(levels)
    torch.testing.assert_close(floats, tv.to_dtype(levels, torch.float32, scale=True))
    assert (floats.min(), floats.max()) == (0, 1)
    assert torch.equal(transforms.to_float(floats), floats)


# --- drawings ---


def test_drawings_stay_images_and_differ_from_each_other() -> None:
    image = torch.rand(1, 3, 32, 32, generator=seeded(0)).expand(16, -1, -1, -1)
    looks = transforms.drawings(image, 64, 64, seeded(0))
    assert looks.shape == (16, 3, 64, 64)
    assert looks.min() >= 0
    assert looks.max() <= 1
    assert len(looks.flatten(1).unique(dim=0)) == 16


def test_drawings_keep_paper_white_or_invert_it_to_black() -> None:
    looks = transforms.drawings(torch.ones(200, 3, 8, 8), 8, 8, seeded(0)).flatten(1)
    assert ((looks < 1e-6) | (looks > 1 - 1e-6)).all()
    inverted = (looks.mean(dim=1) < 0.5).float().mean()
    assert 0.02 < inverted < 0.25
