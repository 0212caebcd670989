"""What may keep the command of a stored result from giving the same numbers on this machine."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import losses
from harness import config, provenance, sources
from harness.analysis import conditions
from harness.spec import Result, Trial
from harness.spec.recipes import LLOYD, recipe_of
from harness.store import Store
from losses import own


def caveats(result: Result, store: Store, folder: Path) -> list[str]:
    """A sentence each. `folder`: where the command looks for the file of a user's own loss."""
    members = [store.get(result.trial, member) for member in result.members]
    return [
        *other_trial(result.trial),
        *own_loss(result, store, folder),
        *needs(result),
        *other_numbers(result),
        *other_recipe(result),
        *mixed_conditions([member for member in members if member] or [result], store),
    ]


def other_trial(trial: Trial) -> Iterator[str]:
    """Why the command would name another trial."""
    dataset = config.find_dataset(trial.dataset)
    versions = {
        trial.loss: (trial.loss_version, loss_version(trial.loss)),
        trial.dataset: (trial.dataset_version, dataset.version if dataset else None),
    }
    for name, (recorded, here) in versions.items():
        if here is not None and here != recorded:
            yield f"{name} is version {here} here, the record's is {recorded}: the command names another trial."


def loss_version(loss: str) -> int | str | None:
    """The version that a loss has here; None for those that would have to be imported."""
    if loss in losses.shipped():
        return losses.facts(loss).version
    if loss.startswith("pml:"):
        return provenance.version_of("pytorch-metric-learning") or "none"
    return None


def own_loss(result: Result, store: Store, folder: Path) -> Iterator[str]:
    """Whether the file of a user's own loss, with the modules it imports, is where the command looks, and unchanged."""
    stem = result.trial.loss.rpartition(".")[0]
    if not stem:
        return
    file = folder / f"{stem}.py"
    with suppress(losses.LossError):  # it is not there, or not Python
        if own.version(own.collect(file)) == result.trial.loss_version:
            return
    stored = result.sources and set(sources.get(store, result)) == set(result.sources)
    how = f"harness show {result.id} --source DIR writes it" if stored else "it is not stored"
    yield f"{file} is {'another version' if file.exists() else 'not here'}: {how}."


def needs(result: Result) -> Iterator[str]:
    """Files that the command reads and that may not be here."""
    trial, recorded = result.trial, result.provenance
    if trial.weights_kind == "file":
        yield f"It needs the weights {recorded.get('weights_file') or 'FILE'}, {trial.weights}."
    folder = recorded.get("data")
    dataset = config.find_dataset(trial.dataset)
    if folder and not os.path.exists(folder):
        yield f"Its images are not at {folder} here; their fingerprint is {trial.fingerprint}."
    if side := dataset.resized.get(trial.fingerprint) if dataset else None:
        yield f"Its images are a copy of short side {side} px ({trial.fingerprint}): with others it is another trial."


def other_numbers(result: Result) -> Iterator[str]:
    """Why the same trial may give other numbers here."""
    recorded = result.provenance
    if recorded.get("device_type") == "cuda":
        yield f"It ran on a GPU ({recorded.get('device')}): runs on a GPU are not the same to the bit."
    elif recorded.get("threads") is None:
        yield "Its number of threads is not recorded: with another one its numbers differ."
    elif recorded.get("device") != provenance.cpu():
        yield f"It ran on another processor ({recorded.get('device')})."
    elif provenance.has_gpu():
        yield "It ran on a CPU, and this machine has a GPU: add --gpus-per-trial 0."
    for package, version in recorded.get("packages", {}).items():
        here = provenance.version_of(package)
        if here != version:
            yield f"It was made with {package} {version}; here is {here or 'none'}."
    if str(recorded.get("commit") or "").endswith("+"):
        yield f"Its code had changes that were not committed ({recorded['commit']})."


def other_recipe(result: Result) -> Iterator[str]:
    """NMI was measured by another recipe in the past."""
    name = recipe_of(result.conventions)
    if name and name != LLOYD.name and not result.recipe:
        yield f"Its NMI is by the recipe {name}; a new run's is by {LLOYD.name}."


def mixed_conditions(runs: Sequence[Result], store: Store) -> Iterator[str]:
    """Why no single command repeats what several have made. `runs`: the result, or what it was made from."""
    for run in runs:
        for change in changes(run):
            yield f"{run.id} was interrupted and went on under other conditions: {change}."
    for difference in conditions.differences(runs, {}) if len(runs) > 1 else ():
        yield f"Its members differ: {difference}."
    yield from dict.fromkeys(line for run in runs for line in unlike_needs(run, store))


def changes(run: Result) -> Iterator[str]:
    """What was not the same in all attempts of a run; processors of one kind give different last bits too."""
    yield from conditions.changed(run)
    attempts = [attempt for attempt in run.provenance.get("attempts", ()) if attempt.get("device_type") != "cuda"]
    processors = dict.fromkeys(str(attempt["device"]) for attempt in attempts if "device" in attempt)
    if len(processors) > 1:
        yield f"processor = {conditions.THEN.join(processors)}"


def unlike_needs(run: Result, store: Store) -> Iterator[str]:
    """In which conditions a shared pre-training or a teacher was not trained like the trial that began with it."""
    mine = conditions.of(run)
    for what, need in (("pre-training", run.pretraining), ("teacher", run.teacher)):
        first = by_id(store, need["id"]) if need else None
        theirs = conditions.of(first) if first else {}
        for name in mine:
            if name in theirs and theirs[name] != mine[name]:
                yield f"Its {what} {need['id']} was made with {name} = {theirs[name]}, {run.id} with {mine[name]}."


def by_id(store: Store, id: str) -> Result | None:
    for file in store.files():
        if file.stem == id:
            with suppress(ValueError):  # a copy, or damaged
                return store.read(file)
    return None
