"""One image file to pixels; files that are damaged, absurdly large or not images are refused."""

import contextlib
import os
import stat
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from harness.data import stamps

# No format that starts another program (EPS) or reads other files. MPO, which some cameras write, is part of JPEG.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
BLOCK = 256  # images between two reports
MOST_PIXELS = 100_000_000  # a decompression bomb has more
LONGEST = 100  # longest allowed side, in short sides: resized by its short side, a longer image could be a bomb too
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # the limits here are stricter


class BadImageError(Exception):
    """Why a file cannot be used as an image, in a few words."""


def read(file: Path, resize: int | None = None, aspect: str = "square") -> np.ndarray:
    """(h, w, 3) uint8, transparency on white; resized to a square or by the short side as torchvision resizes PIL
    images: bilinear, with antialiasing."""
    try:
        with open_checked(file) as image:
            image.load()  # fails here if the file is truncated
            picture = flatten(image)
    except BadImageError:
        raise
    except (OSError, SyntaxError, ValueError) as error:
        raise BadImageError(reason(error)) from None
    if resize is not None:
        width, height = picture.size
        picture = picture.resize(resized(width, height, resize, aspect)[::-1], Image.Resampling.BILINEAR)
    return np.asarray(picture)


def size(file: Path) -> tuple[int, int]:
    """Height and width, from the file's header alone."""
    with open_checked(file) as image:
        return image.height, image.width


def resized(width: int, height: int, resize: int, aspect: str) -> tuple[int, int]:
    """Height and width after resizing; the long side is rounded down, as torchvision does."""
    if aspect == "square":
        return resize, resize
    short, long = min(width, height), max(width, height)
    other = int(resize * long / short)
    return (resize, other) if width >= height else (other, resize)


def open_checked(file: Path) -> Image.Image:
    with contextlib.suppress(OSError, ValueError):
        mode = file.stat().st_mode
        if not stat.S_ISREG(mode):  # to open a pipe would wait for somebody to write
            raise BadImageError(f"{stamps.kind(mode)}, not a file")
    try:
        image = Image.open(file, formats=FORMATS)
    except FileNotFoundError:
        raise BadImageError("the file is missing") from None
    except UnidentifiedImageError:
        empty = file.stat().st_size == 0
        raise BadImageError("the file is empty" if empty else "not an image, or of an unsupported format") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadImageError(reason(error)) from None
    if image.width * image.height > MOST_PIXELS:
        image.close()
        raise BadImageError(f"{image.width} x {image.height} pixels: at most {MOST_PIXELS:,} are allowed")
    if max(image.size) > LONGEST * min(image.size):
        image.close()
        raise BadImageError(f"{image.width} x {image.height} pixels: one side is over {LONGEST} times the other")
    return image


def flatten(image: Image.Image) -> Image.Image:
    """RGB with 8 bits per channel; transparent pixels become white."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        # Pillow would clip 16 bits to 255: almost every pixel would be white
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise BadImageError("its pixels have 32 bits without a known white; must be 8 or 16 bits")
    if not image.has_transparency_data:
        return image.convert("RGB")
    rgba = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")


def reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def workers() -> ThreadPoolExecutor:
    """One thread per core that this process may use: decoding releases Python's lock."""
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None)


def broken(
    folder: Path, paths: Sequence[str], report: Callable[[int, int], None] = lambda done, total: None
) -> Iterator[tuple[str, str]]:
    """The images that cannot be read, each with the reason; all images are decoded, many at once."""

    def why(path: str) -> str:
        try:
            read(folder / path)
        except BadImageError as error:
            return str(error)
        return ""

    with workers() as pool:
        for begin in range(0, len(paths), BLOCK):
            block = paths[begin : begin + BLOCK]
            for path, problem in zip(block, pool.map(why, block), strict=True):
                if problem:
                    yield path, problem
            report(begin + len(block), len(paths))
