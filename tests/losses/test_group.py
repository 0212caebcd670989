"""The Group Loss against a loop-written derivation, and against what its paper proves and says."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

import losses
from losses.group import draw_anchors, kl_within_classes, nll, refine
from tests.losses.factories import defaults

Group = losses.get("group")


def batch(classes: int = 3, samples: int = 4, dim: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(classes * samples, dim, generator=generator, dtype=torch.float64)
    return x, torch.arange(classes).repeat_interleave(samples)


def make(num_classes: int, dim: int, **knobs: object) -> torch.nn.Module:
    torch.manual_seed(1)
    return Group(num_classes, dim, **knobs).double()


# --- the slow derivation: numbers and loops, no tensors ---


def pearson(a: list[float], b: list[float]) -> float:
    ma, mb = sum(a) / len(a), sum(b) / len(b)
    covariance = sum((x - ma) * (y - mb) for x, y in zip(a, b, strict=True))
    spread = math.sqrt(sum((x - ma) ** 2 for x in a) * sum((y - mb) ** 2 for y in b))
    return covariance / spread if spread else 0.0


def cosine(a: list[float], b: list[float]) -> float:
    lengths = math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / lengths if lengths else 0.0


def similarity_matrix(rows: list[list[float]], kind: str, negatives: str, zero_diagonal: bool) -> list[list[float]]:
    n = len(rows)
    if kind == "gaussian":
        d2 = [[sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) for b in rows] for a in rows]
        spread = sum(map(sum, d2)) / (n * (n - 1))
        W = [[math.exp(-d / spread) for d in line] for line in d2]
    else:
        measure = {"pearson": pearson, "cosine": cosine}[kind]
        W = [[measure(a, b) for b in rows] for a in rows]
    lowest = min(min(line) for line in W)
    for i in range(n):
        for j in range(n):
            W[i][j] = max(W[i][j], 0.0) if negatives == "clamp" else W[i][j] - min(lowest, 0.0)
            if zero_diagonal and i == j:
                W[i][j] = 0.0
    return W


def softmax(z: list[float], temperature: float) -> list[float]:
    e = [math.exp(v / temperature) for v in z]
    return [v / sum(e) for v in e]


def reference(loss: torch.nn.Module, x: Tensor, labels: Tensor, anchors: Tensor) -> float:
    """Algorithm 1 of the paper, sample by sample and class by class."""
    rows, y, anchored = x.tolist(), labels.tolist(), anchors.tolist()
    A = loss.classifier.weight.tolist()
    b = loss.classifier.bias.tolist() if loss.classifier.bias is not None else [0.0] * len(A)
    kept = sorted(set(y)) if loss.classes == "batch" else list(range(len(A)))
    absolute, y = y, [kept.index(label) for label in y]
    every = [[sum(w * v for w, v in zip(A[k], row, strict=True)) + b[k] for k in range(len(A))] for row in rows]
    logits = [[row[k] for k in kept] for row in every]
    X = [softmax(z, loss.temperature) for z in logits]
    for i, is_anchor in enumerate(anchored):
        if is_anchor:
            X[i] = [float(k == y[i]) for k in range(len(kept))]
    W = similarity_matrix(rows, loss.similarity, loss.negatives, loss.zero_diagonal)
    n, m = len(rows), len(kept)
    for _ in range(loss.steps):
        support = [[sum(W[i][j] * X[j][k] for j in range(n)) for k in range(m)] for i in range(n)]
        grown = [[X[i][k] * support[i][k] for k in range(m)] for i in range(n)]
        X = [[v / sum(grown[i]) for v in grown[i]] if sum(grown[i]) else X[i] for i in range(n)]
    if loss.objective == "kl":
        pairs = [(i, j) for i in range(n) for j in range(n) if i != j and y[i] == y[j]]
        total = sum(sum(p * math.log(p / q) for p, q in zip(X[i], X[j], strict=True) if p > 0) for i, j in pairs)
        value = total / len(pairs)
    else:
        value = sum(-math.log(X[i][y[i]]) for i in range(n)) / n
    plain = sum(-math.log(softmax(z, 1.0)[absolute[i]]) for i, z in enumerate(every)) / n
    return value + loss.cross_entropy * plain


VARIANTS: list[dict[str, object]] = [
    {},
    {"steps": 3, "temperature": 2.0},
    {"anchors": 0, "temperature": 1.0},
    {"similarity": "cosine"},
    {"similarity": "gaussian", "steps": 2},
    {"negatives": "shift", "temperature": 3.0},
    {"zero_diagonal": False, "cross_entropy": 1.0},
    {"classes": "batch", "temperature": 2.0},
    {"classes": "batch", "cross_entropy": 0.5},
    {"objective": "kl", "anchors": 0, "temperature": 2.0},
    {"bias": False, "steps": 2},
]


def test_defaults_are_the_published_ones() -> None:
    assert defaults("group") == {
        "anchors": 2,
        "steps": 1,
        "temperature": 24.0,
        "similarity": "pearson",
        "negatives": "clamp",
        "zero_diagonal": True,
        "cross_entropy": 0.0,
        "classes": "all",
        "objective": "cross_entropy",
        "bias": True,
        "lr_factor": 1.0,
    }


@pytest.mark.parametrize("knobs", VARIANTS, ids=str)
def test_equals_algorithm_1_written_with_loops(knobs: dict[str, object]) -> None:
    x, y = batch()
    y = y + 1  # classes 1..3 of 5: some have no sample
    loss = make(5, x.shape[1], **knobs)
    anchors = draw_anchors(y, loss.anchors)
    assert loss(x, y, anchors).item() == pytest.approx(reference(loss, x, y, anchors), rel=1e-9)


@pytest.mark.parametrize("knobs", VARIANTS, ids=str)
def test_gradients_are_those_of_finite_differences(knobs: dict[str, object]) -> None:
    x, y = batch(samples=3)
    loss = make(4, x.shape[1], **knobs)
    anchors = draw_anchors(y, loss.anchors)
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, _: loss(x, y, anchors), (x, loss.classifier.weight))


# --- what the paper proves ---


def random_state(n: int = 8, m: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    W = torch.rand(n, n, generator=generator, dtype=torch.float64)
    X = torch.rand(n, m, generator=generator, dtype=torch.float64)
    return X / X.sum(1, keepdim=True), (W + W.T) / 2


def functional(X: Tensor, W: Tensor) -> float:
    return sum(float(W[i, j] * (X[i] * X[j]).sum()) for i in range(len(X)) for j in range(len(X)))


def test_rows_of_x_stay_distributions() -> None:
    X, W = random_state()
    for steps in range(1, 6):
        refined = refine(X, W, steps)
        assert (refined >= 0).all()
        torch.testing.assert_close(refined.sum(1), torch.ones(len(X), dtype=X.dtype))


def test_the_functional_never_falls() -> None:
    X, W = random_state()
    values = [functional(refine(X, W, steps), W) for steps in range(15)]
    assert all(later >= earlier - 1e-12 for earlier, later in pairwise(values))
    assert values[-1] > values[0]


def test_anchors_keep_their_labels() -> None:
    X, W = random_state()
    X[2] = torch.tensor([0.0, 1.0, 0.0, 0.0])
    assert refine(X, W, 7)[2].tolist() == [0.0, 1.0, 0.0, 0.0]


def test_a_row_without_support_keeps_its_prior() -> None:
    X, W = random_state()
    W[1], W[:, 1] = 0, 0
    refined = refine(X, W, 4)
    assert torch.equal(refined[1], X[1])
    assert refined.isfinite().all()


def test_an_anchor_row_without_support_keeps_its_label() -> None:
    X = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    assert refine(X, torch.zeros(2, 2), 1).tolist() == X.tolist()


def test_the_toy_example_of_figure_2_follows_the_more_similar_anchor() -> None:
    """Anchors A and B of classes 0 and 1; C is more similar to A, and ends with A's label."""
    W = torch.tensor([[0.0, 0.0, 0.6], [0.0, 0.0, 0.2], [0.6, 0.2, 0.0]])
    X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    assert refine(X, W, 1)[2].tolist() == pytest.approx([0.75, 0.25])
    assert refine(X, W, 2)[2].tolist() == pytest.approx([0.9, 0.1])
    assert refine(X, W, 20)[2, 0] > 0.9999


