"""What is made of stored embeddings: ensembles as in the paper, and metrics measured again."""

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import safetensors.torch
import torch
from torch import Tensor

from harness.evaluation import metrics as evaluate
from harness.evaluation.clustering import KMEANS_SEED, RECIPES
from harness.spec import Result, UserError
from harness.storage import Storage


def build(members: Sequence[Result], size: int, ks: tuple[int, ...], storage: Storage) -> Result:
    """`size` of these final runs, which differ in their seed only; the mean over all subsets of that size.

    Nothing is trained: the members' stored test embeddings are joined.
    """
    begun = time.perf_counter()
    loaded = [load(member, storage) for member in members]
    labels = loaded[0]["labels"]
    subsets = list(combinations([one["embeddings"] for one in loaded], size))
    queries = loaded[0].get("queries")
    found = [evaluate.metrics(join(subset), labels, ks, KMEANS_SEED, queries) for subset in subsets]
    first = members[0]
    how = f"{size} of {len(members)} networks, mean over {len(subsets)} subsets; unit-length embeddings, concatenated"
    return Result(
        trial=first.trial,
        title=first.title,
        cite=first.cite,
        metrics={name: sum(one[name] for one in found) / len(found) for name in found[0]},
        conventions={**first.conventions, "NMI": f"{evaluate.OURS}, seed {KMEANS_SEED}", "ensemble": how},
        curve=(),
        seconds={"evaluate": (spent := round(time.perf_counter() - begun, 3)), "total": spent},
        parameters=size * first.parameters,
        artifacts={},
        provenance=first.provenance,
        ensemble=size,
        members=tuple(sorted(member.id for member in members)),
    )


def measure_again(one: Result, recipe: str, storage: Storage) -> Result:
    """A stored run's metrics from its embeddings, NMI by another recipe: a record of its own."""
    if one.ensemble or one.recipe:
        raise UserError(f"{one.id} has no embeddings of its own: name a single run")
    begun = time.perf_counter()
    loaded = load(one, storage)
    ks = tuple(int(name[2:]) for name in one.metrics if name.startswith("R@"))
    how = RECIPES[recipe]
    found = evaluate.metrics(loaded["embeddings"], loaded["labels"], ks, KMEANS_SEED, loaded.get("queries"), how)
    spent = round(time.perf_counter() - begun, 3)
    return replace(
        one,
        metrics=found,
        conventions={**one.conventions, "NMI": f"{how}, seed {KMEANS_SEED}"},
        curve=(),
        seconds={"evaluate": spent, "total": spent},
        artifacts={},
        members=(one.id,),
        recipe=recipe,
    )


def join(embeddings: Sequence[Tensor]) -> Tensor:
    """Concatenated, and of unit length again: every member weighs the same."""
    return torch.cat(tuple(embeddings), dim=1) / len(embeddings) ** 0.5


def load(member: Result, storage: Storage) -> dict[str, Tensor]:
    content = storage.read_artifact(member.artifacts.get("embeddings", {}))
    if content is None:
        raise UserError(
            f"the embeddings of {member.trial.name} are not in {storage.uri}: --storage where they are, or --rerun"
        )
    return safetensors.torch.load(content)
