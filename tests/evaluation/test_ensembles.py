"""Ensembles and runs measured again, from stored embeddings."""

import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
import safetensors.torch
import torch
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor

from harness.evaluation import ensembles
from harness.spec import Measurement, Result, UserError, finish
from harness.spec.queries import PerQuery
from harness.spec.recipes import SKLEARN
from harness.storage import Storage
from tests.evaluation.points import random_points
from tests.training.trials import trial


def stored_run(seed: int, embeddings: Tensor, labels: Tensor, storage: Storage, **arrays: Tensor) -> Result:
    """A final run whose embeddings lie in the storage."""
    content = safetensors.torch.save({"embeddings": embeddings, "labels": labels, **arrays})
    return Result(
        trial=trial(seed=seed),
        title="Triplet",
        cite="",
        metrics={"R@1": 0.5, "R@4": 0.75, "MAP@R": 0.25, "RP": 0.25, "NMI": 0.5},
        conventions={"NMI": "some", "distance": "Euclidean on unit-length embeddings"},
        curve=({"epoch": 1, "loss": 1.0},),
        seconds={"train": 10.0, "evaluate": 1.0, "total": 11.0},
        parameters=1000,
        artifacts={"embeddings": storage.write_artifact("embeddings", str(seed), content)},
        provenance={},
    )


def build(runs: list[Result], size: int, ks: tuple[int, ...], storage: Storage) -> Result:
    ensemble = Measurement(runs=tuple(run.trial for run in runs), ensemble=size)
    return finish(ensembles.measure(ensemble, runs, ks, storage))


def measure_again(run: Result, recipe: str, storage: Storage) -> Result:
    return finish(ensembles.measure(Measurement(runs=(run.trial,), recipe=recipe), [run], (1, 4), storage))


def slow_recall_at_1(rows: list[list[float]], labels: list[int], gallery: list[int]) -> float:
    """Of the images that are not in the gallery; of all images among the others, if the gallery is all of them."""
    queries = [i for i in range(len(rows)) if i not in gallery] or list(range(len(rows)))
    hits = 0
    for query in queries:
        others = [i for i in gallery if i != query]
        nearest = min(others, key=lambda i, query=query: (math.dist(rows[query], rows[i]), i))
        hits += labels[nearest] == labels[query]
    return hits / len(queries)


@pytest.mark.parametrize("apart", [False, True], ids=["among the others", "in a gallery"])
def test_an_ensemble_is_the_mean_over_all_subsets_of_joined_embeddings(
    small: Path, tmp_path: Path, apart: bool
) -> None:
    storage, labels = Storage(str(tmp_path / "storage")), random_points()[1]
    networks = [torch.nn.functional.normalize(random_points(seed)[0]) for seed in range(3)]
    arrays = {"queries": torch.arange(60) % 3 == 0} if apart else {}
    gallery = [i for i in range(60) if not apart or i % 3]
    members = [stored_run(seed, x, labels, storage, **arrays) for seed, x in enumerate(networks)]
    ensemble = build(members, 2, (1,), storage)
    expected = [
        slow_recall_at_1(
            [[*a, *b] for a, b in zip(first.tolist(), second.tolist(), strict=True)], labels.tolist(), gallery
        )
        for first, second in combinations(networks, 2)
    ]
    assert ensemble.metrics["R@1"] == pytest.approx(sum(expected) / 3)
    assert ensemble.parameters == 2000
    assert ensemble.members == tuple(sorted(member.id for member in members))
    assert ensemble.id not in {member.id for member in members}
    assert ensemble.conventions["ensemble"].startswith("2 of 3 networks, mean over 3 subsets")
    values = PerQuery.from_bytes(ensemble.per_query)
    assert values.ranks.shape == (3, sum(i not in gallery for i in range(60)) if apart else 60)
    assert values.depth == len(gallery) - (not apart)  # all there are, being fewer than 100
    for metric in ("R@1", "MAP@R", "RP"):
        assert values.values(metric)[values.counts].mean() == pytest.approx(ensemble.metrics[metric], abs=1e-7)


def test_joined_embeddings_are_of_unit_length_again() -> None:
    networks = [torch.nn.functional.normalize(random_points(seed)[0]) for seed in range(3)]
    torch.testing.assert_close(ensembles.join(networks).norm(dim=1), torch.ones(60))


def test_squared_distances_of_an_ensemble_are_its_members_means_also_of_raw_embeddings(
    small: Path, tmp_path: Path
) -> None:
    storage, labels = Storage(str(tmp_path)), random_points()[1]
    raw = [random_points(seed)[0] * (1 + 3 * seed) for seed in range(2)]
    ensemble = build([stored_run(seed, x, labels, storage) for seed, x in enumerate(raw)], 2, (1,), storage)
    recalls = []
    for members in (raw, [torch.nn.functional.normalize(x) for x in raw]):
        hits = 0
        for query in range(60):
            means = [sum(math.dist(x[query].tolist(), x[i].tolist()) ** 2 for x in members) / 2 for i in range(60)]
            nearest = min((i for i in range(60) if i != query), key=means.__getitem__)
            hits += int(labels[nearest] == labels[query])
        recalls.append(hits / 60)
    assert ensemble.metrics["R@1"] == pytest.approx(recalls[0])
    assert recalls[0] != recalls[1]


