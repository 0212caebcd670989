"""Every metric against a slow loop, and by hand."""

import math
from dataclasses import replace

import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor

from harness.evaluation import clustering, neighbours
from harness.evaluation import metrics as evaluate


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


@pytest.mark.parametrize("entries", [4, 100, 1000, 2**24])
@pytest.mark.parametrize("seed", range(3))
def test_retrieval_equals_the_slow_loops_whatever_the_tile(
    seed: int, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = random_points(seed)
    monkeypatch.setitem(neighbours.TILE, "cpu", entries)
    monkeypatch.setattr(neighbours, "GROUP", 1 + seed)  # groups also where there are few neighbours
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


@pytest.mark.parametrize("classes", [2, 5, 30, 40, 50])  # many classes: few neighbours count, and ties go on behind
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


@pytest.mark.parametrize("k", [1, 9, 40])
@pytest.mark.parametrize("rising", [False, True])
def test_the_largest_of_a_row_are_kept_tile_by_tile(k: int, rising: bool) -> None:
    """Also where every tile beats all that came before it, and where a tile is narrower than k or no multiple of a
    group."""
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(6, 1003, generator=generator)
    if rising:
        whole = whole.sort(dim=1).values
    for width in (7, 100, 640, 1003):
        best = neighbours.Best.none(6, k, whole)
        for begin in range(0, 1003, width):
            tile = whole[:, begin : begin + width]
            tile = torch.nn.functional.pad(tile, (0, -tile.shape[1] % neighbours.GROUP), value=-math.inf)
            neighbours.offer(tile, torch.zeros(6), best, begin)
        best.settle()
        expected = whole.topk(k, dim=1)
        values, order = best.values.sort(dim=1, descending=True)
        assert torch.equal(values, expected.values)
        assert torch.equal(best.columns.gather(1, order).long(), expected.indices)


def test_a_tile_fits_the_memory_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(1, 4)
    assert neighbours.side(x) == 2048
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_AVPHYS_PAGES": 100, "SC_PAGE_SIZE": 4096}[name])
    assert 0.9 < 4 * neighbours.side(x) ** 2 / (4096 * 100 / 8) <= 1
    monkeypatch.setattr("os.sysconf", lambda name: 0)
    assert neighbours.side(x) == 1


def test_a_tile_that_serves_rows_and_columns_gives_each_query_its_own_nearest() -> None:
    """Far from the origin, in tiles of 7: the closeness is minus half the squared distance, whoever asks."""
    x = random_points(2, n=40)[0] + 5
    tiles = replace(neighbours.Tiles.of(x, x), side=7)
    apart = torch.cdist(x.double(), x.double()).square() / -2
    apart.fill_diagonal_(-math.inf)
    for rows, values, columns in tiles.mutual(3):
        torch.testing.assert_close(values.double(), apart[rows].gather(1, columns.long()), atol=1e-4, rtol=0)
        torch.testing.assert_close(
            values.sort(descending=True).values.double(), apart[rows].topk(3).values, atol=1e-4, rtol=0
        )


def test_near_ties_stay_rare_where_a_network_has_put_everything_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Embeddings that hardly differ are ranked around their middle: no row needs the whole gallery in float64."""
    generator = torch.Generator().manual_seed(0)
    base = torch.nn.functional.normalize(torch.randn(1, 32, generator=generator), dim=1)
    x = torch.nn.functional.normalize(base + 1e-3 * torch.randn(100, 32, generator=generator), dim=1)
    y = torch.randint(9, (100,), generator=generator)
    expected = {k: slow_recall(x, y, k) for k in (1, 4)}
    monkeypatch.setattr(evaluate, "rank_all", None)
    assert evaluate.recall_at_k(x, y, (1, 4)) == expected


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


@pytest.mark.parametrize("factor", [1e19, 1e-22])
def test_numbers_whose_squares_are_none_are_an_error(factor: float) -> None:
    x, y = random_points()
    with pytest.raises(ValueError, match="allowed is 1e-15 to 1e15"):
        evaluate.recall_at_k(x * factor, y, (1,))
    evaluate.recall_at_k(torch.zeros_like(x), y, (1,))  # a dead network is allowed


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
        labels = evaluate.kmeans(x, 7, seed).tolist()
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
        told, gained = clustering.sweep(x, labels, 30, torch.Generator().manual_seed(0), near, short=short)
        assert told == pytest.approx(before, rel=1e-5)
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
    ours, lloyd = evaluate.kmeans(x, 60, 0), evaluate.kmeans(x, 60, 0, replace(clustering.OURS, sweeps=0))
    assert inertia(x, ours) < 0.97 * inertia(x, lloyd)
    assert evaluate.mutual_information(y, ours) > evaluate.mutual_information(y, lloyd) + 0.03


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
        assert evaluate.mutual_information(y, labels) == pytest.approx(1.0)
        assert len(clustering.start(x, 200, 7, torch.Generator().manual_seed(seed)).unique()) == 200


@pytest.mark.parametrize("recipe", ["ours", "faiss"])
def test_clusters_do_not_depend_on_where_the_origin_is(recipe: str) -> None:
    """A network that puts everything in one place: clusters lie a thousandth of the embeddings' length apart."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(40).repeat_interleave(10)
    inside = torch.randn(40, 64, generator=generator)[y] + 0.15 * torch.randn(400, 64, generator=generator)
    x = torch.nn.functional.normalize(torch.ones(1, 64) / 8 + 3e-4 * inside / 8)
    found = evaluate.kmeans(x, 40, 0, clustering.RECIPES[recipe])
    centred = evaluate.kmeans(10 * (x - x.mean(dim=0)), 40, 0, clustering.RECIPES[recipe])
    assert inertia(x.double(), found) < 1.2 * inertia(x.double(), centred)
    assert evaluate.mutual_information(y, found) > 0.9


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
    labels = clustering.nearest(x, x[:1].expand(3, -1))
    assert len(labels.unique()) == 1
    clustering.lloyd(x, labels, 3, 50)
    assert len(labels.unique()) == 3
