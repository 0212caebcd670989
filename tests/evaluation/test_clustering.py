"""k-means and NMI against slow loops, scikit-learn and by hand."""

import math
from dataclasses import replace

import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor

from harness.evaluation import clustering
from harness.evaluation.clustering import kmeans, mutual_information, nmi
from harness.evaluation.recipes import FAISS, OURS, RECIPES, SKLEARN, Recipe
from tests.evaluation.points import random_points


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


def inertia(x: Tensor, labels: Tensor) -> float:
    return sum(float((x[labels == c] - x[labels == c].mean(0)).square().sum()) for c in labels.unique())


def test_kmeans_finds_separated_clusters() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(12).repeat_interleave(10)
    x = torch.randn(12, 6, generator=generator)[y] * 30 + torch.randn(120, 6, generator=generator)
    assert nmi(x, y, seed=0) == pytest.approx(1.0)


def slow_gain(rows: list[list[float]], labels: list[int], point: int, goal: int) -> float:
    """By how much the inertia falls when one point moves: both clusters' squares summed before and after."""

    def squares(members: list[int]) -> float:
        if not members:
            return 0.0
        mean = [sum(rows[i][d] for i in members) / len(members) for d in range(len(rows[0]))]
        return sum(math.dist(rows[i], mean) ** 2 for i in members)

    source = [i for i in range(len(rows)) if labels[i] == labels[point]]
    target = [i for i in range(len(rows)) if labels[i] == goal]
    before = squares(source) + squares(target)
    return before - squares([i for i in source if i != point]) - squares([*target, point])


@pytest.mark.parametrize("block", [1, 2**22])
def test_our_kmeans_stops_where_no_move_of_one_point_lowers_the_inertia(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clustering, "BLOCK", block)
    monkeypatch.setattr(clustering, "WORTH", 0.0)
    for seed in range(3):
        x, _ = random_points(seed, n=50)
        labels = kmeans(x, 7, seed).tolist()
        rows = x.double().tolist()
        for point in range(50):
            if labels.count(labels[point]) > 1:
                assert max(slow_gain(rows, labels, point, c) for c in range(7) if c != labels[point]) < 1e-4


@pytest.mark.parametrize("seed", range(4))
def test_a_sweep_lowers_the_inertia_by_what_it_says(seed: int) -> None:
    """Moves of one block touch no cluster twice, so their gains add up."""
    x, _ = random_points(seed, n=400, classes=40)
    labels = torch.randint(30, (400,), generator=torch.Generator().manual_seed(seed))
    before = inertia(x, labels)
    near = torch.zeros(400, 8, dtype=torch.long)
    for short in (False, True, True):
        reported, gained = clustering.sweep(x, labels, 30, torch.Generator().manual_seed(0), near, short=short)
        assert reported == pytest.approx(before, rel=1e-5)
        assert gained > 0
        before -= gained
        assert inertia(x, labels) == pytest.approx(before, rel=1e-5)


def test_a_whole_sweep_leaves_the_clusters_that_a_point_could_join_best() -> None:
    x, _ = random_points(1, n=30)
    labels = torch.arange(30) % 10
    before, near = labels.tolist(), torch.zeros(30, 4, dtype=torch.long)
    rows = x.double().tolist()
    expected = []
    for point in range(30):
        gains = {c: slow_gain(rows, before, point, c) for c in range(10) if c != before[point]}
        expected.append(sorted(gains, key=lambda c, gains=gains: -gains[c])[:3])
    clustering.sweep(x, labels, 10, torch.Generator().manual_seed(0), near)
    assert near[:, :3].tolist() == expected  # all points are one block: nothing has moved before they are compared


def test_independent_moves_are_the_best_that_share_no_cluster() -> None:
    gain = torch.tensor([1.0, 5.0, 4.0, -1.0, 3.0])
    source, goal = torch.tensor([0, 1, 2, 6, 4]), torch.tensor([9, 2, 3, 7, 5])
    # 1 -> 2 is the best; 2 -> 3 would touch 2 again; 4 -> 5 and 0 -> 9 are free; 6 -> 7 does not pay
    assert clustering.independent(gain, source, goal).tolist() == [1, 4, 0]


