"""`harness eval`: measure stored runs again from their embeddings."""

from typing import Annotated

import typer

from harness.cli.app import RESULTS, STORED, ResultsOption, StorageOption, app, read_result, storage_of
from harness.cli.output import say
from harness.spec import Measurement, Result, finish, metric_order, recall_k, unknown
from harness.spec.recipes import LLOYD, RECIPES, recipe_of
from harness.store import Store


@app.command("eval", epilog="Example: harness eval 1f2e3d --nmi-recipe sklearn", rich_help_panel=STORED)
def evaluate_again(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of stored final runs, or their first digits.")],
    nmi_recipe: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"The recipe that finds the clusters for NMI: {', '.join(RECIPES)}. The command prints it in full.",
        ),
    ] = LLOYD.name,
    storage: StorageOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Measure stored runs again with another NMI recipe. The results are stored as separate records; a run that was
    measured with the recipe before is not measured again."""
    store = Store(results.absolute())
    runs = [read_result(store, id) for id in ids]
    if nmi_recipe not in RECIPES:
        raise unknown("NMI recipe", nmi_recipe, RECIPES)
    for run in runs:
        measured = measured_by(nmi_recipe, run, store)
        if measured is None:
            from harness.evaluation import ensembles  # imports torch

            ensembles.check_single(run)
            files, classes = storage_of(storage, store), store.class_names(run)
            ks = [k for k in map(recall_k, run.metrics) if k]
            again = Measurement(runs=(run.trial,), recipe=nmi_recipe)
            measured = finish(ensembles.measure(again, [run], ks, files, classes))
            store.put(measured, replace=True)
        names = sorted(measured.metrics, key=metric_order)
        metrics = "  ".join(f"{name} {100 * measured.metrics[name]:.2f}" for name in names)
        say(f"{measured.id}  {run.trial.name}  {metrics}")
        say(f"NMI: {measured.conventions['NMI']}")


def measured_by(recipe: str, run: Result, store: Store) -> Result | None:
    """The stored record of this run, its own or one beside it, whose NMI is by the recipe as it is today."""
    beside = store.get(Measurement(runs=(run.trial,), recipe=recipe))
    records = [record for record in (run, beside) if record is not None]
    return next((record for record in records if recipe_of(record.conventions) == recipe), None)
