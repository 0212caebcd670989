"""`harness eval`: measure stored runs again from their embeddings."""

from enum import StrEnum
from typing import Annotated

import typer

from harness.cli.app import RESULTS, ResultsOption, StorageOption, app, read_result, storage_of
from harness.store import Store


class NMI(StrEnum):
    ours = "ours"
    faiss = "faiss"
    sklearn = "sklearn"


@app.command("eval", epilog="Example: harness eval 1f2e3d --nmi-recipe sklearn")
def evaluate_again(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Stored final runs: ids, or their beginnings.")],
    nmi_recipe: Annotated[
        NMI, typer.Option(help="ours; faiss: random start, 20 iterations; sklearn: scikit-learn's KMeans.")
    ] = NMI.ours,
    storage: StorageOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Measure stored runs again from their embeddings, to compare with numbers made otherwise; stored beside them."""
    where = Store(results.absolute())
    chosen = [read_result(where, id) for id in ids]
    from harness.evaluation import ensembles

    for one in chosen:
        again = ensembles.measure_again(one, nmi_recipe.value, storage_of(storage, where))
        where.put(again, replace=True)
        shown = "  ".join(f"{name} {100 * value:.2f}" for name, value in again.metrics.items())
        print(f"{again.id}  {one.trial.name}  {shown}")
        print(f"NMI: {again.conventions['NMI']}")
