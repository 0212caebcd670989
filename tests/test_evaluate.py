"""Every metric against a slow loop, and by hand."""

import math
from dataclasses import replace

import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor

from harness import clustering, evaluate


def random_points(seed: int = 0, n: int = 60, classes: int = 9) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=generator)
    centres = torch.randn(classes, 4, generator=generator)
    return centres[y] + torch.randn(n, 4, generator=generator), y


def ranking(x: Tensor, query: int) -> list[int]:
    """Everyone else, nearest first; equally near ones by their index."""
    rows = x.double().tolist()
    others = [i for i in range(len(rows)) if i != query]
    return sorted(others, key=lambda i: (math.dist(rows[query], rows[i]), i))


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
    monkeypatch.setattr(evaluate, "GROUP", 1 + seed)  # groups also where there are few neighbours
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


@pytest.mark.parametrize("k", [0, 3, 8])
def test_k_beyond_the_gallery_is_an_error(k: int) -> None:
    x = torch.tensor([[0.0], [0.1], [9.0]])
    with pytest.raises(ValueError, match=rf"Recall@{k}: allowed is 1 to 2, the number of images a query is compared"):
        evaluate.recall_at_k(x, torch.tensor([0, 1, 0]), (k,))


def test_a_single_class_is_an_error() -> None:
    with pytest.raises(ValueError, match="all images are of one class"):
        evaluate.metrics(torch.randn(5, 3), torch.zeros(5, dtype=torch.long), (1,), seed=0)


# --- ties ---


def test_identical_images_are_ranked_by_their_index() -> None:
    """Five images at one place. From the first: 1 (right), 2, 3, 4; from the last: 0, 1, 2, 3."""
    x, y = torch.ones(5, 3), torch.tensor([0, 0, 1, 1, 0])
    # first right neighbours, in index order: 0->1, 1->0, 2->3 (after 0, 1), 3->2 (after 0, 1), 4->0
    assert evaluate.recall_at_k(x, y, (1, 2, 3)) == {1: 3 / 5, 2: 3 / 5, 3: 1.0}


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_points_on_a_grid_full_of_ties_are_ranked_as_in_the_loop(classes: int, offset: float) -> None:
    """Integer coordinates: squared distances are whole numbers, most of them shared by many; far from the origin
    float32 products cannot tell near ones apart."""
    generator = torch.Generator().manual_seed(classes)
    x = torch.randint(4, (90, 3), generator=generator).float() + offset
    y = torch.randint(classes, (90,), generator=generator)
    assert evaluate.recall_at_k(x, y, (1, 2, 4, 8)) == {k: slow_recall(x, y, k) for k in (1, 2, 4, 8)}
    average, precision = slow_map_at_r(x, y)
    assert evaluate.map_at_r(x, y) == pytest.approx(average, abs=1e-12)
    assert evaluate.r_precision(x, y) == pytest.approx(precision, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_near_ties_that_a_float32_product_gets_wrong_are_ranked_by_float64(seed: int) -> None:
    """Unit vectors a hair apart: neighbours differ by less than the rounding error of a product."""
    generator = torch.Generator().manual_seed(seed)
    base = torch.nn.functional.normalize(torch.randn(1, 64, generator=generator), dim=1)
    x = torch.nn.functional.normalize(base + 2e-4 * torch.randn(80, 64, generator=generator), dim=1)
    y = torch.randint(6, (80,), generator=generator)
    assert evaluate.recall_at_k(x, y, (1, 2, 4)) == {k: slow_recall(x, y, k) for k in (1, 2, 4)}
    assert evaluate.map_at_r(x, y) == pytest.approx(slow_map_at_r(x, y)[0], abs=1e-12)


# --- queries and gallery apart ---


@pytest.mark.parametrize("seed", range(3))
def test_queries_and_gallery_apart_equal_the_loop(seed: int) -> None:
    x, y = random_points(seed)
    queries = torch.rand(len(y), generator=torch.Generator().manual_seed(seed)) < 0.4
    asked, shown = queries.nonzero().flatten().tolist(), (~queries).nonzero().flatten().tolist()
    rows = x.double().tolist()
    hits, averages = {1: 0, 5: 0}, []
    for q in asked:
        order = sorted(shown, key=lambda i, q=q: (math.dist(rows[q], rows[i]), i))
        right = [bool(y[i] == y[q]) for i in order]
        for k in hits:
            hits[k] += any(right[:k])
        R = sum(right)
        if R:
            averages.append(sum(sum(right[: i + 1]) / (i + 1) for i in range(R) if right[i]) / R)
    found = evaluate.retrieval(x, y, (1, 5), queries)
    assert found["R@1"] == hits[1] / len(asked)
    assert found["R@5"] == hits[5] / len(asked)
    assert found["MAP@R"] == pytest.approx(sum(averages) / len(averages), abs=1e-12)


def test_queries_without_a_gallery_are_an_error() -> None:
    x, y = random_points()
    with pytest.raises(ValueError, match="60 queries and 0 images in the gallery"):
        evaluate.retrieval(x, y, (1,), torch.ones(60, dtype=torch.bool))


# --- against pytorch-metric-learning ---


def test_equals_pytorch_metric_learnings_numbers() -> None:
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    from pytorch_metric_learning.utils.inference import CustomKNN

    x, y = random_points(5, n=200, classes=20)
    names = ("precision_at_1", "mean_average_precision_at_r", "r_precision")
    knn = CustomKNN(LpDistance(normalize_embeddings=False))
    theirs = AccuracyCalculator(include=names, k="max_bin_count", knn_func=knn).get_accuracy(x, y)
    assert evaluate.precision_at_1(x, y) == pytest.approx(theirs["precision_at_1"], abs=1e-6)
    assert evaluate.map_at_r(x, y) == pytest.approx(theirs["mean_average_precision_at_r"], abs=1e-6)
    assert evaluate.r_precision(x, y) == pytest.approx(theirs["r_precision"], abs=1e-6)


def test_the_largest_of_a_row_are_found_through_their_groups() -> None:
    generator = torch.Generator().manual_seed(0)
    for n in (100, 1000, 1003):
        block = torch.randn(6, n, generator=generator)
        values, columns = evaluate.largest_of(block, 9)
        expected = block.topk(9, dim=1)
        assert torch.equal(values, expected.values)
        assert torch.equal(columns, expected.indices)


def test_a_chunk_fits_the_memory_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(1, 4)
    assert evaluate.chunk(1000, x) == evaluate.CHUNK // 1000
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_AVPHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}[name])
    assert evaluate.chunk(1000, x) == 4096 * 1000 // 8 // 4 // 1000
    assert evaluate.chunk(10**9, x) == 1


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


