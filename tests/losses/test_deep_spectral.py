"""Deep spectral clustering against projectors built by Gram-Schmidt, by hand, and against autograd's pseudo-inverse."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import losses
from tests.losses.factories import defaults, random_batch

DeepSpectral = losses.get("deep_spectral")
Matrix = list[list[float]]


def projector(columns: Matrix) -> Matrix:
    """The orthogonal projector on the span of some vectors, by Gram-Schmidt."""
    basis: Matrix = []
    for column in columns:
        left = list(column)
        for _ in range(2):  # twice is enough
            for b in basis:
                along = sum(u * v for u, v in zip(left, b, strict=True))
                left = [u - along * v for u, v in zip(left, b, strict=True)]
        length = math.hypot(*left)
        if length > 1e-9 * (math.hypot(*column) or 1.0):
            basis.append([u / length for u in left])
    n = len(columns[0])
    return [[sum(b[i] * b[j] for b in basis) for j in range(n)] for i in range(n)]


def reference(x: Tensor, labels: Tensor) -> float:
    y = labels.tolist()
    P = projector(x.T.tolist())
    C = projector([[float(label == c) for label in y] for c in sorted(set(y))])
    return sum((u - v) ** 2 for p, c in zip(P, C, strict=True) for u, v in zip(p, c, strict=True))


def test_it_has_no_knobs() -> None:
    assert defaults("deep_spectral") == {}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dim", [1, 3, 4, 11])
def test_equals_the_distance_of_the_projectors(seed: int, dim: int) -> None:
    x, y = random_batch(seed, dim=dim)
    assert DeepSpectral(3, dim)(x, y).item() == pytest.approx(reference(x, y), rel=1e-9)


def test_equals_it_where_the_embeddings_span_less_than_their_dimensions() -> None:
    x, y = random_batch(0)
    x[:, 3] = x[:, 0] - 2 * x[:, 1]
    assert DeepSpectral(3, 4)(x, y).item() == pytest.approx(reference(x, y), rel=1e-9)


@pytest.mark.parametrize("dim", [1, 4, 11])
def test_gradients_are_those_of_finite_differences(dim: int) -> None:
    x, y = random_batch(1, dim=dim)
    assert torch.autograd.gradcheck(lambda x: DeepSpectral(3, dim)(x, y), (x.requires_grad_(),))


def test_value_and_gradient_are_those_of_a_pseudo_inverse() -> None:
    x, y = random_batch(2)
    x.requires_grad_()
    Y = F.one_hot(y).to(x.dtype)
    plain = (x @ torch.linalg.pinv(x) - Y @ torch.linalg.pinv(Y)).square().sum()
    ours = DeepSpectral(3, 4)(x, y)
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(torch.autograd.grad(ours, x), torch.autograd.grad(plain, x))


def test_gradient_is_sound_where_singular_values_coincide() -> None:
    """Orthonormal columns: an SVD has no unique factors there, the projector has its gradient all the same."""
    x, y = torch.linalg.qr(random_batch(3)[0])[0], random_batch(3)[1]
    assert torch.autograd.gradcheck(lambda x: DeepSpectral(3, 4)(x, y), (x.requires_grad_(),))


def test_embeddings_that_name_their_class_cost_nothing() -> None:
    y = torch.tensor([0, 0, 1, 1, 2])
    x = 3.0 * F.one_hot(y).double()
    assert DeepSpectral(3, 3)(x, y).item() == pytest.approx(0, abs=1e-12)


def test_one_dimension_by_hand() -> None:
    """The constant vector lies in the span of the classes: 1 + 2 - 2. A contrast within a class: 1 + 2."""
    y = torch.tensor([0, 0, 1])
    assert DeepSpectral(2, 1)(torch.tensor([[2.0], [2.0], [2.0]]), y).item() == pytest.approx(1)
    assert DeepSpectral(2, 1)(torch.tensor([[1.0], [-1.0], [0.0]]), y).item() == pytest.approx(3)


@pytest.mark.parametrize("n", [1, 3, 4])
def test_a_batch_not_larger_than_the_dimension_is_refused(n: int) -> None:
    x, y = random_batch(0, n=n)
    with pytest.raises(ValueError, match=rf"needs more images in a batch \(n\) than .* n={n}, dim=4"):
        DeepSpectral(3, 4)(x, y)


@pytest.mark.parametrize("scale", [1e-15, 1e15])
def test_the_scale_of_the_embeddings_does_not_matter(scale: float) -> None:
    x, y = random_batch(4)
    torch.testing.assert_close(DeepSpectral(3, 4)(scale * x, y), DeepSpectral(3, 4)(x, y))


def test_identical_and_zero_embeddings_have_a_finite_gradient() -> None:
    y = torch.tensor([0, 0, 1, 1, 2, 2])
    for x, expected in ((torch.ones(6, 4), 1 + 3 - 2), (torch.zeros(6, 4), 3)):
        x.requires_grad_()
        value = DeepSpectral(3, 4)(x, y)
        value.backward()
        assert value.item() == pytest.approx(expected, abs=1e-5)
        assert x.grad is not None
        assert x.grad.abs().max() < 1e-5
