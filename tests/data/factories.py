"""Datasets in miniature: each layout a dataset is found in, photographs, and image caches."""

import hashlib
import json
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.io import savemat
from torchvision.transforms import v2

from harness import config
from harness.data import cache, cache_building, listing
from harness.data.listing import Listing
from harness.spec import Dataset

Write = Callable[[Path, int], None]  # a file, of a class


# The first two train: the .mat's order differs from the alphabet's, but not across the middle.
CARS = ("Eagle Talon Hatchback 1998", "AM General Hummer SUV 2000", "Ferrari FF Coupe 2012", "FIAT 500 Abarth 2012")


def scribble(file: Path, label: int) -> None:
    """A file that only has to be there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{label} {file.name}")


def write_text(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def lay_cub(
    folder: Path, classes: tuple[int, ...] = (1, 2, 3, 10, 11, 12), each: int = 2, write: Write = scribble
) -> None:
    """CUB-200-2011: class ids, and a split of images that must not be used: the first of each class trains."""
    rows = [(label, n) for label in classes for n in range(each)]
    names = {label: f"{label:03}.Bird" for label in classes}
    for label, n in rows:
        write(folder / "images" / names[label] / f"Bird_{n}.jpg", label)
    lines = {
        "images.txt": [f"{i} {names[label]}/Bird_{n}.jpg" for i, (label, n) in enumerate(rows, 1)],
        "image_class_labels.txt": [f"{i} {label}" for i, (label, _) in enumerate(rows, 1)],
        "classes.txt": [f"{label} {name}" for label, name in names.items()],
        "train_test_split.txt": [f"{i} {int(n == 0)}" for i, (_, n) in enumerate(rows, 1)],
    }
    for name, content in lines.items():
        (folder / name).write_text("\n".join(content) + "\n")


def lay_sop(folder: Path, train: dict[int, int], test: dict[int, int], write: Write = scribble) -> None:
    """Stanford Online Products: class id -> number of images, on either side."""
    number = 0
    for side, classes in (("train", train), ("test", test)):
        lines = ["image_id class_id super_class_id path"]
        for label, count in classes.items():
            for n in range(count):
                number += 1
                path = f"chair_final/{label}_{n}.JPG"
                write(folder / path, label)
                lines.append(f"{number} {label} 3 {path}")
        (folder / f"Ebay_{side}.txt").write_text("\n".join(lines) + "\n")


def lay_inshop(
    folder: Path, rows: list[tuple[int, str, int]], images: str = "Img/", place: str = "Eval/", write: Write = scribble
) -> None:
    """In-Shop: rows of item, evaluation status and how many images."""
    lines = []
    for label, side, count in rows:
        for n in range(count):
            path = f"img/WOMEN/Dresses/id_{label:08}/{side}_{n}.jpg"
            write(folder / f"{images}{path}", label)
            lines.append(f"{path} id_{label:08} {side}")
    file = folder / f"{place}list_eval_partition.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{len(lines)}\nimage_name item_id evaluation_status\n" + "\n".join(lines) + "\n")


def annotate(file: Path, **fields: list) -> None:
    """A struct array called annotations, as Cars196 has it."""
    kinds = [(name, object) for name in fields]
    rows = np.array(list(zip(*fields.values(), strict=True)), dtype=kinds)
    file.parent.mkdir(parents=True, exist_ok=True)
    savemat(file, {"annotations": rows})


def lay_cars(folder: Path, form: str) -> None:
    """Two images of each class for classification's training, one for its test, in one of the forms there are."""
    rows = [(label, n, n < 2) for label in range(1, 5) for n in range(3)]
    if form == "one list":
        paths = [f"car_ims/{i:06}.jpg" for i in range(1, 13)]
        for path, (label, n, _) in zip(paths, rows, strict=True):
            write_text(folder / path, f"{CARS[label - 1]} {n}")
        ids, closed = [row[0] for row in rows], [int(not row[2]) for row in rows]
        return annotate(
            folder / "cars_annos.mat", relative_im_path=paths, bbox_x1=ids, **{"class": ids, "test": closed}
        )
    if form.startswith("devkit"):
        nested = form == "devkit, nested"
        kit = folder / ("car_devkit/devkit" if nested else "devkit")
        for part in ("cars_train", "cars_test"):
            some = [row for row in rows if row[2] == (part == "cars_train")]
            names = [f"{i:05}.jpg" for i in range(1, len(some) + 1)]  # the same names in both parts
            for name, (label, n, _) in zip(names, some, strict=True):
                write_text(folder / (f"{part}/{part}" if nested else part) / name, f"{CARS[label - 1]} {n}")
            list_name = "cars_train_annos.mat" if part == "cars_train" else "cars_test_annos_withlabels.mat"
            apart = part == "cars_test" and form == "devkit, test labels apart"
            ids = [row[0] for row in some]
            annotate((folder if apart else kit) / list_name, bbox_x1=ids, **{"class": ids}, fname=names)
        return None
    for label, n, closed in rows:
        part = {"{side}": "train" if closed else "test"}.get(form.rpartition("/")[2], form.rpartition("/")[2])
        place = folder / form.rpartition("/")[0] / part
        write_text(place / CARS[label - 1] / f"{n}.jpg", f"{CARS[label - 1]} {n}")
    return None


def unasserted(name: str) -> Dataset:
    """A shipped dataset without its numbers."""
    none = {"train_classes": 0, "test_classes": 0, "train_images": 0, "test_images": 0, "query_images": 0}
    return replace(config.dataset(name), **none)


def side(files: listing.Listing, *, train: bool) -> list[str]:
    """The paths on one side of the split."""
    chosen = zip(files.paths, files.labels, strict=True)
    return [path for path, label in chosen if (label < files.train_classes) == train]


