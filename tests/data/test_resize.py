"""Resized copies: byte for byte three lines of Pillow, whatever interrupts them."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from harness import config
from harness.data import listing, resize
from harness.data.listing import Listing
from harness.spec import Dataset, UserError

SIZES = ((90, 60), (60, 90), (64, 64), (40, 200), (30, 20), (97, 61))


def three_lines(source: Path, target: Path, side: int) -> None:
    """How the copy that the repository's results are measured on was made."""
    image = Image.open(source).convert("RGB")
    if min(image.size) > side:
        s = side / min(image.size)
        image = image.resize((round(image.size[0] * s), round(image.size[1] * s)), Image.LANCZOS)
    image.save(target, quality=78, optimize=True)


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    """Class folders with images of several sizes, modes and kinds."""
    rng = np.random.default_rng(0)
    for name in "abcd":
        (tmp_path / "birds" / name).mkdir(parents=True)
        for number, (width, height) in enumerate(SIZES):
            pixels = rng.integers(0, 256, (height, width, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "birds" / name / f"{number}.jpg", quality=95, comment="a comment")
    Image.fromarray(pixels[:, :, 0]).save(tmp_path / "birds" / "a" / "grey.jpg")
    Image.fromarray(pixels).convert("CMYK").save(tmp_path / "birds" / "a" / "cmyk.jpeg")
    Image.fromarray(np.dstack([pixels, pixels[:, :, :1]])).save(tmp_path / "birds" / "a" / "clear.png")
    return tmp_path / "birds"


def read(folder: Path) -> tuple[Dataset, Listing]:
    dataset = config.dataset(str(folder))
    return dataset, listing.read(dataset, Path())


def quiet(done: int, total: int) -> None:
    pass


@pytest.mark.parametrize("side", [16, 60, 500])
def test_every_image_is_byte_for_byte_what_three_lines_of_pillow_write(birds: Path, tmp_path: Path, side: int) -> None:
    dataset, files = read(birds)
    assert resize.copy(dataset, files, tmp_path / "out", side, quiet) == {}
    assert len(files.paths) == 4 * len(SIZES) + 3
    for path in files.paths:
        expected = tmp_path / f"expected{Path(path).suffix}"
        three_lines(birds / path, expected, side)
        assert (tmp_path / "out" / path).read_bytes() == expected.read_bytes(), path


def test_what_an_interruption_left_is_finished_and_not_made_again(
    birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, files = read(birds)
    out, made, real = tmp_path / "out", [], resize.shrink

    def interrupted(source: Path, target: Path, side: int) -> None:
        if len(made) == 5:
            target.with_name(f"{target.name}.0.part").write_bytes(b"half")
            raise KeyboardInterrupt
        made.append(target)
        real(source, target, side)

    monkeypatch.setattr(resize, "shrink", interrupted)
    with pytest.raises(KeyboardInterrupt):
        resize.copy(dataset, files, out, 32, quiet)
    times = {target: target.stat().st_mtime_ns for target in made}
    monkeypatch.setattr(resize, "shrink", real)
    resize.copy(dataset, files, out, 32, quiet)
    assert {target: target.stat().st_mtime_ns for target in made} == times
    assert not list(out.rglob("*.part"))
    whole = tmp_path / "whole"
    resize.copy(dataset, files, whole, 32, quiet)
    assert listing.fingerprint(read(out)[1]) == listing.fingerprint(read(whole)[1])


def test_a_copy_of_another_size_or_into_the_originals_is_refused(birds: Path, tmp_path: Path) -> None:
    dataset, files = read(birds)
    resize.copy(dataset, files, tmp_path / "out", 32, quiet)
    with pytest.raises(UserError, match=r"holds another copy \(dataset birds, short_side 32, made_with Pillow "):
        resize.copy(dataset, files, tmp_path / "out", 16, quiet)
    (tmp_path / "out" / resize.ABOUT).write_text("junk")
    with pytest.raises(UserError, match="does not say what is in it; choose another folder"):
        resize.copy(dataset, files, tmp_path / "out", 32, quiet)
    for out in (birds, birds / "a", tmp_path):
        with pytest.raises(UserError, match="choose another"):
            resize.copy(dataset, files, out, 16, quiet)


def test_an_image_that_cannot_be_read_is_named_and_the_rest_is_made(birds: Path, tmp_path: Path) -> None:
    (birds / "a" / "bad.jpg").write_bytes(b"no image")
    (birds / "b" / "cut.jpg").write_bytes((birds / "b" / "0.jpg").read_bytes()[:900])
    dataset, files = read(birds)
    bad = resize.copy(dataset, files, tmp_path / "out", 32, quiet)
    assert list(bad) == ["a/bad.jpg", "b/cut.jpg"]
    assert (tmp_path / "out" / "d" / "5.jpg").exists()
    assert not (tmp_path / "out" / "b" / "cut.jpg").exists()
