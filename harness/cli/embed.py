"""`harness embed`: embeds images with the trained network of a stored run."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness import config
from harness.cli.app import RESULTS, STORED, IdArgument, ResultsOption, StorageOption, app, read_result, storage_of
from harness.cli.output import say
from harness.files import write_whole, writing
from harness.spec import UserError
from harness.store import Store

if TYPE_CHECKING:
    from torch import Tensor


@app.command(epilog="Example: harness embed 1f2e3d photos/*.jpg --out embeddings.npy", rich_help_panel=STORED)
def embed(
    id: IdArgument,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES...", help="The image files to embed.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a .npy or .csv file. Default: print CSV.")
    ] = None,
    storage: StorageOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Embed images with the network of a stored final run. Its weights must have been kept."""
    store = Store(results.absolute())
    if out is not None and out.suffix not in (".npy", ".csv"):
        raise UserError(f"--out {out}: must be a .npy or a .csv file")
    for image in images:
        if not image.is_file():
            folder = image.is_dir()
            raise UserError(f"{image}: a folder; name the images: {image}/*" if folder else f"{image}: no such file")
    result = read_result(store, id)
    from harness.training import inference

    files = storage_of(storage, store)
    result = inference.with_weights(result, store.results()[0], files)
    dataset = config.find_dataset(result.trial.dataset)
    embedded = dataset is not None and dataset.layout == "embedded"
    embeddings = inference.embed_files(result, images, files, embedded=embedded)
    if out is None:
        say(as_csv(images, embeddings), end="")
        return
    with writing(out):
        write_whole(out, as_npy(embeddings) if out.suffix == ".npy" else as_csv(images, embeddings).encode())


def as_npy(embeddings: "Tensor") -> bytes:
    import numpy as np

    content = io.BytesIO()
    np.save(content, embeddings.numpy())
    return content.getvalue()


def as_csv(images: Sequence[Path], embeddings: "Tensor") -> str:
    """A header, then a line per image: its path and its embedding."""
    header = ",".join(["image", *map(str, range(embeddings.shape[1]))]) + "\n"
    return header + "".join(
        f"{json.dumps(str(image))},{','.join(f'{value:.7g}' for value in row)}\n"
        for image, row in zip(images, embeddings.tolist(), strict=True)
    )
