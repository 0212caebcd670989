"""`harness rm`: remove stored results and failed trials, with all that belongs to them."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness import sources
from harness.cli import completion
from harness.cli.app import RESULTS, STORED, ResultsOption, StorageOption, app, option_of, storage_of
from harness.cli.output import say
from harness.spec import Result, unknown
from harness.store import Store

if TYPE_CHECKING:
    from harness.storage import Storage


@app.command(epilog="Example: harness rm 1f2e3d", rich_help_panel=STORED)
def rm(
    ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID...",
            autocompletion=completion.ids,
            help="Ids of stored results or failed trials, or their first digits.",
        ),
    ],
    storage: StorageOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Remove stored results or failed trials, with their embeddings, weights and ensembles. Prints what goes. The next
    run that needs them makes them again."""
    store = Store(results.absolute())
    files = storage_of(storage, store)
    removed = []
    for file in [find(store, id) for id in ids]:
        with suppress(ValueError):  # also what cannot be read is removed
            removed.append(store.read(file))
        for line in remove(file, store, files):
            say(line)
    sources.drop(store, removed)


def find(store: Store, prefix: str) -> Path:
    """The file of the one result, or else of the one failed trial, whose id begins so."""
    if store.has(prefix):
        return store.find(prefix)
    failed = store.find_failure(prefix)
    if failed:
        return failed
    known = [file.stem for file in (*store.files(), *store.failures())]
    see = f"harness ls runs{option_of(store.root)}"
    raise unknown(f"result or failed trial in {store.root}", prefix, known, see=see)


def remove(file: Path, store: Store, files: "Storage") -> Iterator[str]:
    """Remove a record and what belongs to it; a line for each thing that goes."""
    from harness.storage import checkpoint

    result: Result | None = None
    with suppress(ValueError):
        result = store.read(file)
    if result is None:
        what = "failed trial" if file in store.failures() else "record"
        store.remove(file)
        yield f"removed {what} {file}"
    else:
        companions = store.built_from(result)
        store.remove(file)
        yield f"removed {file}"
        for kind, entry in result.artifacts.items():
            if files.exists(entry["path"]):
                files.remove(entry["path"])
                yield f"  and its {kind}: {entry['path']}"
        for other in companions:
            what = f"ensemble of {other.ensemble}" if other.is_ensemble else f"measurement by {other.recipe}"
            yield f"  and the {what} that was made from it: {other.id}"
    if files.exists(checkpoint(file.stem)):
        files.remove(checkpoint(file.stem))
        yield f"  and its checkpoint: {checkpoint(file.stem)}"
    for failure in store.failures():
        if failure.stem == file.stem:
            store.remove(failure)
            yield f"  and the record of its failure: {failure}"