# --- the variants do what the paper says ---


def test_clamping_ignores_negative_similarities_and_shifting_makes_them_zero_at_the_lowest() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [1.0, 2.0, 2.5]], dtype=torch.float64)
    clamped = make(3, 3, negatives="clamp").similarities(x)
    assert clamped[0, 1] == 0
    shifted = make(3, 3, negatives="shift").similarities(x)
    assert shifted[0, 1].item() == pytest.approx(0.0)  # the most negative pair
    assert shifted[0, 2].item() == pytest.approx(pearson(x[0].tolist(), x[2].tolist()) + 1)


def test_pearson_ignores_scale_and_shift_and_cosine_only_scale() -> None:
    x, _ = batch()
    moved = 3 * x + 7
    for kind, same in (("pearson", True), ("cosine", False)):
        loss = make(3, x.shape[1], similarity=kind)
        assert torch.allclose(loss.similarities(x), loss.similarities(moved)) == same
        torch.testing.assert_close(loss.similarities(x), loss.similarities(3 * x))


@pytest.mark.parametrize("similarity", ["pearson", "cosine", "gaussian"])
def test_zero_diagonal_is_eq_1_and_the_released_code_keeps_ones(similarity: str) -> None:
    x, _ = batch()
    assert make(3, 5, similarity=similarity).similarities(x).diagonal().tolist() == [0.0] * len(x)
    kept = make(3, 5, similarity=similarity, zero_diagonal=False).similarities(x).diagonal()
    torch.testing.assert_close(kept, torch.ones_like(kept))


