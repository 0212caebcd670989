"""Every metric against a slow loop, and by hand."""

import math

import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor

from harness import evaluate


def random_points(seed: int = 0, n: int = 60, classes: int = 9) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=generator)
    centres = torch.randn(classes, 4, generator=generator)
    return centres[y] + torch.randn(n, 4, generator=generator), y


def ranking(x: Tensor, query: int) -> list[int]:
    """Everyone else, nearest first."""
    rows = x.double().tolist()
    others = [i for i in range(len(rows)) if i != query]
    return sorted(others, key=lambda i: math.dist(rows[query], rows[i]))


def slow_recall(x: Tensor, y: Tensor, k: int) -> float:
    hits = sum(any(y[i] == y[q] for i in ranking(x, q)[:k]) for q in range(len(y)))
    return hits / len(y)


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


@pytest.mark.parametrize("chunk", [1, 7, 2**24])
@pytest.mark.parametrize("seed", range(3))
def test_retrieval_equals_the_slow_loops_whatever_the_chunk(
    seed: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = random_points(seed)
    monkeypatch.setattr(evaluate, "CHUNK", chunk * len(x))
    found = evaluate.recall_at_k(x, y, (1, 2, 4, 8))
    assert found == {k: pytest.approx(slow_recall(x, y, k), abs=1e-12) for k in (1, 2, 4, 8)}
    average, precision = slow_map_at_r(x, y)
    assert evaluate.map_at_r(x, y) == pytest.approx(average, abs=1e-12)
    assert evaluate.r_precision(x, y) == pytest.approx(precision, abs=1e-12)


def test_recall_counts_a_query_once_however_many_hits() -> None:
    x = torch.tensor([[0.0], [0.1], [0.2], [5.0]])
    assert evaluate.recall_at_k(x, torch.tensor([0, 0, 0, 1]), (1, 3)) == {1: 0.75, 3: 0.75}


def test_the_query_is_left_out_by_its_index_not_by_its_rank() -> None:
    """Two identical images of different classes: dropping rank 0 could drop the other one and count itself."""
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert evaluate.recall_at_k(x, torch.tensor([0, 1, 0, 1]), (1,)) == {1: 0.0}
    assert evaluate.recall_at_k(x, torch.tensor([0, 0, 1, 1]), (1,)) == {1: 1.0}


def test_a_query_alone_in_its_class_is_a_miss_for_recall_and_no_query_for_map() -> None:
    x = torch.tensor([[0.0], [0.1], [9.0]])
    y = torch.tensor([0, 0, 1])
    assert evaluate.recall_at_k(x, y, (1, 2)) == {1: pytest.approx(2 / 3), 2: pytest.approx(2 / 3)}
    assert evaluate.map_at_r(x, y) == 1.0


def test_k_beyond_the_gallery_sees_everyone() -> None:
    x = torch.tensor([[0.0], [0.1], [9.0]])
    assert evaluate.recall_at_k(x, torch.tensor([0, 1, 0]), (8,)) == {8: pytest.approx(2 / 3)}


def test_map_at_r_by_hand() -> None:
    """A class of 3 (R = 2) at 0, 1 and 3, a stranger at 2.1.

    From 0: 1 right, 2.1 wrong: MAP (1/1) / 2, precision 1/2. From 1: 0 right, 2.1 wrong: the same. From 3: 2.1 wrong,
    1 right: MAP (1/2) / 2, precision 1/2. The stranger, alone in its class, is no query.
    """
    x = torch.tensor([[0.0], [1.0], [2.1], [3.0]])
    y = torch.tensor([0, 0, 1, 0])
    assert evaluate.map_at_r(x, y) == pytest.approx((1 / 2 + 1 / 2 + 1 / 4) / 3)
    assert evaluate.r_precision(x, y) == pytest.approx(1 / 2)


def test_embeddings_that_are_not_finite_are_an_error_that_counts_them() -> None:
    x, y = random_points()
    x[3], x[5, 1] = math.nan, math.inf
    with pytest.raises(FloatingPointError, match="2 of 60"):
        evaluate.metrics(x, y, (1,), seed=0)


def test_labels_of_another_length_are_an_error() -> None:
    with pytest.raises(ValueError, match="60 embeddings but 59 labels"):
        evaluate.recall_at_k(random_points()[0], random_points()[1][:-1], (1,))


@pytest.mark.parametrize("seed", range(5))
def test_mutual_information_equals_scikit_learns(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randint(7, (50,), generator=generator), torch.randint(5, (50,), generator=generator) * 3
    assert evaluate.mutual_information(a, b) == pytest.approx(normalized_mutual_info_score(a, b), abs=1e-9)


def test_mutual_information_by_hand() -> None:
    a = torch.tensor([0, 0, 1, 1])
    assert evaluate.mutual_information(a, a * 5) == pytest.approx(1.0)
    assert evaluate.mutual_information(a, torch.tensor([0, 1, 0, 1])) == pytest.approx(0.0, abs=1e-12)
    # four singletons against two pairs: I = log 2, H = log 2 and log 4, so 2 log 2 / 3 log 2
    assert evaluate.mutual_information(a, torch.arange(4)) == pytest.approx(2 / 3)


def inertia(x: Tensor, labels: Tensor) -> float:
    return sum(float((x[labels == c] - x[labels == c].mean(0)).square().sum()) for c in labels.unique())


def test_kmeans_finds_separated_clusters() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(12).repeat_interleave(10)
    x = torch.randn(12, 6, generator=generator)[y] * 30 + torch.randn(120, 6, generator=generator)
    assert evaluate.nmi(x, y, seed=0) == pytest.approx(1.0)


def test_kmeans_stops_where_no_single_move_to_a_nearer_centre_is_left() -> None:
    x, _ = random_points(2, n=80)
    labels = evaluate.kmeans(x, 7, seed=1)
    centres = torch.stack([x[labels == c].mean(0) for c in range(7)])
    rows, means = x.tolist(), centres.tolist()
    nearest = [min(range(7), key=lambda c, row=row: math.dist(row, means[c])) for row in rows]
    assert labels.tolist() == nearest


def test_kmeans_repeats_with_its_seed_and_leaves_no_cluster_empty() -> None:
    x, _ = random_points(3)
    first = evaluate.kmeans(x, 20, seed=5)
    assert torch.equal(first, evaluate.kmeans(x, 20, seed=5))
    assert len(first.unique()) == 20


def test_kmeans_is_no_worse_than_scikit_learns_by_more_than_a_little() -> None:
    from sklearn.cluster import KMeans

    x, _ = random_points(4, n=200, classes=15)
    ours = sum(inertia(x, evaluate.kmeans(x, 15, seed=s)) for s in range(5)) / 5
    theirs = sum(KMeans(15, n_init=1, random_state=s).fit(x.numpy()).inertia_ for s in range(5)) / 5
    assert ours < 1.05 * theirs


def test_kmeans_of_identical_points_ends() -> None:
    labels = evaluate.kmeans(torch.ones(10, 3), 4, seed=0)
    assert labels.shape == (10,)


def test_kmeans_fills_clusters_that_run_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three starts on the same point leave two clusters without anyone."""
    x, _ = random_points(6)
    monkeypatch.setattr(evaluate, "plus_plus", lambda x, k, generator: torch.zeros(k, dtype=torch.long))
    assert len(evaluate.kmeans(x, 3, seed=0).unique()) == 3
