"""Every retrieval metric against a slow loop, and by hand."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from harness.evaluation import metrics, neighbours
from harness.evaluation.metrics import per_query, retrieval, summarise
from harness.spec import finish
from tests.evaluation.points import random_points


def recall(x: Tensor, y: Tensor, ks: Sequence[int]) -> dict[int, float]:
    found = retrieval(x, y, ks)
    return {k: found[f"R@{k}"] for k in ks}


def ranking(x: Tensor, query: int) -> list[int]:
    """Everyone else, nearest first; equally near ones by their index."""
    rows = x.double().tolist()
    others = [i for i in range(len(rows)) if i != query]
    return sorted(others, key=lambda i: (math.dist(rows[query], rows[i]), i))


def slow_recall(x: Tensor, y: Tensor, k: int) -> float:
    queries = [q for q in range(len(y)) if any(y[i] == y[q] for i in range(len(y)) if i != q)]
    hits = sum(any(y[i] == y[q] for i in ranking(x, q)[:k]) for q in queries)
    return hits / len(queries)


def slow_map_at_r(x: Tensor, y: Tensor) -> tuple[float, float]:
    """MAP@R and R-precision, query by query."""
    averages, precisions = [], []
    for q in range(len(y)):
        R = sum(int(y[i] == y[q]) for i in range(len(y))) - 1
        if R == 0:
            continue
        right = [bool(y[i] == y[q]) for i in ranking(x, q)[:R]]
        averages.append(sum(sum(right[: i + 1]) / (i + 1) for i in range(R) if right[i]) / R)
        precisions.append(sum(right) / R)
    return sum(averages) / len(averages), sum(precisions) / len(precisions)


@pytest.mark.parametrize("entries", [4, 100, 1000, 2**24])
@pytest.mark.parametrize("seed", range(3))
def test_retrieval_equals_the_slow_loops_whatever_the_tile(
    seed: int, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = random_points(seed)
    monkeypatch.setitem(neighbours.TILE, "cpu", entries)
    monkeypatch.setattr(neighbours, "GROUP", 1 + seed)  # groups also where there are few neighbours
    found = recall(x, y, (1, 2, 4, 8))
    assert found == {k: pytest.approx(slow_recall(x, y, k), abs=1e-12) for k in (1, 2, 4, 8)}
    average, precision = slow_map_at_r(x, y)
    assert retrieval(x, y, ())["MAP@R"] == pytest.approx(average, abs=1e-12)
    assert retrieval(x, y, ())["RP"] == pytest.approx(precision, abs=1e-12)


def test_recall_counts_a_query_once_however_many_hits() -> None:
    x = torch.tensor([[0.0], [0.1], [0.2], [5.0], [-9.0]])
    assert recall(x, torch.tensor([0, 0, 0, 1, 1]), (1, 3)) == {1: 0.6, 3: 0.6}


def test_a_query_without_a_match_in_the_gallery_counts_for_nothing() -> None:
    """The third image is alone in its class: no network could find its like. Of the other four, only 0.4 has a wrong
    nearest neighbour."""
    x = torch.tensor([[0.0], [0.1], [0.3], [0.4], [9.0]])
    y = torch.tensor([0, 0, 2, 1, 1])
    assert retrieval(x, y, (1,)) == {"R@1": 3 / 4, "MAP@R": 3 / 4, "RP": 3 / 4}
    values = metrics.values_of([per_query(x, y, (1,))], ["a", "b", "c"])
    assert values.summary() == {"count": 5, "without_match": 1}
    assert values.counts.tolist() == [True, True, False, True, True]


def test_the_query_is_left_out_by_its_index_not_by_its_rank() -> None:
    """Two identical images of different classes: dropping rank 0 could drop the other one and count itself."""
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert recall(x, torch.tensor([0, 1, 0, 1]), (1,)) == {1: 0.0}
    assert recall(x, torch.tensor([0, 0, 1, 1]), (1,)) == {1: 1.0}


@pytest.mark.parametrize("k", [0, 3, 8])
def test_k_beyond_the_gallery_is_an_error(k: int) -> None:
    x = torch.tensor([[0.0], [0.1], [9.0]])
    with pytest.raises(ValueError, match=rf"Recall@{k}: K must be 1 to 2, the number of images a query is compared"):
        recall(x, torch.tensor([0, 1, 0]), (k,))


def test_a_single_class_is_an_error() -> None:
    with pytest.raises(ValueError, match="all images are of one class"):
        finish(metrics.measure(torch.eye(5), torch.zeros(5, dtype=torch.long), (1,)))


def test_identical_images_are_ranked_by_their_index() -> None:
    """Five images at one place. From the first: 1 (right), 2, 3, 4; from the last: 0, 1, 2, 3."""
    x, y = torch.ones(5, 3), torch.tensor([0, 0, 1, 1, 0])
    # first right neighbours, in index order: 0->1, 1->0, 2->3 (after 0, 1), 3->2 (after 0, 1), 4->0
    assert recall(x, y, (1, 2, 3)) == {1: 3 / 5, 2: 3 / 5, 3: 1.0}


@pytest.mark.parametrize("classes", [2, 5, 30, 40, 50])  # many classes: few neighbours count, and ties go on behind
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_points_on_a_grid_full_of_ties_are_ranked_as_in_the_loop(classes: int, offset: float) -> None:
    """Integer coordinates: squared distances are whole numbers, most of them shared by many; far from the origin
    float32 products cannot tell near ones apart."""
    generator = torch.Generator().manual_seed(classes)
    x = torch.randint(4, (90, 3), generator=generator).float() + offset
    y = torch.randint(classes, (90,), generator=generator)
    assert recall(x, y, (1, 2, 4, 8)) == {k: slow_recall(x, y, k) for k in (1, 2, 4, 8)}
    average, precision = slow_map_at_r(x, y)
    assert retrieval(x, y, ())["MAP@R"] == pytest.approx(average, abs=1e-12)
    assert retrieval(x, y, ())["RP"] == pytest.approx(precision, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_near_ties_that_a_float32_product_gets_wrong_are_ranked_by_float64(seed: int) -> None:
    """Unit vectors a hair apart: neighbours differ by less than the rounding error of a product."""
    generator = torch.Generator().manual_seed(seed)
    base = torch.nn.functional.normalize(torch.randn(1, 64, generator=generator), dim=1)
    x = torch.nn.functional.normalize(base + 2e-4 * torch.randn(80, 64, generator=generator), dim=1)
    y = torch.randint(6, (80,), generator=generator)
    assert recall(x, y, (1, 2, 4)) == {k: slow_recall(x, y, k) for k in (1, 2, 4)}
    assert retrieval(x, y, ())["MAP@R"] == pytest.approx(slow_map_at_r(x, y)[0], abs=1e-12)


@dataclass
class SlowScore:
    """Of one query: its first correct rank from 1 on (None: there is none), R, precision and average precision at R."""

    first: int | None
    R: int
    precision: float
    average_precision: float


def slow_score(x: Tensor, y: Tensor, query: int, gallery: list[int]) -> SlowScore:
    rows = x.double().tolist()
    order = sorted(gallery, key=lambda i: (math.dist(rows[query], rows[i]), i))
    correct = [bool(y[i] == y[query]) for i in order]
    R = sum(correct)
    first = correct.index(True) + 1 if R else None
    average = sum(sum(correct[: i + 1]) / (i + 1) for i in range(R) if correct[i])
    return SlowScore(first, R, sum(correct[:R]) / max(R, 1), average / max(R, 1))


@pytest.mark.parametrize("apart", [False, True], ids=["among the others", "in a gallery"])
@pytest.mark.parametrize("seed", range(3))
def test_each_query_has_the_values_of_the_slow_loop(seed: int, apart: bool) -> None:
    x, y = random_points(seed, n=40, classes=14)
    y = y * 10 + 3  # classes need not be numbered from 0
    y[7] = 1000  # a query without a match
    queries = torch.rand(40, generator=torch.Generator().manual_seed(seed)) < 0.4 if apart else None
    if queries is not None:
        queries[7] = True
    numbers = list(range(40)) if queries is None else queries.nonzero().flatten().tolist()
    scores = per_query(x, y, (1, 5), queries)
    assert scores.classes.tolist() == y[numbers].tolist()
    assert scores.depth == max(5, int(scores.R.max()))
    for row, query in enumerate(numbers):
        gallery = [i for i in range(40) if (i not in numbers if apart else i != query)]
        expected = slow_score(x, y, query, gallery)
        found = expected.first is not None and expected.first <= scores.depth
        assert scores.first_correct[row] == (expected.first if found else scores.depth + 1)
        assert scores.R[row] == expected.R
        assert scores.precision[row] == pytest.approx(expected.precision, abs=1e-12)
        assert scores.average_precision[row] == pytest.approx(expected.average_precision, abs=1e-12)
    assert scores.R[numbers.index(7)] == 0


def test_the_metrics_are_means_of_the_queries_values() -> None:
    """Four queries by hand: the first is right at once, the second at rank 3, the third not among the ranked ones. The
    fourth has no match in the gallery, and counts for nothing."""
    scores = metrics.Scores(
        classes=torch.tensor([0, 0, 1, 2]),
        first_correct=torch.tensor([1, 3, 6, 6]),
        R=torch.tensor([2, 2, 1, 0]),
        precision=torch.tensor([1.0, 0.5, 0.0, 0.0], dtype=torch.float64),
        average_precision=torch.tensor([1.0, 0.25, 0.0, 0.0], dtype=torch.float64),
        depth=5,
    )
    expected = {"R@1": 1 / 3, "R@3": 2 / 3, "R@5": 2 / 3, "MAP@R": 1.25 / 3, "RP": 1.5 / 3}
    assert summarise(scores, (1, 3, 5)) == pytest.approx(expected)
    with pytest.raises(ValueError, match="Recall@6: only 5 neighbours were ranked"):
        summarise(scores, (1, 6))


@pytest.mark.parametrize("seed", range(3))
def test_queries_and_gallery_apart_equal_the_loop(seed: int) -> None:
    x, y = random_points(seed)
    queries = torch.rand(len(y), generator=torch.Generator().manual_seed(seed)) < 0.4
    gallery = (~queries).nonzero().flatten().tolist()
    slow = [slow_score(x, y, query, gallery) for query in queries.nonzero().flatten().tolist()]
    found = retrieval(x, y, (1, 5), queries)
    answerable = [score for score in slow if score.first is not None]
    for k in (1, 5):
        assert found[f"R@{k}"] == sum(score.first <= k for score in answerable) / len(answerable)
    average = sum(score.average_precision for score in answerable) / len(answerable)
    assert found["MAP@R"] == pytest.approx(average, abs=1e-12)


def test_queries_without_a_gallery_are_an_error() -> None:
    x, y = random_points()
    with pytest.raises(ValueError, match="60 queries and 0 images in the gallery"):
        retrieval(x, y, (1,), torch.ones(60, dtype=torch.bool))


def test_equals_pytorch_metric_learnings_numbers() -> None:
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    from pytorch_metric_learning.utils.inference import CustomKNN

    x, y = random_points(5, n=200, classes=20)
    names = ("precision_at_1", "mean_average_precision_at_r", "r_precision")
    knn = CustomKNN(LpDistance(normalize_embeddings=False))
    theirs = AccuracyCalculator(include=names, k="max_bin_count", knn_func=knn).get_accuracy(x, y)
    assert retrieval(x, y, (1,))["R@1"] == pytest.approx(theirs["precision_at_1"], abs=1e-6)
    assert retrieval(x, y, ())["MAP@R"] == pytest.approx(theirs["mean_average_precision_at_r"], abs=1e-6)
    assert retrieval(x, y, ())["RP"] == pytest.approx(theirs["r_precision"], abs=1e-6)


def test_near_ties_stay_rare_where_a_network_has_put_everything_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Embeddings that hardly differ are ranked around their middle: no row needs the whole gallery in float64."""
    generator = torch.Generator().manual_seed(0)
    base = torch.nn.functional.normalize(torch.randn(1, 32, generator=generator), dim=1)
    x = torch.nn.functional.normalize(base + 1e-3 * torch.randn(100, 32, generator=generator), dim=1)
    y = torch.randint(9, (100,), generator=generator)
    expected = {k: slow_recall(x, y, k) for k in (1, 4)}
    monkeypatch.setattr(metrics, "TieBreaker", lambda tiles, depth: None)
    assert recall(x, y, (1, 4)) == expected