def test_batch_classes_equals_setting_the_other_columns_to_zero() -> None:
    """Supplement: entries of classes not in the batch set to 0, rows normalised again."""
    x, y = batch()
    sparse, full = make(9, 5, classes="batch", temperature=2.0), make(9, 5, temperature=2.0)
    X = torch.softmax(full.classifier(x) / 2.0, dim=1)
    X[:, 3:] = 0
    X = X / X.sum(1, keepdim=True)
    none = torch.zeros(len(y), dtype=torch.bool)
    expected = -refine(X, full.similarities(x), 1)[torch.arange(len(y)), y].log().mean()
    torch.testing.assert_close(sparse(x, y, none), expected)


def test_kl_is_zero_for_equal_rows_and_counts_both_orders() -> None:
    X = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.9, 0.1], [0.2, 0.8]], dtype=torch.float64)
    assert kl_within_classes(X[:2], torch.tensor([0, 0])).item() == pytest.approx(0.0, abs=1e-12)
    p, q = X[2].tolist(), X[3].tolist()
    there = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    back = sum(b * math.log(b / a) for a, b in zip(p, q, strict=True))
    assert kl_within_classes(X[2:], torch.tensor([1, 1])).item() == pytest.approx((there + back) / 2)


def test_kl_without_a_pair_of_one_class_is_zero() -> None:
    X = torch.tensor([[0.9, 0.1], [0.2, 0.8]], requires_grad=True)
    value = kl_within_classes(X, torch.tensor([0, 1]))
    value.backward()
    assert value.item() == 0


def test_cross_entropy_term_is_that_of_the_raw_logits() -> None:
    x, y = batch()
    anchors = torch.arange(len(y)) % 4 < 2  # the first two of each class
    plain, extra = make(3, 5), make(3, 5, cross_entropy=2.0)
    difference = extra(x, y, anchors) - plain(x, y, anchors)
    torch.testing.assert_close(difference, 2 * torch.nn.functional.cross_entropy(plain.classifier(x), y))


@pytest.mark.parametrize("per_class", [0, 1, 2, 9])
def test_anchors_are_drawn_so_many_from_each_class(per_class: int) -> None:
    y = torch.tensor([0, 1, 0, 1, 0, 2])
    torch.manual_seed(0)
    drawn = draw_anchors(y, per_class)
    assert [int(drawn[y == label].sum()) for label in range(3)] == [min(per_class, n) for n in (3, 2, 1)]


def test_every_sample_may_be_an_anchor() -> None:
    y = torch.zeros(4, dtype=torch.long)
    torch.manual_seed(0)
    seen = sum(draw_anchors(y, 1).int() for _ in range(100))
    assert (seen > 5).all()


def test_without_a_mask_as_many_anchors_are_drawn_as_the_knob_says() -> None:
    x, y = batch()
    for per_class in (0, 1, 2):
        loss = make(3, 5, anchors=per_class, temperature=2.0)
        torch.manual_seed(11)
        mask = draw_anchors(y, per_class)
        torch.manual_seed(11)
        assert loss(x, y).item() == loss(x, y, mask).item()
    # more anchors, more rows that add nothing
    values = [make(3, 5, anchors=k, temperature=2.0)(x, y).item() for k in (0, 2, 4)]
    assert values[0] > values[1] > values[2]


def test_a_right_class_with_probability_zero_costs_the_floor_of_the_released_code() -> None:
    X = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    assert nll(X, torch.tensor([0])).item() == pytest.approx(-math.log(1e-12))


def test_anchors_add_nothing_to_the_loss() -> None:
    x, y = batch()
    everyone = torch.ones(len(y), dtype=torch.bool)
    assert make(3, 5)(x, y, everyone).item() == pytest.approx(0.0, abs=1e-9)
