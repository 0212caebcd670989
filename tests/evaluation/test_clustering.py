"""NMI and its recipes against scikit-learn, faiss and by hand."""

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score

from harness.evaluation.clustering import cluster, kmeans, mutual_information, nmi
from harness.spec import UserError
from harness.spec.recipes import FAISS, HARTIGAN, LLOYD, RECIPES, SKLEARN, Recipe, recipe_of, starts
from tests.evaluation.points import inertia, random_points

RECORDS = Path(__file__).parents[2] / "results" / "runs"


@pytest.mark.parametrize("seed", range(5))
def test_mutual_information_equals_scikit_learns(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randint(7, (50,), generator=generator), torch.randint(5, (50,), generator=generator) * 3
    assert mutual_information(a, b) == pytest.approx(normalized_mutual_info_score(a, b), abs=1e-9)


def test_mutual_information_by_hand() -> None:
    a = torch.tensor([0, 0, 1, 1])
    assert mutual_information(a, a * 5) == pytest.approx(1.0)
    assert mutual_information(a, torch.tensor([0, 1, 0, 1])) == pytest.approx(0.0, abs=1e-12)
    # four singletons against two pairs: I = log 2, H = log 2 and log 4, so 2 log 2 / 3 log 2
    assert mutual_information(a, torch.arange(4)) == pytest.approx(2 / 3)


def test_kmeans_finds_separated_clusters() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(12).repeat_interleave(10)
    x = torch.randn(12, 6, generator=generator)[y] * 30 + torch.randn(120, 6, generator=generator)
    assert nmi(x, y, seed=0) == pytest.approx(1.0)


@pytest.mark.parametrize("recipe", [LLOYD, HARTIGAN], ids=lambda recipe: recipe.name)
def test_clusters_do_not_depend_on_where_the_origin_is(recipe: Recipe) -> None:
    """A network that puts everything in one place: clusters lie a thousandth of the embeddings' length apart."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(40).repeat_interleave(10)
    inside = torch.randn(40, 64, generator=generator)[y] + 0.15 * torch.randn(400, 64, generator=generator)
    x = torch.nn.functional.normalize(torch.ones(1, 64) / 8 + 3e-4 * inside / 8)
    found = kmeans(x, 40, 0, recipe)
    centred = kmeans(10 * (x - x.mean(dim=0)), 40, 0, recipe)
    assert inertia(x.double(), found) < 1.2 * inertia(x.double(), centred)
    assert mutual_information(y, found) > 0.9


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_kmeans_repeats_with_its_seed_and_leaves_no_cluster_empty(recipe: Recipe) -> None:
    if recipe is FAISS:
        pytest.importorskip("faiss")
    x, _ = random_points(3)
    first = kmeans(x, 20, 5, recipe)
    assert torch.equal(first, kmeans(x, 20, 5, recipe))
    assert len(first.unique()) == 20


def test_hartigan_is_no_worse_than_scikit_learn() -> None:
    from sklearn.cluster import KMeans

    x, _ = random_points(4, n=400, classes=40)
    found = sum(inertia(x, kmeans(x, 40, seed, HARTIGAN)) for seed in range(5)) / 5
    theirs = sum(KMeans(40, n_init=1, random_state=seed).fit(x.numpy()).inertia_ for seed in range(5)) / 5
    assert found < 1.005 * theirs


@pytest.mark.parametrize("recipe", [LLOYD, SKLEARN], ids=lambda recipe: recipe.name)
def test_two_recipes_are_scikit_learns_kmeans_with_ten_starts(recipe: Recipe) -> None:
    from sklearn.cluster import KMeans

    x, y = random_points(4, n=200, classes=15)
    labels = KMeans(15, n_init=10, random_state=3).fit(x.numpy()).labels_
    expected = normalized_mutual_info_score(y, labels)
    assert nmi(x, y, 3, recipe) == pytest.approx(expected, abs=1e-9)


def test_more_than_a_thousand_clusters_have_one_start() -> None:
    assert [starts(k) for k in (1, 100, 1000, 1001, 11316)] == [10, 10, 10, 1, 1]


def test_faiss_is_faiss() -> None:
    faiss = pytest.importorskip("faiss")
    x, y = random_points(4, n=200, classes=15)
    fitted = faiss.Kmeans(4, 15, niter=20, seed=3, min_points_per_centroid=1, max_points_per_centroid=200)
    fitted.train(x.numpy())
    labels = fitted.index.search(x.numpy(), 1)[1][:, 0]
    assert nmi(x, y, 3, FAISS) == pytest.approx(normalized_mutual_info_score(y, labels), abs=1e-9)


def test_without_faiss_its_recipe_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_faiss(name: str, *arguments: Any) -> Any:
        if name == "faiss":
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without_faiss)
    with pytest.raises(UserError, match=r"faiss is not installed; pip install 'metric-loss-harness\[faiss\]'"):
        kmeans(random_points()[0], 3, 0, FAISS)


def test_every_recipe_reports_before_it_is_done() -> None:
    x, _ = random_points(4, n=200, classes=15)
    for recipe in (LLOYD, HARTIGAN, SKLEARN):
        step = next(iter(cluster(x, 15, 0, recipe)))
        assert step.stage == "cluster"
        assert step.done <= step.total


def test_a_records_recipe_is_read_from_its_conventions() -> None:
    for name, recipe in RECIPES.items():
        assert recipe_of({"NMI": str(recipe), "distance": "any"}) == name
    assert recipe_of({"NMI": "random start, 20 iterations of Lloyd, 1 start, arithmetic mean, seed 0"}) == ""
    assert recipe_of({}) == ""


def test_the_committed_records_are_of_todays_recipes() -> None:
    """`hartigan` was called `ours`. A changed text would make them records of no recipe."""
    records = [json.loads(file.read_text()) for file in RECORDS.glob("*/*/*.json")]
    measured = [record["conventions"] for record in records if "NMI" in record["metrics"]]  # search trials have none
    assert {recipe_of(conventions) for conventions in measured} == {"hartigan", "lloyd"}


def test_as_many_clusters_as_points_is_each_alone_and_more_is_an_error() -> None:
    x, _ = random_points(n=12)
    for recipe in (LLOYD, HARTIGAN):
        assert len(kmeans(x, 12, 0, recipe).unique()) == 12
    with pytest.raises(ValueError, match="13 clusters of 12 points: must be 1 to 12"):
        kmeans(x, 13, seed=0)


def test_kmeans_of_identical_points_ends() -> None:
    """Hartigan's fills every cluster; Lloyd's, like scikit-learn's, leaves all points in one."""
    assert len(kmeans(torch.ones(10, 3), 4, 0, HARTIGAN).unique()) == 4
    assert len(kmeans(torch.ones(10, 3), 4, 0).unique()) == 1
