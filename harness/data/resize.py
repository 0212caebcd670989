"""A copy of a dataset with smaller images: every image by its short side, encoded as JPEG quality 78."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import PIL
from PIL import Image, features

from harness.data import images
from harness.data.listing import Listing
from harness.data.readers import LAYOUTS
from harness.files import PART, part_of, write_whole, writing
from harness.spec import Dataset, UserError

ABOUT = "resized.json"  # beside the images: what the copy was made with


def pillow() -> str:
    """The library that decodes, resizes and encodes: another version may write other bytes."""
    jpeg = features.version_feature("libjpeg_turbo")
    return f"Pillow {PIL.__version__} with {f'libjpeg-turbo {jpeg}' if jpeg else 'libjpeg'}"


def shrink(source: Path, target: Path, side: int) -> None:
    """One image. An image whose short side is not longer is encoded again all the same."""
    format = Image.registered_extensions().get(target.suffix.lower())
    if format is None:
        raise images.BadImageError(f"{target.suffix or 'without an ending'}: not a format that can be written")
    with images.open_checked(source) as image:
        picture = image.convert("RGB")
    scale = side / min(picture.size)
    if scale < 1:
        width, height = picture.size
        picture = picture.resize((round(width * scale), round(height * scale)), Image.Resampling.LANCZOS)
    part = part_of(target)
    try:
        picture.save(part, format, quality=78, optimize=True)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def copy(dataset: Dataset, files: Listing, out: Path, side: int, report: Callable[[int, int], None]) -> dict[str, str]:
    """Write the copy; images that an earlier call has written stay. Returns the images that cannot be read, and why."""
    with writing(f"to --out {out}"):
        prepare(dataset, files, out, side)
        copy_lists(dataset, files.folder, out)

        def why_not(path: str) -> str:
            target = out / path
            if target.exists():
                return ""
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                shrink(files.folder / path, target, side)
            except images.BadImageError as error:
                return str(error)
            except (OSError, SyntaxError, ValueError) as error:
                if isinstance(error, OSError) and error.errno is not None:  # of the disk, not of the image
                    raise
                return images.reason(error)
            return ""

        bad: dict[str, str] = {}
        with images.workers() as pool:
            for begin in range(0, len(files.paths), images.BLOCK):
                block = files.paths[begin : begin + images.BLOCK]
                bad |= {path: why for path, why in zip(block, pool.map(why_not, block), strict=True) if why}
                report(begin + len(block), len(files.paths))
    return bad


def prepare(dataset: Dataset, files: Listing, out: Path, side: int) -> None:
    """Make the folder; a UserError if it holds anything but an earlier part of the same copy."""
    if out.resolve() == files.folder.resolve() or files.folder.resolve() in out.resolve().parents:
        raise UserError(f"--out {out}: lies in the dataset's own folder {files.folder}; choose another")
    about = {"dataset": dataset.name, "short_side": side, "made_with": pillow()}
    file = out / ABOUT
    if file.exists():
        try:
            made = json.loads(file.read_bytes())
        except ValueError:
            made = None
        if not isinstance(made, dict):
            raise UserError(f"--out {out}: {ABOUT} does not say what is in it; choose another folder")
        if made != about:
            words = ", ".join(f"{key} {value}" for key, value in made.items())
            raise UserError(f"--out {out}: holds another copy ({words}); choose another folder")
        for part in out.rglob(f"*{PART}"):  # a killed process left it
            part.unlink(missing_ok=True)
    elif out.exists() and any(out.iterdir()):
        raise UserError(f"--out {out}: is not empty; choose another folder")
    out.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(about).encode())


def copy_lists(dataset: Dataset, folder: Path, out: Path) -> None:
    """The lists that say which class an image is of."""
    own = Path(dataset.folder)
    names = [own.name] if own.is_file() else LAYOUTS[dataset.layout].lists
    for name in names:
        if (folder / name).exists():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, out / name)
