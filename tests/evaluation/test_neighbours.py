"""The nearest images of every query, tile by tile."""

import math
from dataclasses import replace

import pytest
import torch

from harness.evaluation import neighbours
from tests.evaluation.points import random_points


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
    """Far from the origin, in tiles of 7: an entry is minus half the squared distance, whichever of the two is the
    query."""
    x = random_points(2, n=40)[0] + 5
    tiles = replace(neighbours.Tiles.of(x, x, mutual=True), side=7)
    apart = torch.cdist(x.double(), x.double()).square() / -2
    apart.fill_diagonal_(-math.inf)
    for rows, values, columns in tiles.nearest(3):
        torch.testing.assert_close(values.double(), apart[rows].gather(1, columns.long()), atol=1e-4, rtol=0)
        torch.testing.assert_close(
            values.sort(descending=True).values.double(), apart[rows].topk(3).values, atol=1e-4, rtol=0
        )
