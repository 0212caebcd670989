"""The base class and the geometry that losses share: against loops, and where rounding would show."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from losses.base import (
    Batch,
    Loss,
    cosines,
    distances,
    gram,
    log_one_plus_sum,
    log_sum_exp_of_others,
    squared_distances,
    unit,
)
from tests.losses.factories import random_batch


def test_a_loss_needs_two_classes() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        Loss(1, 5)


class Returns(Loss):
    """A loss that returns what it is given."""

    def __init__(self, value: Any) -> None:
        super().__init__(2, 5)
        self.returned = value

    def forward(self, embeddings: Tensor, labels: Tensor) -> Any:
        return self.returned


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.zeros(8), r"returned shape \(8,\)"),
        (torch.zeros(0), r"returned shape \(0,\)"),
        (0.5, "returned a float"),
        (None, "returned a NoneType"),
    ],
)
def test_a_loss_that_returns_something_else_than_a_number_is_told_what(value: Any, words: str) -> None:
    x, y = random_batch(0)
    batch = Batch(x, y)
    with pytest.raises(TypeError, match=f"forward {words}; it must return one number"):
        Returns(value).value(x, y, batch)
    assert Returns(torch.ones(1)).value(x, y, batch) == 1


def test_unit_has_the_gradient_of_the_direction_at_any_scale() -> None:
    x = torch.tensor([[3.0, 4.0], [3e-200, 4e-200], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    y = unit(x)
    assert y.tolist() == [pytest.approx([0.6, 0.8]), pytest.approx([0.6, 0.8]), [0.0, 0.0]]
    y[:, 0].sum().backward()
    # d(a/|x|)/da = b^2/|x|^3
    assert x.grad[:, 0].tolist() == [pytest.approx(16 / 125), pytest.approx(16 / 125 * 1e200), 0.0]


def test_the_shared_geometry_passes_gradcheck() -> None:
    x, w = (random_batch(seed, n=n, dim=3)[0].requires_grad_() for seed, n in ((0, 4), (1, 5)))
    same = torch.eye(4, dtype=torch.bool)
    for geometry in (unit, squared_distances, gram):
        assert torch.autograd.gradcheck(geometry, (x,))
    assert torch.autograd.gradcheck(lambda x: distances(x)[~same], (x,))
    assert torch.autograd.gradcheck(cosines, (x, w))
    assert torch.autograd.gradcheck(lambda x: log_sum_exp_of_others(gram(x), same), (x,))
    assert torch.autograd.gradcheck(lambda x: log_one_plus_sum(gram(x), ~same), (x,))


def test_distances_are_those_of_a_loop_and_equal_rows_are_at_none() -> None:
    x = random_batch(0, n=6)[0] + 100
    x[3] = x[1]
    expected = [[sum((a - b) ** 2 for a, b in zip(p, q, strict=True)) ** 0.5 for q in x.tolist()] for p in x.tolist()]
    torch.testing.assert_close(distances(x), torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(squared_distances(x).sqrt(), distances(x))
    assert distances(x.float())[1, 3] == 0
    x.requires_grad_()
    distances(x)[1, 3].backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


@pytest.mark.parametrize(("offset", "apart"), [(0.0, 1e-2), (0.0, 5e-3), (100.0, 1.0)])
def test_distances_in_float32_are_those_of_float64_also_when_small_or_far_from_the_origin(
    offset: float, apart: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = normalize(torch.randn(8, 64, generator=generator), dim=1) * (1 if apart < 1 else 10)
    step = normalize(torch.randn(8, 64, generator=generator), dim=1)
    both = torch.cat([x, x + apart * step]) + offset
    by_differences = (both.double()[:, None] - both.double()).square().sum(dim=2).sqrt()
    torch.testing.assert_close(distances(both).double(), by_differences, rtol=3e-2, atol=0)


def test_cosines_are_those_of_a_loop_and_a_row_of_zeros_has_none() -> None:
    x, w = random_batch(0, n=3)[0], random_batch(1, n=5)[0]
    w[2] = 0
    expected = cosine_similarity(x[:, None], w[None], dim=2)
    torch.testing.assert_close(cosines(x, w), expected)
    assert (cosines(x, w)[:, 2] == 0).all()


def test_sums_in_log_space_are_those_of_plain_ones() -> None:
    values, same = random_batch(0, n=4)[0], torch.tensor([[True, False] * 2] * 4)
    plain = values.exp().masked_fill(same, 0).sum(dim=1)
    torch.testing.assert_close(log_sum_exp_of_others(values, same), plain.log())
    torch.testing.assert_close(log_one_plus_sum(values, ~same), (1 + plain).log())
    assert torch.equal(log_one_plus_sum(values, same & ~same), torch.zeros(4, dtype=torch.float64))


def test_equal_rows_are_at_distance_0_without_gradient() -> None:
    x = torch.randn(1, 64, generator=torch.Generator().manual_seed(0)).expand(5, 64).clone().requires_grad_()
    D = distances(x)
    D.sum().backward()
    assert D.eq(0).all()
    assert x.grad is not None
    assert x.grad.eq(0).all()


def test_a_nan_shows_in_its_distances() -> None:
    D = distances(torch.tensor([[1.0, 0.0], [torch.nan, 0.0], [0.0, 1.0]]))
    assert D[0, 1].isnan()
    assert D[1, 2].isnan()
