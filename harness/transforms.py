"""From stored pixels to what the network sees: whole batches at once, random draws from a generator."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def to_float(pixels: Tensor) -> Tensor:
    """(n, h, w, 3) uint8 -> (n, 3, h, w) float in 0..1. The memory stays as it is: channels last."""
    return pixels.permute(0, 3, 1, 2).float().div_(255)


def plain(pixels: Tensor, resize: int, crop: int) -> Tensor:
    """Resized to resize x resize, then the centre crop: how every image is evaluated."""
    images = F.interpolate(to_float(pixels), size=(resize, resize), mode="bilinear", antialias=True)
    edge = (resize - crop) // 2
    return images[:, :, edge : edge + crop, edge : edge + crop]


def drawings(pixels: Tensor, resize: int, crop: int, generator: torch.Generator) -> Tensor:
    """What another artist might have drawn: turned, moved and scaled a little, other colours, grey, inverted.

    One resampling does the geometry and the resizing. Colours change on the ink (1 - image), so paper stays white.
    """
    n = len(pixels)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(n, *shape, generator=generator)

    angle = uniform(-math.pi / 12, math.pi / 12)
    zoom = uniform(0.8, 1.2) * crop / resize
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], dim=1).view(n, 2, 2)
    theta = torch.cat([turn * zoom.view(n, 1, 1), uniform(-0.15, 0.15, 2, 1)], dim=2)
    grid = F.affine_grid(theta, [n, 3, crop, crop], align_corners=False)
    images = F.grid_sample(to_float(pixels), grid, padding_mode="border", align_corners=False)

    ink = (1 - images) * uniform(0.5, 1.5, 3, 1, 1)
    grey = ink.mean(dim=1, keepdim=True).expand_as(ink)
    ink = torch.where(uniform(0, 1, 1, 1, 1) < 0.3, grey, ink).clamp(0, 1)
    inverted = uniform(0, 1, 1, 1, 1) < 0.1
    return torch.where(inverted, ink, 1 - ink)