def test_map_at_r_by_hand() -> None:
    """A class of 3 (R = 2) at 0, 1 and 3, a stranger at 2.1.

    From 0: 1 right, 2.1 wrong: MAP (1/1) / 2, precision 1/2. From 1: 0 right, 2.1 wrong: the same. From 3: 2.1 wrong,
    1 right: MAP (1/2) / 2, precision 1/2. The stranger, alone in its class, is no query.
    """
    x = torch.tensor([[0.0], [1.0], [2.1], [3.0]])
    y = torch.tensor([0, 0, 1, 0])
    assert retrieval(x, y, ())["MAP@R"] == pytest.approx((1 / 2 + 1 / 2 + 1 / 4) / 3)
    assert retrieval(x, y, ())["RP"] == pytest.approx(1 / 2)


def test_embeddings_that_are_not_finite_are_an_error_that_counts_them() -> None:
    x, y = random_points()
    x[3], x[5, 1] = math.nan, math.inf
    with pytest.raises(FloatingPointError, match="2 of 60"):
        finish(metrics.measure(x, y, (1,)))


@pytest.mark.parametrize("factor", [1e19, 1e-22])
def test_numbers_whose_squares_are_none_are_an_error(factor: float) -> None:
    x, y = random_points()
    with pytest.raises(ValueError, match="must be within 1e-15 and 1e15"):
        recall(x * factor, y, (1,))
    recall(torch.zeros_like(x), y, (1,))  # a dead network is allowed


def test_labels_of_another_length_are_an_error() -> None:
    with pytest.raises(ValueError, match="60 embeddings but 59 labels"):
        recall(random_points()[0], random_points()[1][:-1], (1,))
