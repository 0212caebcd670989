"""Greedy k-means++ against scikit-learn's, and each potential against a slow loop."""

import math

import pytest
import torch
from sklearn.cluster import kmeans_plusplus
from torch import Tensor

from harness.evaluation import seeding
from harness.spec import finish
from tests.evaluation.points import random_points


@pytest.mark.parametrize("first_count", [1, 4, 10**6], ids=["listed at once", "listed soon", "never listed"])
@pytest.mark.parametrize("tile", [7, 2048])
@pytest.mark.parametrize("seed", range(3))
def test_the_same_random_numbers_choose_scikit_learns_centres(
    seed: int, tile: int, first_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeding, "FIRST_COUNT", first_count)
    monkeypatch.setattr(seeding, "TILE", tile)
    x = random_points(seed, n=200, classes=40)[0].double()
    _, expected = kmeans_plusplus(x.numpy(), 60, random_state=seed)
    found = finish(seeding.seeds(x, 60, seeding.random_numbers(seed, 60, 1)))
    assert found.tolist() == [expected.tolist()]


def test_starts_that_are_found_together_are_those_that_are_found_alone() -> None:
    x = random_points(1, n=200, classes=40)[0].double()
    numbers = seeding.random_numbers(0, 60, 3)
    together = finish(seeding.seeds(x, 60, numbers))
    for start in range(3):
        assert torch.equal(together[start], finish(seeding.seeds(x, 60, numbers[start : start + 1]))[0])
    assert len({tuple(row) for row in together.tolist()}) == 3


def test_lists_that_do_not_fit_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    x = random_points(1, n=200, classes=40)[0].double()
    numbers = seeding.random_numbers(0, 60, 1)
    expected = finish(seeding.seeds(x, 60, numbers))
    monkeypatch.setattr(seeding, "FIRST_COUNT", 2)
    monkeypatch.setattr(seeding, "LISTED", 50)
    monkeypatch.setattr(seeding, "expected_pairs", lambda search: 0)
    assert torch.equal(finish(seeding.seeds(x, 60, numbers)), expected)


def slow_potential(rows: list[list[float]], centres: list[int]) -> float:
    """The sum of squared distances from the nearest centre."""
    return sum(min(math.dist(row, rows[centre]) ** 2 for centre in centres) for row in rows)


def test_the_candidate_with_the_smallest_potential_is_chosen() -> None:
    x = random_points(5, n=50)[0].double()
    rows: list[list[float]] = x.tolist()
    search = seeding.Search.begin(x, torch.tensor([[0.5]]))
    assert search.chosen[0].tolist() == [25]
    centres = [25]
    for candidates in ([3, 9, 41], [7, 7, 12], [30, 2, 18]):
        potentials = [slow_potential(rows, [*centres, candidate]) for candidate in candidates]
        search.add_best(torch.tensor([candidates]))
        centres.append(candidates[potentials.index(min(potentials))])
        assert search.chosen[-1].tolist() == centres[-1:]
        assert float(search.closest.sum()) == pytest.approx(min(potentials))


def slow_pairs(x: Tensor, closest: list[float]) -> set[tuple[int, int]]:
    rows = x.tolist()
    every = range(len(rows))
    return {(i, j) for i in every for j in every if math.dist(rows[i], rows[j]) ** 2 < closest[j]}


def test_the_list_holds_what_is_closer_to_a_point_than_to_its_centre() -> None:
    x = random_points(5, n=50)[0].double()
    search = seeding.Search.begin(x, torch.tensor([[0.5]]))
    search.add_best(torch.tensor([[3, 9, 41]]))
    near = finish(seeding.list_pairs(search))
    assert near is not None
    first = torch.repeat_interleave(torch.arange(50), near.begin.diff())
    pairs = set(zip(first.tolist(), near.other.tolist(), strict=True))
    differences = pairs ^ slow_pairs(x, search.closest[0].tolist())
    centres = {int(centre) for centre in search.chosen}
    assert {first for first, _ in differences} <= centres  # they are as close as the nearest centre, but for rounding
    assert len(pairs) > 500
    assert seeding.expected_pairs(search) == pytest.approx(len(pairs), abs=50)  # 50 points are all counted


def test_a_candidate_is_drawn_in_proportion_to_its_squared_distance() -> None:
    """On a line, at 0, 1, 3 and 0 again, the first being a centre: squares 0, 1, 9, 0, so a tenth draws the point at 1
    and the rest the point at 3."""
    search = seeding.Search.begin(torch.tensor([[0.0], [1.0], [3.0], [0.0]]), torch.tensor([[0.0]]))
    numbers = torch.tensor([[0.01, 0.09, 0.11, 0.5, 0.999]], dtype=torch.float64)
    assert search.draw(numbers).tolist() == [[1, 1, 2, 2, 2]]
