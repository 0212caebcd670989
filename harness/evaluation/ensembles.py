"""Results made from stored embeddings: ensembles as in the paper, and runs measured again."""

import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from harness.evaluation import metrics
from harness.evaluation.metrics import STORED_DEPTH, fitting, values_of
from harness.evaluation.step import Step
from harness.spec import Measurement, Result, UserError
from harness.spec.recipes import LLOYD, RECIPES
from harness.storage import DamagedError, Storage

Value = TypeVar("Value")


def measure(
    measurement: Measurement,
    runs: Sequence[Result],
    ks: Iterable[int],
    storage: Storage,
    names: Sequence[str] = (),
    device: str | torch.device = "cpu",
) -> Generator[Step, None, Result]:
    """The result of a measurement, given those of its runs. Of an ensemble every metric is the mean over all subsets of
    that size. Their stored test embeddings are joined, and nothing is trained. `names`: of the classes."""
    begun = time.perf_counter()
    stored = [{name: tensor.to(device) for name, tensor in load(run, storage).items()} for run in runs]
    labels, queries = stored[0]["labels"], stored[0].get("queries")
    for run, tensors in zip(runs, stored, strict=True):
        if not tensors["labels"].equal(labels):
            raise UserError(f"{run.id} was measured on other images than {runs[0].id}: they make no ensemble")
    ks = fitting(ks, labels, queries)
    recipe = RECIPES[measurement.recipe] if measurement.recipe else LLOYD
    subsets = list(combinations([tensors["embeddings"] for tensors in stored], measurement.ensemble or 1))
    measured = []
    for number, subset in enumerate(subsets, start=1):
        steps = metrics.measure(join(subset), labels, ks, queries, recipe, depth=STORED_DEPTH)
        measured.append((yield from counted(steps, number, len(subsets))))
    values = values_of([one.scores for one in measured], names or numbered(labels))
    file = values.to_bytes()
    seconds = round(time.perf_counter() - begun, 3)
    return replace(
        runs[0],
        metrics={name: sum(one.metrics[name] for one in measured) / len(measured) for name in measured[0].metrics},
        conventions={**conventions(runs, measurement, len(subsets)), "NMI": str(recipe)},
        curve=(),
        seconds={"evaluate": seconds, "total": seconds},
        parameters=(measurement.ensemble or 1) * runs[0].parameters,
        artifacts={},
        ensemble=measurement.ensemble,
        members=tuple(sorted(run.id for run in runs)),
        recipe=measurement.recipe,
        queries=values.summary(file),
        per_query=file,
    )


def conventions(runs: Sequence[Result], measurement: Measurement, subsets: int) -> dict[str, str]:
    """Those of its runs; an ensemble with a collapsed network says so."""
    stated = dict(runs[0].conventions)
    if measurement.ensemble:
        kind = "raw" if "raw" in stated.get("distance", "") else "unit-length"
        stated |= {name: text for run in runs for name, text in run.conventions.items() if name == "collapsed"}
        stated["ensemble"] = (
            f"{measurement.ensemble} of {len(runs)} networks, mean over {subsets} subsets; {kind} embeddings, "
            "concatenated"
        )
    return stated


def counted(steps: Generator[Step, None, Value], number: int, count: int) -> Generator[Step, None, Value]:
    """The steps of one of several subsets."""
    while True:
        try:
            step = next(steps)
        except StopIteration as end:
            return end.value
        yield replace(step, subset=number, subsets=count)


def check(result: Result, storage: Storage) -> None:
    """A UserError for a result that cannot be measured again."""
    if result.ensemble or result.recipe:
        raise UserError(f"{result.id} has no embeddings of its own: name a single run")
    entry = embeddings_of(result)
    if not entry or not storage.exists(entry["path"]):
        raise missing(result, storage)


def numbered(labels: Tensor) -> list[str]:
    """Names of classes whose own names were not stored."""
    return [f"class {number}" for number in range(int(labels.max()) + 1)]


def join(embeddings: Sequence[Tensor]) -> Tensor:
    """Concatenated: squared distances are the means of the members'. Members of unit length weigh the same, and their
    ensemble is of unit length again; of members that are compared raw, longer ones weigh more."""
    return torch.cat(tuple(embeddings), dim=1) / len(embeddings) ** 0.5


def load(result: Result, storage: Storage) -> dict[str, Tensor]:
    """The stored test embeddings of a final run, their labels and, where queries and gallery are apart, the queries."""
    entry = embeddings_of(result)
    try:
        content = storage.read_artifact(entry)
    except DamagedError as damage:
        raise UserError(
            f"{damage}; to make it again: harness rm {result.id}, then the command that ran {result.trial.name}"
        ) from None
    if content is None:
        raise missing(result, storage)
    try:
        stored = safetensors.torch.load(content)
    except SafetensorError:
        stored = {}
    if not are_embeddings(stored):
        raise UserError(f"{entry['path']} does not hold the embeddings of a run, though {result.id} refers to it")
    return stored


def embeddings_of(result: Result) -> Mapping[str, str]:
    """The reference to the file; empty in records from before it was kept. A UserError for what never has one."""
    entry = result.artifacts.get("embeddings", {})
    if not entry and not result.is_final:
        kind = "a baseline" if result.trial.is_baseline else "a trial on validation classes"
        raise UserError(f"{result.id} is {kind}: only final runs of losses keep embeddings; harness ls runs lists them")
    return entry


def missing(result: Result, storage: Storage) -> UserError:
    return UserError(
        f"the embeddings of {result.trial.name} are not in {storage.title}: name where they are (--storage), or "
        f"make them again: add --rerun to the command that harness show {result.id} prints"
    )


def are_embeddings(tensors: Mapping[str, Tensor]) -> bool:
    """Points (n, dim), a label of each, and perhaps which of them are queries."""
    if not {"embeddings", "labels"} <= set(tensors) or tensors["embeddings"].ndim != 2:
        return False
    points, labels = tensors["embeddings"], tensors["labels"]
    queries = tensors.get("queries", labels.bool())
    alike = labels.shape == queries.shape == points.shape[:1]
    return alike and points.is_floating_point() and labels.dtype == torch.int64 and queries.dtype == torch.bool
