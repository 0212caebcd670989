"""One image file to pixels, in every mode files come in, and what is refused."""

import io
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from harness.data import images
from harness.data.images import BadImageError

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def noise(height: int, width: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(height * width).integers(0, 256, (height, width, channels), dtype=np.uint8)


def smooth(height: int, width: int) -> Image.Image:
    """A ramp: JPEG keeps it nearly."""
    rows, columns = np.mgrid[0:height, 0:width]
    ramp = np.stack([255 * rows / height, 255 * columns / width, 0 * rows + 90], axis=2)
    return Image.fromarray(ramp.astype(np.uint8))


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, depth: int, colour: int, rows: bytes, *extra: bytes) -> bytes:
    """A PNG from its parts: depth in bits, colour 0 grey, 2 RGB; rows start with a filter byte."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + b"".join([head, *extra, chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")])


def why(file: Path) -> str:
    with pytest.raises(BadImageError) as error:
        images.read(file)
    assert "\n" not in str(error.value)
    return str(error.value)


# --- modes ---


@pytest.mark.parametrize("ending", ["bmp", "gif", "png", "ppm", "tif", "webp"])
def test_a_format_that_loses_nothing_gives_its_pixels(tmp_path: Path, ending: str) -> None:
    pixels = noise(5, 7)
    if ending == "gif":
        pixels = np.array([[RED, GREEN, BLUE], [BLUE, WHITE, RED]], dtype=np.uint8)
    options = {"lossless": True} if ending == "webp" else {}
    Image.fromarray(pixels).save(tmp_path / f"a.{ending}", **options)
    pixels_read = images.read(tmp_path / f"a.{ending}")
    assert pixels_read.dtype == np.uint8
    assert np.array_equal(pixels_read, pixels)
    assert images.size(tmp_path / f"a.{ending}") == pixels.shape[:2]


@pytest.mark.parametrize("form", ["JPEG", "MPO"])
def test_a_photograph_is_read_nearly_as_it_was(tmp_path: Path, form: str) -> None:
    more = {"save_all": True, "append_images": [Image.new("RGB", (40, 30))]} if form == "MPO" else {}
    smooth(30, 40).save(tmp_path / "a.jpg", form, quality=95, **more)
    with Image.open(tmp_path / "a.jpg") as opened:
        assert opened.format == form
    error = images.read(tmp_path / "a.jpg").astype(int) - np.asarray(smooth(30, 40)).astype(int)
    assert np.abs(error).mean() < 3


def test_grey_is_repeated_in_three_channels(tmp_path: Path) -> None:
    grey = noise(4, 6, 1)[:, :, 0]
    Image.fromarray(grey).save(tmp_path / "a.png")
    assert np.array_equal(images.read(tmp_path / "a.png"), np.stack([grey] * 3, axis=2))
    Image.fromarray(grey > 127).save(tmp_path / "one_bit.png")
    assert np.array_equal(images.read(tmp_path / "one_bit.png")[:, :, 1], np.where(grey > 127, 255, 0))


def test_a_palette_with_a_transparent_colour_lies_on_white(tmp_path: Path) -> None:
    image = Image.fromarray(np.array([[0, 1], [2, 1]], dtype=np.uint8), "P")
    image.putpalette([*RED, *GREEN, *BLUE])
    for name, options in (("a.png", {"transparency": 1}), ("a.gif", {"transparency": 1})):
        image.save(tmp_path / name, **options)
        assert images.read(tmp_path / name).tolist() == [[[*RED], [*WHITE]], [[*BLUE], [*WHITE]]]
    image.save(tmp_path / "opaque.png")
    assert images.read(tmp_path / "opaque.png").tolist() == [[[*RED], [*GREEN]], [[*BLUE], [*GREEN]]]


def test_what_is_half_transparent_is_half_white(tmp_path: Path) -> None:
    pixels = np.array([[[200, 0, 100, 255], [200, 0, 100, 0], [200, 0, 100, 51]]], dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    # 51 of 255 is a fifth: 200 / 5 + 255 * 4 / 5 = 244, 0 + 204 = 204, 100 / 5 + 204 = 224
    assert images.read(tmp_path / "a.png").tolist() == [[[200, 0, 100], [255, 255, 255], [244, 204, 224]]]
    Image.fromarray(pixels[:, :, [0, 3]].copy(), "LA").save(tmp_path / "grey.png")
    assert images.read(tmp_path / "grey.png")[0, :, 0].tolist() == [200, 255, 244]


def test_cmyk_becomes_rgb(tmp_path: Path) -> None:
    inks = Image.new("CMYK", (8, 8), (255, 0, 255, 0))  # cyan and yellow: green
    for name in ("a.tif", "a.jpg"):
        inks.save(tmp_path / name)
        assert np.abs(images.read(tmp_path / name)[4, 4].astype(int) - GREEN).max() <= 2


def test_sixteen_bits_are_scaled_to_eight_not_clipped(tmp_path: Path) -> None:
    grey = np.array([[0, 255, 256, 0x8000, 0xFFFF]], dtype=np.uint16)
    Image.fromarray(grey).save(tmp_path / "a.png")
    Image.fromarray(grey).save(tmp_path / "a.tif")
    (tmp_path / "a.ppm").write_bytes(b"P5 5 1 65535\n" + grey.astype(">u2").tobytes())
    (tmp_path / "rgb.png").write_bytes(png(5, 1, 16, 2, b"\0" + grey.repeat(3).astype(">u2").tobytes()))
    for name in ("a.png", "a.tif", "a.ppm", "rgb.png"):
        pixels_read = images.read(tmp_path / name)
        assert pixels_read.shape == (1, 5, 3)
        assert pixels_read[0, :, 0].tolist() == pixels_read[0, :, 2].tolist() == [0, 0, 1, 128, 255], name


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_numbers_without_a_known_white_are_refused(tmp_path: Path, kind: type) -> None:
    Image.fromarray(np.array([[0, 70000]], dtype=kind)).save(tmp_path / "a.tif")
    assert "must be 8 or 16 bits" in why(tmp_path / "a.tif")


def test_the_orientation_a_camera_notes_is_ignored_as_torchvision_ignores_it(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn it right
    smooth(10, 20).save(tmp_path / "a.jpg", exif=exif)
    with Image.open(tmp_path / "a.jpg") as opened:
        assert opened.getexif()[0x0112] == 6
        expected = np.asarray(opened.convert("RGB"))
    assert images.size(tmp_path / "a.jpg") == (10, 20)
    assert np.array_equal(images.read(tmp_path / "a.jpg"), expected)


def test_of_an_animation_the_first_frame_is_taken(tmp_path: Path) -> None:
    first, second = Image.new("RGB", (3, 2), RED), Image.new("RGB", (3, 2), BLUE)
    first.save(tmp_path / "a.gif", save_all=True, append_images=[second])
    assert images.read(tmp_path / "a.gif").tolist() == [[[*RED]] * 3] * 2


# --- what is refused ---


def test_a_truncated_photograph_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    for options in ({}, {"progressive": True}):
        whole = io.BytesIO()
        Image.fromarray(noise(64, 64)).save(whole, "JPEG", **options)
        content = whole.getvalue()
        for share in (0.01, 0.1, 0.5, 0.9):
            (tmp_path / "a.jpg").write_bytes(content[: int(share * len(content))])
            assert why(tmp_path / "a.jpg")
    (tmp_path / "a.jpg").write_bytes(content[: len(content) // 2])
    assert "truncated" in why(tmp_path / "a.jpg")


@pytest.mark.parametrize("ending", ["bmp", "gif", "png", "ppm", "tif", "webp"])
def test_half_a_file_of_any_format_is_refused(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"a.{ending}"
    Image.fromarray(noise(40, 40)).save(file)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert why(file)


def test_what_is_not_an_image_is_refused_with_the_reason(tmp_path: Path) -> None:
    contents = {
        "empty.jpg": (b"", "the file is empty"),
        "text.jpg": (b"404 not found\n", "not an image, or of"),
        "page.png": (b"<html></html>", "not an image, or of"),
        "script.jpg": (
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
            "not an image, or of",
        ),
        "drawing.png": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "not an image, or of"),
    }
    for name, (content, words) in contents.items():
        (tmp_path / name).write_bytes(content)
        assert why(tmp_path / name).startswith(words)
        with pytest.raises(BadImageError, match=words):
            images.size(tmp_path / name)
    assert why(tmp_path / "none.jpg") == "the file is missing"
    (tmp_path / "folder.jpg").mkdir()
    assert why(tmp_path / "folder.jpg") == "a folder, not a file"


def test_a_format_that_would_start_another_program_is_not_read(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.eps")
    with Image.open(tmp_path / "a.eps") as opened:
        assert opened.format == "EPS"
    (tmp_path / "a.eps").rename(tmp_path / "a.jpg")
    assert why(tmp_path / "a.jpg").startswith("not an image, or of")


def test_a_decompression_bomb_is_refused_by_its_header(tmp_path: Path) -> None:
    (tmp_path / "huge.png").write_bytes(png(30000, 30000, 8, 2, b"\0" * 100))
    assert "900000000 pixels" in why(tmp_path / "huge.png")
    (tmp_path / "large.png").write_bytes(png(12000, 12000, 8, 2, b"\0" * 100))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert why(tmp_path / "large.png") == "12000 x 12000 pixels: at most 100,000,000 are allowed"
        with pytest.raises(BadImageError, match="at most 100,000,000 are allowed"):
            images.size(tmp_path / "large.png")
    (tmp_path / "real.png").write_bytes(png(2, 1, 8, 2, b"\0" + bytes([*RED, *BLUE])))
    assert images.read(tmp_path / "real.png").tolist() == [[[*RED], [*BLUE]]]


def test_a_strip_that_resizing_would_blow_up_is_refused_by_its_header(tmp_path: Path) -> None:
    """2,000 x 1 is small; with its short side at 256 it would be 393 MB, and 50,000 x 1 ten gigabytes."""
    (tmp_path / "strip.png").write_bytes(png(2_000, 1, 8, 0, b"\0" * 2_001))
    for read in (lambda file: images.read(file, 256, "kept"), images.size):
        with pytest.raises(BadImageError, match="2000 x 1 pixels: one side is over 100 times the other"):
            read(tmp_path / "strip.png")
    Image.new("RGB", (1, 100)).save(tmp_path / "long.png")
    assert images.read(tmp_path / "long.png", 2, "kept").shape == (200, 2, 3)


def test_broken_ones_are_listed_in_order_with_the_reason_and_progress_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "BLOCK", 3)
    names = [f"{n}.png" for n in range(8)]
    for name in names:
        Image.new("RGB", (2, 2)).save(tmp_path / name)
    (tmp_path / "6.png").write_bytes(b"")
    (tmp_path / "2.png").unlink()
    reports: list[tuple[int, int]] = []
    unreadable = list(images.broken(tmp_path, names, lambda done, total: reports.append((done, total))))
    assert unreadable == [("2.png", "the file is missing"), ("6.png", "the file is empty")]
    assert reports == [(3, 8), (6, 8), (8, 8)]


# --- resizing ---


@pytest.mark.parametrize("aspect", ["square", "kept"])
@pytest.mark.parametrize("size", [(31, 57), (57, 31), (40, 40), (7, 5), (100, 33), (101, 50), (16, 16), (1, 3)])
def test_resizing_is_torchvisions(tmp_path: Path, size: tuple[int, int], aspect: str) -> None:
    pixels = noise(*size)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    for resize in (16, 15, 64):
        wanted = v2.Resize([resize, resize] if aspect == "square" else resize)
        expected = np.asarray(wanted(Image.fromarray(pixels)))
        pixels_read = images.read(tmp_path / "a.png", resize, aspect)
        assert pixels_read.shape == expected.shape
        assert np.array_equal(pixels_read, expected)
        assert images.resized(size[1], size[0], resize, aspect) == pixels_read.shape[:2]


def test_the_long_side_is_rounded_down() -> None:
    assert images.resized(640, 480, 256, "kept") == (256, 341)  # 341.33
    assert images.resized(480, 641, 256, "kept") == (341, 256)  # 341.87
    assert images.resized(500, 333, 256, "square") == (256, 256)


def test_transparency_is_laid_on_white_before_resizing(tmp_path: Path) -> None:
    """Black that is transparent must not darken the edge."""
    pixels = np.zeros((4, 4, 4), dtype=np.uint8)
    pixels[:, 2:] = 255
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert (images.read(tmp_path / "a.png", 2) == 255).all()


def test_pixels_can_be_copied_to_a_tensor(tmp_path: Path) -> None:
    Image.fromarray(noise(3, 2)).save(tmp_path / "a.png")
    pixels_read = images.read(tmp_path / "a.png")
    assert pixels_read.flags.c_contiguous
    assert torch.from_numpy(pixels_read.copy()).shape == (3, 2, 3)
