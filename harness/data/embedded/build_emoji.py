"""Build emoji.npz, the embedded dataset: the same emoji drawn by eight artists' sets.

Class = emoji, samples = drawings. The drawings are the SVG bodies of eight icon packages on the npm registry,
rendered on white at 32 px. Needs npm and `pip install resvg-py`; then

    python -m harness.data.embedded.build_emoji

downloads the packages at the versions below and writes emoji.npz beside this file. The digest it prints is the
`sha256` in configs/datasets/emoji.toml.
"""

import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

PACKAGES = {
    "noto": "1.2.9",
    "noto-v1": "1.2.5",
    "twemoji": "1.2.5",
    "emojione": "1.2.3",
    "emojione-monotone": "1.2.1",
    "fluent-emoji": "1.2.7",
    "fluent-emoji-flat": "1.2.6",
    "fluent-emoji-high-contrast": "1.2.6",
}
SIZE = 32


def download(name: str, version: str, folder: Path) -> dict[str, object]:
    """The icons.json of one package, fetched with `npm pack`."""
    command = ["npm", "pack", "--silent", f"@iconify-json/{name}@{version}"]
    file = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.split()[-1]
    with tarfile.open(folder / file) as tar:
        member = tar.extractfile("package/icons.json")
        assert member is not None
        icons: dict[str, object] = json.load(member)
    return icons


def drawings(icons: dict) -> dict[str, str]:
    """Name -> SVG text of every icon and alias. An alias that mirrors or turns its parent is not a plain alias."""
    svgs = {}
    for name, icon in icons["icons"].items():
        width, height = (icon.get(side, icons.get(side, 16)) for side in ("width", "height"))
        side = max(width, height)  # a square view, the drawing centred in it
        left, top = icon.get("left", 0) - (side - width) / 2, icon.get("top", 0) - (side - height) / 2
        svgs[name] = (
            f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'viewBox="{left} {top} {side} {side}" width="{side}" height="{side}">{icon["body"]}</svg>'
        )
    for name, alias in icons.get("aliases", {}).items():
        if set(alias) == {"parent"} and alias["parent"] in svgs:
            svgs[name] = svgs[alias["parent"]]
    return svgs


def render(svg: str) -> npt.NDArray[np.uint8]:
    """(SIZE, SIZE, 3) uint8, on white."""
    import resvg_py
    from PIL import Image

    # monochrome sets draw in `currentColor`
    png = resvg_py.svg_to_bytes(
        svg_string=svg.replace("currentColor", "#000000"), width=SIZE, height=SIZE, background="white"
    )
    image = Image.open(io.BytesIO(bytes(png))).convert("RGB")
    assert image.size == (SIZE, SIZE), image.size
    return np.asarray(image)


def build(sets: list[dict[str, str]]) -> tuple[npt.NDArray[np.uint8], list[str]]:
    """Images (classes, sets, SIZE, SIZE, 3) and class names, alphabetical: the emoji that every set draws.

    A name whose drawing is already in, in any of the sets, is dropped: it is an alias, or an emoji that a
    monochrome set cannot tell from another (blue heart, green heart). At the versions above no skin-tone variant
    and no country's flag is drawn by all eight.
    """
    images, names = [], []
    seen: set[bytes] = set()
    for name in sorted(set.intersection(*(set(svgs) for svgs in sets))):
        drawn = np.stack([render(svgs[name]) for svgs in sets])
        digests = {hashlib.sha256(bytes([which]) + drawing.tobytes()).digest() for which, drawing in enumerate(drawn)}
        if not digests & seen:
            seen |= digests
            images.append(drawn)
            names.append(name)
    return np.stack(images), names


def save(path: Path, **arrays: npt.NDArray) -> str:
    """Write a compressed npz without time stamps, so that equal arrays give an equal file; return its sha256."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, array, allow_pickle=False)
            archive.writestr(
                zipfile.ZipInfo(f"{name}.npy"), buffer.getvalue(), compress_type=zipfile.ZIP_DEFLATED, compresslevel=9
            )
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        sets = [drawings(download(name, version, Path(folder))) for name, version in PACKAGES.items()]
    images, names = build(sets)
    target = Path(__file__).with_name("emoji.npz")
    digest = save(target, images=images, classes=np.array(names), sets=np.array(list(PACKAGES)))
    print(f"{len(names)} classes x {len(PACKAGES)} = {images.shape[0] * images.shape[1]} images")
    print(f"{target.name}: {target.stat().st_size / 1e6:.1f} MB, sha256 {digest}")


if __name__ == "__main__":
    main()
