"""`harness eval` and `harness embed`: what is made of the embeddings and weights that a run has kept."""

import json
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from harness import config
from harness.cli.app import RESULTS, IdArgument, ResultsOption, StorageOption, app, read_result, storage_of
from harness.evaluation.recipes import recipe_of
from harness.spec import Result, UserError, metric_order
from harness.store import Store


class NMI(StrEnum):
    lloyd = "lloyd"
    hartigan = "hartigan"
    faiss = "faiss"
    sklearn = "sklearn"


@app.command("eval", epilog="Example: harness eval 1f2e3d --nmi-recipe sklearn")
def evaluate_again(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Stored final runs: ids, or their beginnings.")],
    nmi_recipe: Annotated[
        NMI,
        typer.Option(
            help="The k-means. lloyd: as scikit-learn does it; sklearn: scikit-learn's own code; faiss: random start, "
            "20 iterations, needs faiss; hartigan: Hartigan's criterion."
        ),
    ] = NMI.lloyd,
    storage: StorageOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Measure stored runs again from their embeddings, with NMI by another recipe; stored beside them. What was
    measured so before is not measured again."""
    store = Store(results.absolute())
    for result in [read_result(store, id) for id in ids]:
        measured = measured_by(nmi_recipe.value, result, store)
        if measured is None:
            from harness.evaluation import ensembles  # imports torch

            measured = ensembles.measure_again(result, nmi_recipe.value, storage_of(storage, store))
            store.put(measured, replace=True)
        names = sorted(measured.metrics, key=metric_order)
        metrics = "  ".join(f"{name} {100 * measured.metrics[name]:.2f}" for name in names)
        print(f"{measured.id}  {result.trial.name}  {metrics}")
        print(f"NMI: {measured.conventions['NMI']}")


def measured_by(recipe: str, result: Result, store: Store) -> Result | None:
    """The stored record of this run, its own or one beside it, whose NMI is by the recipe as it is today."""
    beside = store.get(result.trial, id=replace(result, recipe=recipe).id)
    records = [record for record in (result, beside) if record is not None]
    return next((record for record in records if recipe_of(record.conventions) == recipe), None)


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