ITEMS = [(1, "train", 2), (5, "train", 1), (2, "query", 1), (2, "gallery", 2), (3, "query", 2), (3, "gallery", 1)]


def own(path: Path) -> listing.Listing:
    return listing.read(config.dataset(str(path)), Path("nowhere"))


def draw(file: Path, label: int) -> None:
    """A small photograph: stripes that its class decides, and noise."""
    rng = np.random.default_rng(int(hashlib.sha256(str(file.name).encode()).hexdigest()[:8], 16))
    stripes = np.random.default_rng(label).integers(0, 2, (24, 1, 3)) * 30
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.clip(stripes + rng.normal(100, 60, (24, 28, 3)), 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(file, "JPEG")


def photos(folder: Path) -> Path:
    """Eight class folders of four photographs."""
    for label in range(8):
        for n in range(4):
            draw(folder / f"thing{label}" / f"{label}-{n}.jpg", label)
    return folder


def spoil(folder: Path) -> dict[str, str]:
    """A truncated, an empty and a foreign file, in classes that train (0 to 3) and that test: path -> why."""
    whole = (folder / "thing0" / "0-1.jpg").read_bytes()
    (folder / "thing0" / "0-1.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "thing5" / "5-2.jpg").write_bytes(b"")
    (folder / "thing7" / "7-3.jpg").write_text("<html>404</html>")
    return {"thing0/0-1.jpg": "truncated", "thing5/5-2.jpg": "empty", "thing7/7-3.jpg": "not an image"}


TOML = """
title = "{title}"
cite = "tests"
version = 1
layout = "{layout}"
folder = "{folder}"
copies = true
recall_at = {recall_at}
protocol = "tiny"
manual = "https://example.org/{layout}, unpack it"
"""


def describe(configs: Path, layout: str, folder: str, recall_at: Sequence[int], **numbers: int) -> None:
    text = TOML.format(title=layout.upper(), layout=layout, folder=folder, recall_at=list(recall_at))
    text += "".join(f"{name} = {number}\n" for name, number in numbers.items())
    (configs / "datasets" / f"{layout}.toml").write_text(text)


def describe_small_datasets(configs: Path) -> None:
    """Configurations of a small SOP, In-Shop and CUB."""
    sides = {"train_classes": 5, "test_classes": 13, "train_images": 20, "test_images": 117}
    describe(configs, "sop", "Stanford_Online_Products", (1, 10, 100), **sides)
    describe(configs, "inshop", "In-shop", (1, 2, 5), train_images=18, test_images=40, query_images=15)
    describe(configs, "cub", "CUB_200_2011", (1, 2, 4, 8), train_classes=3, train_images=12, test_images=12)


def small_sop(root: Path) -> None:
    train, test = dict.fromkeys(range(1, 6), 4), dict.fromkeys(range(6, 19), 9)
    lay_sop(root / "Stanford_Online_Products", train, test, draw)


def records(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted((tmp_path / "results").glob("runs/*/*/*.json"))]


def scores(tmp_path: Path) -> dict[str, Any]:
    """id -> metrics of the stored runs of the loss."""
    found = [record for record in records(tmp_path) if record["trial"]["loss"] == "triplet"]
    return {record["id"]: record["metrics"] for record in found}


SIZES = ((40, 30), (30, 40), (23, 71), (71, 23), (16, 16), (9, 5), (50, 50), (16, 33))  # width, height


ASPECTS = ("square", "kept")


def noise(folder: Path, sizes: tuple[tuple[int, int], ...]) -> Listing:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    paths = tuple(f"{number:03}.png" for number in range(len(sizes)))
    for path, (width, height) in zip(paths, sizes, strict=True):
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(folder / path)
    return Listing(folder, paths, tuple(range(len(sizes))), tuple(f"class {path}" for path in paths), len(sizes) // 2)


def key(aspect: str = "square", **other: Any) -> cache.Key:
    return replace(cache.Key("things", "f1", 16, aspect), **other)


def made(cache_key: cache.Key, files: Listing) -> cache.Built:
    list(cache_building.build(cache_key, files))
    built = cache.open_built(cache_key)
    assert built is not None
    return built


def picture(built: cache.Built, number: int) -> np.ndarray:
    height, width, begin = (int(row[number]) for row in (built.heights, built.widths, built.offsets))
    return np.array(built.pixels[begin : begin + 3 * height * width]).reshape(height, width, 3)


def expected(file: Path, aspect: str, size: int = 16) -> np.ndarray:
    with Image.open(file) as image:
        return np.asarray(v2.Resize((size, size) if aspect == "square" else size)(image.convert("RGB")))


def left_over(home: Path) -> list[str]:
    """What lies beside whole caches, locks and the digests of files."""
    names = []
    for path in home.iterdir():
        whole = (path / "about.json").exists() and path.suffix != ".part"
        if path.suffix != ".lock" and path.name != "contents" and not whole:
            names.append(path.name)
    return names


def paint(file: Path, seed: int) -> None:
    """A BMP of noise: every one has the same size."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(file, "BMP")


def pictures(folder: Path, classes: int = 8, each: int = 4, seed: int = 0) -> Path:
    """Class folders c0, c1, ... of BMPs."""
    for label in range(classes):
        for n in range(each):
            paint(folder / f"c{label}" / f"{n}.bmp", 1000 * seed + each * label + n)
    return folder


def special_file(file: Path, kind: str) -> None:
    match kind:
        case "a pipe":
            os.mkfifo(file)
        case "a folder":
            file.mkdir()
        case "a socket":
            os.chdir(file.parent)  # the path of a socket is short
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(file.name)
        case "a device":
            file.symlink_to("/dev/zero")