@pytest.mark.parametrize("recipe", ["ours", "faiss"])
@pytest.mark.parametrize("block", [1, 2**25])
def test_kmeans_stops_where_no_single_move_to_a_nearer_centre_is_left(
    recipe: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bounds skip work, never a move."""
    monkeypatch.setattr(clustering, "BLOCK", block)
    for seed in range(6):
        x, _ = random_points(seed, n=80)
        labels = evaluate.kmeans(x, 7, seed, replace(clustering.RECIPES[recipe], iterations=100))
        centres = torch.stack([x[labels == c].mean(0) for c in range(7)])
        rows, means = x.tolist(), centres.tolist()
        nearest = [min(range(7), key=lambda c, row=row: math.dist(row, means[c])) for row in rows]
        assert labels.tolist() == nearest


def plain_lloyd(x: Tensor, centres: Tensor, iterations: int) -> Tensor:
    """The textbook's: every point against every centre, every time, in float64."""
    x, centres = x.double(), centres.double()
    for _ in range(iterations):
        labels = torch.cdist(x, centres, compute_mode="donot_use_mm_for_euclid_dist").argmin(dim=1)
        centres = torch.stack([x[labels == c].mean(0) for c in range(len(centres))])
    return torch.cdist(x, centres, compute_mode="donot_use_mm_for_euclid_dist").argmin(dim=1)


@pytest.mark.parametrize("iterations", [1, 2, 5, 20])
@pytest.mark.parametrize("seed", range(4))
def test_skipping_what_did_not_move_changes_no_iteration(seed: int, iterations: int) -> None:
    x, _ = random_points(seed, n=400, classes=40)
    centres = x[torch.randperm(400, generator=torch.Generator().manual_seed(seed))[:30]]
    at = clustering.assign_all(x, centres)
    changed = torch.ones(30, dtype=torch.bool)
    clustering.lloyd(x, centres.clone(), at, changed, iterations)
    assert torch.equal(at.centre, plain_lloyd(x, centres, iterations))


def test_the_bounds_hold_after_every_iteration() -> None:
    x, _ = random_points(7, n=300, classes=30)
    centres, at = clustering.start(x, 25, 4, torch.Generator().manual_seed(0))
    changed = torch.ones(25, dtype=torch.bool)
    for _ in range(8):
        clustering.lloyd(x, centres, at, changed, 1)
        scores = x @ centres.T - centres.square().sum(dim=1) / 2
        torch.testing.assert_close(at.score, scores.gather(1, at.centre[:, None]).squeeze(1))
        others = scores.scatter(1, at.centre[:, None], -math.inf).amax(dim=1)
        assert (at.others >= others - 1e-4).all()


def test_a_start_draws_far_points_and_none_twice() -> None:
    """Ten tight, far clusters: drawn one a round, as in k-means++, every one gets its centre."""
    y = torch.arange(10).repeat_interleave(20)
    x = 100 * torch.eye(10)[y] + torch.rand(200, 10, generator=torch.Generator().manual_seed(0))
    for seed in range(5):
        centres, at = clustering.start(x, 10, 10, torch.Generator().manual_seed(seed))
        assert len(centres.unique(dim=0)) == 10
        assert sorted((centres / 100).round().argmax(dim=1).tolist()) == list(range(10))
        assert torch.equal(at.centre, clustering.assign_all(x, centres).centre)


def test_merges_and_splits_find_what_a_bad_start_misses() -> None:
    """Two centres in one cluster and none in another: Lloyd's algorithm alone stays there."""
    y = torch.arange(8).repeat_interleave(10)
    x = 50 * torch.eye(8)[y] + torch.rand(80, 8, generator=torch.Generator().manual_seed(0))
    starts = torch.tensor([0, 5, 10, 20, 30, 40, 50, 60])  # none of the last cluster, two of the first
    at = clustering.assign_all(x, x[starts])
    centres, changed = x[starts].clone(), torch.ones(8, dtype=torch.bool)
    clustering.lloyd(x, centres, at, changed, 50)
    assert evaluate.mutual_information(y, at.centre) < 0.99
    assert clustering.exchange(x, centres, at, changed)
    clustering.lloyd(x, centres, at, changed, 50)
    assert evaluate.mutual_information(y, at.centre) == pytest.approx(1.0)
    assert not clustering.exchange(x, centres, at, changed)


def test_an_exchange_is_made_only_where_it_pays() -> None:
    for seed in range(5):
        x, _ = random_points(seed, n=200, classes=15)
        before = inertia(x, evaluate.kmeans(x, 15, seed, replace(clustering.OURS, exchanges=0)))
        after = inertia(x, evaluate.kmeans(x, 15, seed))
        assert after <= before * (1 + 1e-6)


@pytest.mark.parametrize("recipe", clustering.RECIPES.values(), ids=str)
def test_kmeans_repeats_with_its_seed_and_leaves_no_cluster_empty(recipe: clustering.Recipe) -> None:
    x, _ = random_points(3)
    first = evaluate.kmeans(x, 20, 5, recipe)
    assert torch.equal(first, evaluate.kmeans(x, 20, 5, recipe))
    assert len(first.unique()) == 20


def test_kmeans_is_no_worse_than_scikit_learns() -> None:
    from sklearn.cluster import KMeans

    x, _ = random_points(4, n=400, classes=40)
    ours = sum(inertia(x, evaluate.kmeans(x, 40, seed=s)) for s in range(5)) / 5
    theirs = sum(KMeans(40, n_init=1, random_state=s).fit(x.numpy()).inertia_ for s in range(5)) / 5
    assert ours < 1.005 * theirs


def test_scikit_learns_recipe_is_scikit_learns() -> None:
    from sklearn.cluster import KMeans

    x, y = random_points(4, n=200, classes=15)
    labels = KMeans(15, n_init=1, random_state=3).fit(x.numpy()).labels_
    expected = normalized_mutual_info_score(y, labels)
    assert evaluate.nmi(x, y, 3, clustering.RECIPES["sklearn"]) == pytest.approx(expected, abs=1e-9)


def test_a_recipe_says_how_it_is_made() -> None:
    assert "k-means++ start in 32 rounds" in str(clustering.OURS)
    assert str(clustering.RECIPES["faiss"]) == "random start, 20 iterations of Lloyd, 1 start, arithmetic mean"


def test_kmeans_of_identical_points_ends() -> None:
    for recipe in (clustering.OURS, clustering.RECIPES["faiss"]):
        assert len(evaluate.kmeans(torch.ones(10, 3), 4, 0, recipe).unique()) == 4


def test_as_many_clusters_as_points_is_each_alone_and_more_is_an_error() -> None:
    x, _ = random_points(n=12)
    assert len(evaluate.kmeans(x, 12, seed=0).unique()) == 12
    with pytest.raises(ValueError, match="13 clusters of 12 points: allowed is 1 to 12"):
        evaluate.kmeans(x, 13, seed=0)


def test_kmeans_fills_clusters_that_run_empty() -> None:
    """Three starts on the same point leave two clusters without anyone."""
    x, _ = random_points(6)
    centres = x[:1].expand(3, -1).clone()
    at = clustering.assign_all(x, centres)
    assert len(at.centre.unique()) == 1
    clustering.lloyd(x, centres, at, torch.ones(3, dtype=torch.bool), 50)
    assert len(at.centre.unique()) == 3
