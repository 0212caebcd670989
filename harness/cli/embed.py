"""`harness embed`: images through the trained network of a stored run."""

import json
from pathlib import Path
from typing import Annotated

import typer

from harness import config
from harness.cli.app import RESULTS, IdArgument, ResultsOption, StorageOption, app, read_result, storage_of
from harness.spec import UserError
from harness.store import Store


@app.command(epilog="Example: harness embed 1f2e3d photos/*.jpg --out embeddings.npy")
def embed(
    id: IdArgument,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES...", help="Image files.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A .npy or .csv file. Default: CSV on the screen.")
    ] = None,
    storage: StorageOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Embed images with the trained network of a stored final run, whose weights were kept."""
    where = Store(results.absolute())
    if out is not None and out.suffix not in (".npy", ".csv"):
        raise UserError(f"--out {out}: allowed is a .npy or a .csv file")
    result = read_result(where, id)
    from harness.training import inference

    dataset = result.trial.dataset
    embedded = dataset in config.names("datasets") and config.dataset(dataset).layout == "embedded"
    found = inference.embed_files(result, images, storage_of(storage, where), embedded=embedded)
    text = "".join(
        f"{json.dumps(str(file))},{','.join(f'{value:.7g}' for value in row)}\n"
        for file, row in zip(images, found.tolist(), strict=True)
    )
    if out is None:
        print(text, end="")
        return
    try:
        if out.suffix == ".npy":
            import numpy as np

            np.save(out, found.numpy())
        else:
            out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}") from None
