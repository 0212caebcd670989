"""`harness eval`: measure stored runs again from their embeddings."""

from typing import Annotated

import typer

from harness.cli.app import RESULTS, ResultsOption, StorageOption, app, read_result, storage_of
from harness.spec import unknown
from harness.store import Store


@app.command("eval", epilog="Example: harness eval 1f2e3d --nmi-recipe sklearn")
def evaluate_again(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of stored final runs, or their first digits.")],
    nmi_recipe: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="How to cluster for NMI: ours (k-means++ start), faiss (random start, 20 iterations) or sklearn "
            "(scikit-learn's KMeans).",
        ),
    ] = "ours",
    storage: StorageOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Measure stored runs again from their embeddings, with another NMI recipe; stored as separate records."""
    store = Store(results.absolute())
    runs = [read_result(store, id) for id in ids]
    from harness.evaluation import ensembles
    from harness.evaluation.clustering import RECIPES

    if nmi_recipe not in RECIPES:
        raise unknown("NMI recipe", nmi_recipe, RECIPES)
    for run in runs:
        measured = ensembles.measure_again(run, nmi_recipe, storage_of(storage, store))
        store.put(measured, replace=True)
        metrics = "  ".join(f"{name} {100 * value:.2f}" for name, value in measured.metrics.items())
        print(f"{measured.id}  {run.trial.name}  {metrics}")
        print(f"NMI: {measured.conventions['NMI']}")
