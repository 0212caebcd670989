"""k-means by Hartigan's criterion against slow loops, and by hand."""

import math

import pytest
import torch

from harness.evaluation import hartigan
from harness.evaluation.clustering import kmeans, mutual_information
from harness.spec.recipes import HARTIGAN
from tests.evaluation.points import inertia, random_points


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
def test_it_stops_where_no_move_of_one_point_lowers_the_inertia(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hartigan, "BLOCK", block)
    monkeypatch.setattr(hartigan, "WORTH", 0.0)
    for seed in range(3):
        x, _ = random_points(seed, n=50)
        labels = kmeans(x, 7, seed, HARTIGAN).tolist()
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
        reported, gained = hartigan.sweep(x, labels, 30, torch.Generator().manual_seed(0), near, short=short)
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
    hartigan.sweep(x, labels, 10, torch.Generator().manual_seed(0), near)
    assert near[:, :3].tolist() == expected  # all points are one block: nothing has moved before they are compared


def test_independent_moves_are_the_best_that_share_no_cluster() -> None:
    gain = torch.tensor([1.0, 5.0, 4.0, -1.0, 3.0])
    source, goal = torch.tensor([0, 1, 2, 6, 4]), torch.tensor([9, 2, 3, 7, 5])
    # 1 -> 2 is the best; 2 -> 3 would touch 2 again; 4 -> 5 and 0 -> 9 are free; 6 -> 7 does not pay
    assert hartigan.independent(gain, source, goal).tolist() == [1, 4, 0]


def test_small_clusters_are_found_where_lloyds_algorithm_stays_where_it_started() -> None:
    """Five points a class in 256 dimensions: each has pulled its centre towards itself, and stays."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 60
    centres = torch.nn.functional.normalize(torch.randn(60, 256, generator=generator), dim=1)
    x = centres[y] + torch.randn(300, 256, generator=generator) * (1.8 / 16)
    found, lloyd = kmeans(x, 60, 0, HARTIGAN), kmeans(x, 60, 0)
    assert inertia(x, found) < 0.97 * inertia(x, lloyd)
    assert mutual_information(y, found) > mutual_information(y, lloyd) + 0.03


@pytest.mark.parametrize("iterations", [1, 2, 5, 20])
@pytest.mark.parametrize("seed", range(4))
def test_lloyd_is_the_textbooks(seed: int, iterations: int) -> None:
    """Every point against every centre, every time, in float64."""
    x, _ = random_points(seed, n=400, classes=40)
    labels = hartigan.nearest(x, x[torch.randperm(400, generator=torch.Generator().manual_seed(seed))[:30]])
    points, expected = x.double(), labels.clone()
    for _ in range(iterations):
        centres = torch.stack([points[expected == c].mean(0) for c in range(30)])
        expected = torch.cdist(points, centres, compute_mode="donot_use_mm_for_euclid_dist").argmin(dim=1)
    hartigan.lloyd(x, labels, 30, iterations)
    assert torch.equal(labels, expected)


def test_a_start_draws_far_points_and_none_twice() -> None:
    """Ten tight, far clusters: drawn one a round, as in k-means++, every one gets its centre."""
    y = torch.arange(10).repeat_interleave(20)
    x = 100 * torch.eye(10)[y] + torch.rand(200, 10, generator=torch.Generator().manual_seed(0))
    for seed in range(5):
        labels = hartigan.start(x, 10, 10, torch.Generator().manual_seed(seed))
        assert mutual_information(y, labels) == pytest.approx(1.0)
        assert len(hartigan.start(x, 200, 7, torch.Generator().manual_seed(seed)).unique()) == 200


def test_kmeans_fills_clusters_that_run_empty() -> None:
    """Three starts on the same point leave two clusters without anyone."""
    x, _ = random_points(6)
    labels = hartigan.nearest(x, x[:1].expand(3, -1))
    assert len(labels.unique()) == 1
    hartigan.lloyd(x, labels, 3, 50)
    assert len(labels.unique()) == 3
