"""Rankings of collapsed embeddings against a slow loop: every tie by its index."""

import math

import pytest
import torch
from torch import Tensor

from harness.evaluation import metrics, ties
from harness.evaluation.metrics import per_query
from harness.evaluation.neighbours import Tiles
from harness.evaluation.ties import TieBreaker
from harness.spec import COLLAPSED as COLLAPSED_COSINE


def slow_ranking(x: Tensor, query: Tensor, gallery: list[int]) -> list[int]:
    distances = {i: float((x[i].double() - query.double()).square().sum()) for i in gallery}
    return sorted(gallery, key=lambda i: (distances[i], i))


def one_point() -> Tensor:
    return torch.full((60, 16), 0.25)


def blob_and_others() -> Tensor:
    """Most images at one point, the others apart."""
    x = torch.randn(60, 16, generator=torch.Generator().manual_seed(0))
    x[torch.arange(60) % 4 > 0] = 0.0
    return torch.nn.functional.normalize(x)


def few_places() -> Tensor:
    """Corners of a cube: many images share each, and many corners are equally far."""
    return torch.randint(2, (60, 3), generator=torch.Generator().manual_seed(1)).float()


def last_bits() -> Tensor:
    """Unit vectors that differ in the last bits of float32."""
    generator = torch.Generator().manual_seed(2)
    base = torch.nn.functional.normalize(torch.randn(1, 16, generator=generator), dim=1)
    return torch.nn.functional.normalize(base + 1e-7 * torch.randn(60, 16, generator=generator), dim=1)


def blob_with_outliers() -> Tensor:
    """A blob whose inside is smaller than the rounding error of the distances of the outliers."""
    x = last_bits()
    x[::10] = torch.nn.functional.normalize(torch.randn(6, 16, generator=torch.Generator().manual_seed(3)), dim=1)
    return x


COLLAPSED = [one_point, blob_and_others, few_places, last_bits, blob_with_outliers]


@pytest.mark.parametrize("block", [1, 300, 2**21])
@pytest.mark.parametrize("apart", [False, True], ids=["among the others", "in a gallery"])
@pytest.mark.parametrize("make", COLLAPSED)
def test_a_tie_breaker_ranks_as_the_loop(make, apart: bool, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ties, "BLOCK", block)
    x = make()
    queries, first = (x[:20], 20) if apart else (x, 0)
    breaker = TieBreaker(Tiles.of(queries, x[first:], mutual=not apart), depth=7)
    rows = torch.arange(0, len(queries), 3)
    for row, ranked in zip(rows.tolist(), breaker.rank(rows).tolist(), strict=True):
        gallery = [i for i in range(first, 60) if apart or i != row]
        assert [i + first for i in ranked] == slow_ranking(x, queries[row], gallery)[:7]


@pytest.mark.parametrize("make", COLLAPSED)
def test_the_metrics_of_a_collapsed_embedding_are_the_loops(make) -> None:
    x, y = make(), torch.randint(9, (60,), generator=torch.Generator().manual_seed(4))
    scores = per_query(x, y, (1, 3))
    for query in range(60):
        ranked = slow_ranking(x, x[query], [i for i in range(60) if i != query])
        correct = [bool(y[i] == y[query]) for i in ranked[: scores.depth]]
        R = int((y == y[query]).sum()) - 1
        assert scores.first_correct[query] == (correct.index(True) + 1 if any(correct) else scores.depth + 1)
        assert scores.precision[query] == pytest.approx(sum(correct[:R]) / max(R, 1))


def test_the_mean_cosine_of_two_images_equals_the_loops_and_is_one_for_a_dead_network() -> None:
    x = torch.nn.functional.normalize(torch.randn(20, 5, generator=torch.Generator().manual_seed(0)) + 1, dim=1)
    cosines = [sum(a * b for a, b in zip(p, q, strict=True)) for p in x.tolist() for q in x.tolist()]
    assert metrics.mean_cosine(x) == pytest.approx(sum(cosines) / 400, abs=1e-6)
    assert metrics.mean_cosine(torch.zeros(20, 5)) == 1.0
    assert metrics.mean_cosine(last_bits()) > COLLAPSED_COSINE
    assert math.isclose(metrics.mean_cosine(torch.eye(4)), 1 / 4)
