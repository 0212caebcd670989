"""One image file to pixels: what is not an image, is damaged or absurdly large is refused."""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

# No format that starts another program (EPS) or reads from elsewhere. MPO, of some cameras, comes with JPEG.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
BLOCK = 256  # images between two reports
MOST_PIXELS = 100_000_000  # a decompression bomb unpacks to more
LONGEST = 100  # times its short side an image may be long: resized by its short side it could be a bomb too
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # the limits here are stricter


class BadImageError(Exception):
    """Why a file cannot be used as an image, in a few words."""


def read(file: Path, resize: int | None = None, aspect: str = "square") -> np.ndarray:
    """(h, w, 3) uint8, transparency on white; resized to a square or by its short side as torchvision resizes PIL
    images: bilinear, with antialiasing."""
    try:
        with open_checked(file) as image:
            image.load()  # a truncated file is found out here
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
    """Height and width, from the file's head alone."""
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
    try:
        image = Image.open(file, formats=FORMATS)
    except FileNotFoundError:
        raise BadImageError("the file is missing") from None
    except UnidentifiedImageError:
        empty = file.stat().st_size == 0
        raise BadImageError("the file is empty" if empty else "it is not an image (or of no format we read)") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadImageError(reason(error)) from None
    if image.width * image.height > MOST_PIXELS:
        image.close()
        raise BadImageError(f"{image.width} x {image.height} pixels: more than {MOST_PIXELS:,} are refused")
    if max(image.size) > LONGEST * min(image.size):
        image.close()
        raise BadImageError(f"{image.width} x {image.height} pixels: more than {LONGEST} times as long as wide")
    return image


def flatten(image: Image.Image) -> Image.Image:
    """RGB, 8 bits each; what shines through is white."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        # Pillow would clip 16 bits to 255: all but the darkest would be white
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise BadImageError("its pixels have 32 bits and no known white: allowed are 8 or 16 bits")
    if not image.has_transparency_data:
        return image.convert("RGB")
    rgba = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")


def reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def workers() -> ThreadPoolExecutor:
    """A thread for each core this process may use: decoding leaves Python's lock alone."""
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None)


def broken(
    folder: Path, paths: Sequence[str], report: Callable[[int, int], None] = lambda done, total: None
) -> Iterator[tuple[str, str]]:
    """The images that cannot be read, and why: every one is decoded, many at once."""

    def why(path: str) -> str:
        try:
            read(folder / path)
        except BadImageError as error:
            return str(error)
        return ""

    with workers() as pool:
        for begin in range(0, len(paths), BLOCK):
            some = paths[begin : begin + BLOCK]
            for path, reason in zip(some, pool.map(why, some), strict=True):
                if reason:
                    yield path, reason
            report(begin + len(some), len(paths))
