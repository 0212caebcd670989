"""From stored pixels to what the network sees: whole batches at once, random draws from a generator.

The cache holds images that are resized already, so a crop, a flip and the centre crop are one gather each. Only
embedded images, which are stored smaller than they are used, are resized here.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as v2

from harness.data.folds import Images
from harness.spec import Trial

RATIOS = (3 / 4, 4 / 3)  # of a resized crop's sides
TRIES = 10  # draws of a resized crop; if none fits, the largest that fits is taken


def plain(images: Images, which: Tensor, trial: Trial) -> Tensor:
    """The centre crop, on which every image is evaluated. (n, 3, crop, crop): uint8, or float in 0..1 if it was
    resized."""
    if images.square in (None, trial.resize):
        return channels_first(images.centre(which, trial.crop))
    edge = round((trial.resize - trial.crop) / 2)
    return enlarged(images, which, trial)[:, :, edge : edge + trial.crop, edge : edge + trial.crop]


def augmented(images: Images, which: Tensor, trial: Trial, augment: str, generator: torch.Generator) -> Tensor:
    """The batch one step trains on; `augment` is the trial's setting of that name."""
    if augment == "none":
        return plain(images, which, trial)
    if augment == "drawings":
        side = images.square
        assert side is not None
        return drawings(to_float(channels_first(images.centre(which, side))), trial.resize, trial.crop, generator)
    pick = cropped if augment == "crop" else resized_crops
    return channels_first(
        flip(pick(images, which, trial, generator), torch.rand(len(which), generator=generator) < 0.5)
    )


def flip(pixels: Tensor, chosen: Tensor) -> Tensor:
    """Mirror the chosen (n,) of the images (n, h, w, 3), in place."""
    for row in chosen.nonzero().flatten().tolist():  # eight times as fast as torch.where over the whole batch
        pixels[row] = pixels[row].flip(1)
    return pixels


def channels_first(pixels: Tensor) -> Tensor:
    """(n, h, w, 3) -> (n, 3, h, w), a view: in memory, channels stay last."""
    return pixels.permute(0, 3, 1, 2)


def to_float(batch: Tensor) -> Tensor:
    """uint8 -> float in 0..1; floats stay."""
    return batch.float().div_(255) if batch.dtype == torch.uint8 else batch


def enlarged(images: Images, which: Tensor, trial: Trial) -> Tensor:
    """Embedded images at the trial's size, (n, 3, resize, resize), float in 0..1."""
    assert images.square is not None
    return resized(channels_first(images.centre(which, images.square)), trial.resize)


def resized(batch: Tensor, side: int) -> Tensor:
    """(n, 3, side, side), float in 0..1."""
    return F.interpolate(to_float(batch), size=(side, side), mode="bilinear", antialias=True)


def cropped(images: Images, which: Tensor, trial: Trial, generator: torch.Generator) -> Tensor:
    """A random crop x crop window of each image. (n, crop, crop, 3)."""

    def anywhere(sides: np.ndarray | int) -> Tensor:
        return (torch.rand(len(which), generator=generator) * torch.as_tensor(sides - trial.crop + 1)).long()

    if images.square in (None, trial.resize):
        top, left = (anywhere(side[which.numpy()]) for side in images.sides)
        return images.crop(which, trial.crop, top, left)
    rows, columns = (anywhere(trial.resize)[:, None] + torch.arange(trial.crop) for _ in images.sides)
    whole = enlarged(images, which, trial)
    return whole[torch.arange(len(which))[:, None, None], :, rows[:, :, None], columns[:, None, :]]


def resized_crops(images: Images, which: Tensor, trial: Trial, generator: torch.Generator) -> Tensor:
    """torchvision's RandomResizedCrop of the cached image: an area of crop_scale to 1 of it, resized to crop x crop."""
    heights, widths = (torch.from_numpy(side[which.numpy()]) for side in images.sides)
    boxes = draw_boxes(heights, widths, trial.crop_scale, generator).tolist()
    size = [trial.crop, trial.crop]
    batch = torch.empty(len(boxes), *size, 3, dtype=torch.uint8)
    for row, (number, (top, left, height, width)) in enumerate(zip(which.tolist(), boxes, strict=True)):
        # v2.resized_crop in two steps: resizing a contiguous window takes half the time
        window = images.image(number)[top : top + height, left : left + width].contiguous().permute(2, 0, 1)
        cut = v2.resize(window, size, interpolation=InterpolationMode.BILINEAR, antialias=True)
        batch[row] = cut.permute(1, 2, 0)
    return batch


def draw_boxes(heights: Tensor, widths: Tensor, scale: float, generator: torch.Generator) -> Tensor:
    """Top, left, height, width of a resized crop of each image, (n, 4), drawn as torchvision draws them: area and
    logarithm of the ratio uniform, the first of TRIES that fits, else the largest centred one of an allowed ratio."""
    n = len(heights)
    area = (heights * widths)[:, None] * (scale + (1 - scale) * torch.rand(n, TRIES, generator=generator))
    low, high = (math.log(ratio) for ratio in RATIOS)
    ratio = torch.exp(low + (high - low) * torch.rand(n, TRIES, generator=generator))
    w, h = (area * ratio).sqrt().round().long(), (area / ratio).sqrt().round().long()
    fits = (w > 0) & (h > 0) & (w <= widths[:, None]) & (h <= heights[:, None])
    first = fits.int().argmax(dim=1, keepdim=True)
    w, h = w.gather(1, first).squeeze(1), h.gather(1, first).squeeze(1)
    corner = torch.rand(n, 2, generator=generator)
    top, left = (corner[:, 0] * (heights - h + 1)).long(), (corner[:, 1] * (widths - w + 1)).long()
    # if none fits: the whole image, cut to the nearest allowed ratio
    w_most = torch.minimum(widths, (heights * RATIOS[1]).round().long())
    h_most = torch.minimum(heights, (widths / RATIOS[0]).round().long())
    whole = torch.stack([(heights - h_most) // 2, (widths - w_most) // 2, h_most, w_most], dim=1)
    return torch.where(fits.any(dim=1, keepdim=True), torch.stack([top, left, h, w], dim=1), whole)


def drawings(images: Tensor, resize: int, crop: int, generator: torch.Generator) -> Tensor:
    """Drawings as another artist might have made them: rotated, moved and scaled a little, recoloured, grey, inverted.

    One resampling does the geometry and the resizing. Colours change on the ink (1 - image), so paper stays white.
    """
    n = len(images)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(n, *shape, generator=generator)

    angle = uniform(-math.pi / 12, math.pi / 12)
    zoom = uniform(0.8, 1.2) * crop / resize
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], dim=1).view(n, 2, 2)
    theta = torch.cat([turn * zoom.view(n, 1, 1), uniform(-0.15, 0.15, 2, 1)], dim=2)
    grid = F.affine_grid(theta, [n, 3, crop, crop], align_corners=False)
    images = F.grid_sample(images, grid, padding_mode="border", align_corners=False)

    ink = (1 - images) * uniform(0.5, 1.5, 3, 1, 1)
    grey = ink.mean(dim=1, keepdim=True).expand_as(ink)
    ink = torch.where(uniform(0, 1, 1, 1, 1) < 0.3, grey, ink).clamp(0, 1)
    inverted = uniform(0, 1, 1, 1, 1) < 0.1
    return torch.where(inverted, ink, 1 - ink)
