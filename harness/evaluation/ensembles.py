"""Results made from stored embeddings: ensembles as in the paper, and runs measured again."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from harness.evaluation.metrics import STORED_DEPTH, fitting, measure, values_of
from harness.spec import Result, UserError, finish
from harness.spec.recipes import LLOYD, RECIPES
from harness.storage import DamagedError, Storage


def build(
    members: Sequence[Result], size: int, ks: tuple[int, ...], storage: Storage, names: Sequence[str] = ()
) -> Result:
    """The ensemble of `size` of these final runs, which differ only in their seed: the mean over all subsets.

    Nothing is trained: the members' stored test embeddings are joined. `names`: of the classes.
    """
    begun = time.perf_counter()
    stored = [load(member, storage) for member in members]
    labels, queries = stored[0]["labels"], stored[0].get("queries")
    for member, tensors in zip(members, stored, strict=True):
        if not tensors["labels"].equal(labels):
            raise UserError(f"{member.id} was measured on other images than {members[0].id}: they make no ensemble")
    ks = fitting(ks, labels, queries)
    subsets = list(combinations([tensors["embeddings"] for tensors in stored], size))
    measured = [finish(measure(join(subset), labels, ks, queries, depth=STORED_DEPTH)) for subset in subsets]
    metrics = [one.metrics for one in measured]
    values = values_of([one.scores for one in measured], names or numbered(labels))
    file = values.to_bytes()
    seconds = round(time.perf_counter() - begun, 3)
    first = members[0]
    kind = "raw" if "raw" in first.conventions.get("distance", "") else "unit-length"
    how = f"{size} of {len(members)} networks, mean over {len(subsets)} subsets; {kind} embeddings, concatenated"
    collapsed = {name: text for member in members for name, text in member.conventions.items() if name == "collapsed"}
    conventions = {**first.conventions, **collapsed}
    return Result(
        trial=first.trial,
        title=first.title,
        cite=first.cite,
        metrics={name: sum(row[name] for row in metrics) / len(metrics) for name in metrics[0]},
        conventions={**conventions, "NMI": str(LLOYD), "ensemble": how},
        curve=(),
        seconds={"evaluate": seconds, "total": seconds},
        parameters=size * first.parameters,
        artifacts={},
        provenance=first.provenance,
        ensemble=size,
        members=tuple(sorted(member.id for member in members)),
        queries=values.summary(file),
        per_query=file,
    )


def measure_again(result: Result, recipe: str, storage: Storage, names: Sequence[str] = ()) -> Result:
    """A stored run's metrics from its embeddings, with NMI by another recipe: a record of its own."""
    if result.ensemble or result.recipe:
        raise UserError(f"{result.id} has no embeddings of its own: name a single run")
    begun = time.perf_counter()
    stored = load(result, storage)
    labels, queries = stored["labels"], stored.get("queries")
    ks = fitting((int(name.removeprefix("R@")) for name in result.metrics if name.startswith("R@")), labels, queries)
    how = RECIPES[recipe]
    measured = finish(measure(stored["embeddings"], labels, ks, queries, how, depth=STORED_DEPTH))
    values = values_of([measured.scores], names or numbered(labels))
    file = values.to_bytes()
    seconds = round(time.perf_counter() - begun, 3)
    return replace(
        result,
        metrics=measured.metrics,
        conventions={**result.conventions, "NMI": str(how)},
        curve=(),
        seconds={"evaluate": seconds, "total": seconds},
        artifacts={},
        members=(result.id,),
        recipe=recipe,
        queries=values.summary(file),
        per_query=file,
    )


def numbered(labels: Tensor) -> list[str]:
    """Names of classes whose own names were not stored."""
    return [f"class {number}" for number in range(int(labels.max()) + 1)]


def join(embeddings: Sequence[Tensor]) -> Tensor:
    """Concatenated: squared distances are the means of the members'. Members of unit length weigh the same, and their
    ensemble is of unit length again; of members that are compared raw, longer ones weigh more."""
    return torch.cat(tuple(embeddings), dim=1) / len(embeddings) ** 0.5


def load(result: Result, storage: Storage) -> dict[str, Tensor]:
    """The stored test embeddings of a final run, their labels and, where queries and gallery are apart, the queries."""
    entry = result.artifacts.get("embeddings", {})
    if not entry and not result.is_final:
        kind = "a baseline" if result.trial.is_baseline else "a trial on validation classes"
        raise UserError(f"{result.id} is {kind}: only final runs of losses keep embeddings; harness ls runs lists them")
    try:
        content = storage.read_artifact(entry)
    except DamagedError as damage:
        raise UserError(
            f"{damage}; to make it again: harness rm {result.id}, then the command that ran {result.trial.name}"
        ) from None
    if content is None:
        raise UserError(
            f"the embeddings of {result.trial.name} are not in {storage.title}: name where they are (--storage), or "
            f"make them again: add --rerun to the command that harness show {result.id} prints"
        )
    try:
        stored = safetensors.torch.load(content)
    except SafetensorError:
        stored = {}
    if not are_embeddings(stored):
        raise UserError(f"{entry['path']} does not hold the embeddings of a run, though {result.id} refers to it")
    return stored


def are_embeddings(tensors: Mapping[str, Tensor]) -> bool:
    """Points (n, dim), a label of each, and perhaps which of them are queries."""
    if not {"embeddings", "labels"} <= set(tensors) or tensors["embeddings"].ndim != 2:
        return False
    points, labels = tensors["embeddings"], tensors["labels"]
    queries = tensors.get("queries", labels.bool())
    alike = labels.shape == queries.shape == points.shape[:1]
    return alike and points.is_floating_point() and labels.dtype == torch.int64 and queries.dtype == torch.bool