def test_images_that_differ_in_length_alone_are_clusters_of_a_raw_ensemble(small: Path, tmp_path: Path) -> None:
    """The lengths of a member tell two groups apart, those of both members four."""
    storage, group = Storage(str(tmp_path)), torch.arange(40) % 4
    labels = torch.cat([group[:30], group[:10].flip(0)])  # partly other than the groups
    direction = torch.nn.functional.normalize(random_points()[0][:1])
    lengths = [1 + group // 2 + torch.arange(40) / 4000, 10 + 5 * (group % 2) + torch.arange(40) / 4000]
    members = [stored_run(seed, x[:, None] * direction, labels, storage) for seed, x in enumerate(lengths)]
    found = build(members, 2, (1,), storage).metrics["NMI"]
    assert found == pytest.approx(normalized_mutual_info_score(labels, group))
    assert 0.2 < found < 0.9


def test_a_run_measured_again_has_the_same_retrieval_metrics_and_states_its_recipe(small: Path, tmp_path: Path) -> None:
    storage, (x, labels) = Storage(str(tmp_path / "storage")), random_points()
    first = measure_again(stored_run(0, x, labels, storage), "lloyd", storage)
    second = measure_again(stored_run(0, x, labels, storage), "sklearn", storage)
    assert set(first.metrics) == {"R@1", "R@4", "MAP@R", "RP", "NMI"}  # the K's that the run has
    for name in ("R@1", "R@4", "MAP@R", "RP"):
        assert first.metrics[name] == second.metrics[name]
    assert second.conventions["NMI"] == str(SKLEARN)
    assert (second.recipe, second.members) == ("sklearn", (trial(seed=0).id,))


def test_what_has_no_embeddings_is_refused(small: Path, tmp_path: Path) -> None:
    storage, (x, labels) = Storage(str(tmp_path / "storage")), random_points()
    run = stored_run(0, x, labels, storage)
    with pytest.raises(UserError, match="has no embeddings of its own: name a single run"):
        ensembles.check(replace(run, ensemble=2, members=("a", "b")), storage)
    name = run.artifacts["embeddings"]["path"]
    storage.write(name, b"flipped")
    with pytest.raises(UserError, match=rf"^{name} is damaged: .*; to make it again: harness rm {run.id}"):
        ensembles.load(run, storage)
    storage.remove(name)
    with pytest.raises(UserError, match=r"the embeddings of .* are not in"):
        ensembles.load(run, storage)


def test_an_ensemble_on_few_images_leaves_out_the_ks_that_do_not_fit(small: Path, tmp_path: Path) -> None:
    storage, labels = Storage(str(tmp_path / "storage")), torch.tensor([0, 0, 1, 1, 2])
    points = [torch.nn.functional.normalize(random_points(seed)[0][:5]) for seed in range(2)]
    members = [stored_run(seed, x, labels, storage) for seed, x in enumerate(points)]
    assert set(build(members, 2, (1, 4, 5, 8), storage).metrics) == {"R@1", "R@4", "MAP@R", "RP", "NMI"}
    apart = {"queries": torch.tensor([True, False, True, False, False])}
    members = [stored_run(seed, x, labels, storage, **apart) for seed, x in enumerate(points)]
    assert set(build(members, 2, (1, 3, 4), storage).metrics) == {"R@1", "R@3", "MAP@R", "RP", "NMI"}


def test_members_that_were_measured_on_other_images_make_no_ensemble(small: Path, tmp_path: Path) -> None:
    storage, (x, labels) = Storage(str(tmp_path / "storage")), random_points()
    members = [stored_run(0, x, labels, storage), stored_run(1, x[:40], labels[:40], storage)]
    with pytest.raises(UserError, match="was measured on other images than"):
        build(members, 2, (1,), storage)


X, LABELS = random_points()
FOREIGN = {
    "weights": {"head.weight": X},
    "points without labels": {"embeddings": X},
    "points of one dimension": {"embeddings": X[:, 0].contiguous(), "labels": LABELS},
    "too few labels": {"embeddings": X, "labels": LABELS[1:]},
    "labels that are fractions": {"embeddings": X, "labels": LABELS.float()},
    "points that are integers": {"embeddings": X.long(), "labels": LABELS},
    "queries of another length": {"embeddings": X, "labels": LABELS, "queries": LABELS[1:] > 0},
}


@pytest.mark.parametrize("content", [*FOREIGN.values(), None], ids=[*FOREIGN, "no tensors at all"])
def test_a_foreign_file_with_the_right_checksum_is_refused(
    small: Path, tmp_path: Path, content: dict[str, Tensor] | None
) -> None:
    storage = Storage(str(tmp_path / "storage"))
    run = stored_run(0, X, LABELS, storage)
    foreign = (
        b"no tensors" if content is None else safetensors.torch.save({k: v.contiguous() for k, v in content.items()})
    )
    run = replace(run, artifacts={"embeddings": storage.write_artifact("embeddings", "foreign", foreign)})
    with pytest.raises(UserError, match=r"foreign-.* does not hold the embeddings of a run"):
        ensembles.load(run, storage)
