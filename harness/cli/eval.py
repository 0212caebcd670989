"""`harness eval`: measure stored runs again from their embeddings."""

from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.app import RESULTS, STORED, ResultsOption, StorageOption, app, read_result, storage_of
from harness.cli.output import only_our_output, say, say_words
from harness.cli.runs import label_of
from harness.cli.where import WHERE, AddressOption, CpusOption, GpusOption, MaxConcurrentOption, WaitForNodesOption
from harness.request import ExecutorName, Request, check_address, check_numbers
from harness.spec import Failure, Measurement, Result, metric_order, unknown
from harness.spec.recipes import LLOYD, RECIPES, recipe_of
from harness.store import Store

if TYPE_CHECKING:
    from harness.storage import Storage


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
    executor: Annotated[
        ExecutorName | None,
        typer.Option(
            rich_help_panel=WHERE,
            help="ray measures as many runs at once as fit; local measures one after another in this process. Default: "
            "local for a single run without --address, else ray.",
        ),
    ] = None,
    address: AddressOption = None,
    cpus_per_trial: CpusOption = Request.cpus_per_trial,
    gpus_per_trial: GpusOption = None,
    max_concurrent: MaxConcurrentOption = None,
    wait_for_nodes: WaitForNodesOption = False,
    storage: StorageOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Measure stored runs again with another NMI recipe. The results are stored as separate records; a run that was
    measured with the recipe before is not measured again."""
    store = Store(results.absolute())
    runs = [read_result(store, id) for id in ids]
    if nmi_recipe not in RECIPES:
        raise unknown("NMI recipe", nmi_recipe, RECIPES)
    to_measure = {run.id: run for run in runs if measured_by(nmi_recipe, run, store) is None}
    request = Request(
        executor=executor or ("local" if len(to_measure) == 1 and not address else "ray"),
        address=address,
        cpus_per_trial=cpus_per_trial,
        gpus_per_trial=gpus_per_trial,
        max_concurrent=max_concurrent,
        wait_for_nodes=wait_for_nodes,
    )
    check_numbers(request)
    check_address(request)
    failures = measure(list(to_measure.values()), nmi_recipe, request, store, storage_of(storage, store))
    for run in runs:
        measured = measured_by(nmi_recipe, run, store)
        if measured is not None:
            names = sorted(measured.metrics, key=metric_order)
            metrics = "  ".join(f"{name} {100 * measured.metrics[name]:.2f}" for name in names)
            name = label_of(run) if run.is_ensemble else run.trial.name
            say_words(f"{measured.id}  {name}  {metrics}")
            say_words(f"NMI: {measured.conventions['NMI']}")
    for failure in failures:
        say(f"failed: {failure.work.name}: {failure.error}", error=True)
    if failures:
        raise typer.Exit(1)


def measure(runs: list[Result], recipe: str, request: Request, store: Store, storage: "Storage") -> list[Failure]:
    """Measure these runs and store what is measured. Returns what failed; a UserError, before any is measured, for a
    run that cannot be, and for results that cannot be written."""
    if not runs:
        return []
    from rich.console import Console

    from harness.evaluation import ensembles  # imports torch
    from harness.execution.display import Display
    from harness.execution.measuring import measure_again

    for run in runs:
        ensembles.check(run, storage)
    store.prepare()
    display = Display(Console(stderr=True))
    with only_our_output():
        return measure_again(runs, recipe, request, store, storage, display)


def measured_by(recipe: str, run: Result, store: Store) -> Result | None:
    """The stored record of this run, its own or one beside it, whose NMI is by the recipe as it is today."""
    beside = store.get(Measurement(runs=(run.trial,), recipe=recipe))
    records = [record for record in (run, beside) if record is not None]
    return next((record for record in records if recipe_of(record.conventions) == recipe), None)