def test_small_clusters_are_found_where_lloyds_algorithm_stays_where_it_started() -> None:
    """Five points a class in 256 dimensions: each has pulled its centre towards itself, and stays."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 60
    centres = torch.nn.functional.normalize(torch.randn(60, 256, generator=generator), dim=1)
    x = centres[y] + torch.randn(300, 256, generator=generator) * (1.8 / 16)
    ours, lloyd = kmeans(x, 60, 0), kmeans(x, 60, 0, replace(OURS, sweeps=0))
    assert inertia(x, ours) < 0.97 * inertia(x, lloyd)
    assert mutual_information(y, ours) > mutual_information(y, lloyd) + 0.03


@pytest.mark.parametrize("iterations", [1, 2, 5, 20])
@pytest.mark.parametrize("seed", range(4))
def test_lloyd_is_the_textbooks(seed: int, iterations: int) -> None:
    """Every point against every centre, every time, in float64."""
    x, _ = random_points(seed, n=400, classes=40)
    labels = clustering.nearest(x, x[torch.randperm(400, generator=torch.Generator().manual_seed(seed))[:30]])
    points, expected = x.double(), labels.clone()
    for _ in range(iterations):
        centres = torch.stack([points[expected == c].mean(0) for c in range(30)])
        expected = torch.cdist(points, centres, compute_mode="donot_use_mm_for_euclid_dist").argmin(dim=1)
    clustering.lloyd(x, labels, 30, iterations)
    assert torch.equal(labels, expected)


def test_a_start_draws_far_points_and_none_twice() -> None:
    """Ten tight, far clusters: drawn one a round, as in k-means++, every one gets its centre."""
    y = torch.arange(10).repeat_interleave(20)
    x = 100 * torch.eye(10)[y] + torch.rand(200, 10, generator=torch.Generator().manual_seed(0))
    for seed in range(5):
        labels = clustering.start(x, 10, 10, torch.Generator().manual_seed(seed))
        assert mutual_information(y, labels) == pytest.approx(1.0)
        assert len(clustering.start(x, 200, 7, torch.Generator().manual_seed(seed)).unique()) == 200


@pytest.mark.parametrize("recipe", ["ours", "faiss"])
def test_clusters_do_not_depend_on_where_the_origin_is(recipe: str) -> None:
    """A network that puts everything in one place: clusters lie a thousandth of the embeddings' length apart."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(40).repeat_interleave(10)
    inside = torch.randn(40, 64, generator=generator)[y] + 0.15 * torch.randn(400, 64, generator=generator)
    x = torch.nn.functional.normalize(torch.ones(1, 64) / 8 + 3e-4 * inside / 8)
    found = kmeans(x, 40, 0, RECIPES[recipe])
    centred = kmeans(10 * (x - x.mean(dim=0)), 40, 0, RECIPES[recipe])
    assert inertia(x.double(), found) < 1.2 * inertia(x.double(), centred)
    assert mutual_information(y, found) > 0.9


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=str)
def test_kmeans_repeats_with_its_seed_and_leaves_no_cluster_empty(recipe: Recipe) -> None:
    x, _ = random_points(3)
    first = kmeans(x, 20, 5, recipe)
    assert torch.equal(first, kmeans(x, 20, 5, recipe))
    assert len(first.unique()) == 20


def test_kmeans_is_no_worse_than_scikit_learns() -> None:
    from sklearn.cluster import KMeans

    x, _ = random_points(4, n=400, classes=40)
    ours = sum(inertia(x, kmeans(x, 40, seed=s)) for s in range(5)) / 5
    theirs = sum(KMeans(40, n_init=1, random_state=s).fit(x.numpy()).inertia_ for s in range(5)) / 5
    assert ours < 1.005 * theirs


def test_scikit_learns_recipe_is_scikit_learns() -> None:
    from sklearn.cluster import KMeans

    x, y = random_points(4, n=200, classes=15)
    labels = KMeans(15, n_init=1, random_state=3).fit(x.numpy()).labels_
    expected = normalized_mutual_info_score(y, labels)
    assert nmi(x, y, 3, SKLEARN) == pytest.approx(expected, abs=1e-9)


def test_a_recipe_says_how_it_is_made() -> None:
    assert "k-means++ start in 32 rounds" in str(OURS)
    assert str(FAISS) == "random start, 20 iterations of Lloyd, 1 start, arithmetic mean"


def test_kmeans_of_identical_points_ends() -> None:
    for recipe in (OURS, FAISS):
        assert len(kmeans(torch.ones(10, 3), 4, 0, recipe).unique()) == 4


def test_as_many_clusters_as_points_is_each_alone_and_more_is_an_error() -> None:
    x, _ = random_points(n=12)
    assert len(kmeans(x, 12, seed=0).unique()) == 12
    with pytest.raises(ValueError, match="13 clusters of 12 points: must be 1 to 12"):
        kmeans(x, 13, seed=0)


def test_kmeans_fills_clusters_that_run_empty() -> None:
    """Three starts on the same point leave two clusters without anyone."""
    x, _ = random_points(6)
    labels = clustering.nearest(x, x[:1].expand(3, -1))
    assert len(labels.unique()) == 1
    clustering.lloyd(x, labels, 3, 50)
    assert len(labels.unique()) == 3
