"""RKD against loops over pairs and triples, and its identities."""

import math

import pytest
import torch
from torch import Tensor

import losses
from losses.base import Batch
from losses.rkd import angles, relative
from tests.losses.factories import defaults, dot, random_batch

Rkd = losses.get("rkd")


def smooth(x: float) -> float:
    return x * x / 2 if abs(x) <= 1 else abs(x) - 0.5


def loop_distances(rows: list[list[float]]) -> dict[tuple[int, int], float]:
    """phi: distances of at least 1e-6, divided by the mean of those above 0."""
    n = range(len(rows))
    D = {(i, j): 0.0 if i == j else math.sqrt(max(math.dist(rows[i], rows[j]) ** 2, 1e-12)) for i in n for j in n}
    above = [d for d in D.values() if d > 0]
    return {pair: d / (sum(above) / len(above)) for pair, d in D.items()}


def loop_angles(rows: list[list[float]]) -> dict[tuple[int, int, int], float]:
    """psi: products of unit differences; the difference of an image from itself, or from its equal, is 0."""
    n = range(len(rows))
    e = {}
    for a in n:
        for b in n:
            length = math.dist(rows[a], rows[b])
            e[a, b] = [(v - u) / length if length else 0.0 for u, v in zip(rows[a], rows[b], strict=True)]
    return {(a, b, c): dot(e[a, b], e[a, c]) for a in n for b in n for c in n}


def reference(student: Tensor, teacher: Tensor, distance: float = 1.0, angle: float = 2.0) -> float:
    s, t = student.tolist(), teacher.tolist()
    pairs = [smooth(d - e) for d, e in zip(loop_distances(s).values(), loop_distances(t).values(), strict=True)]
    triples = [smooth(d - e) for d, e in zip(loop_angles(s).values(), loop_angles(t).values(), strict=True)]
    return distance * sum(pairs) / len(pairs) + angle * sum(triples) / len(triples)


def both(seed: int = 0, n: int = 7) -> tuple[Tensor, Tensor]:
    """A student (n, 4) and a teacher (n, 6)."""
    return random_batch(seed, n=n)[0], random_batch(seed + 100, n=n, dim=6)[0]


def loss(**knobs: float) -> "losses.base.Loss":
    return Rkd(3, 4, **knobs)


def rotation(dim: int) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))[0]


def test_defaults_are_the_released_ones() -> None:
    assert defaults("rkd") == {"teacher": "triplet", "distance_weight": 1.0, "angle_weight": 2.0}
    assert Rkd.distance == "euclidean"
    x, _ = both()
    assert torch.equal(loss().represent(x), x)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("weights", [(1.0, 2.0), (1.0, 0.0), (0.0, 1.0), (0.3, 5.0)])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_equals_the_loops(seed: int, weights: tuple[float, float], scale: float) -> None:
    student, teacher = both(seed)
    student[0] *= scale  # an image far away: differences beyond 1, where h is a line
    found = loss(distance_weight=weights[0], angle_weight=weights[1]).distill(student, teacher)
    assert found.item() == pytest.approx(reference(student, teacher, *weights), rel=1e-9)


def test_equal_images_equal_the_loops() -> None:
    student, teacher = both()
    student[1] = student[0]
    teacher[3] = teacher[2]
    assert loss().distill(student, teacher).item() == pytest.approx(reference(student, teacher), rel=1e-9)


def test_a_student_like_its_teacher_has_nothing_to_learn() -> None:
    student, _ = both()
    student.requires_grad_()
    value = loss().distill(student, student.detach())
    assert value.item() == 0
    assert torch.autograd.grad(value, student)[0].abs().max() == 0


@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0)])
def test_scaling_turning_reflecting_and_moving_change_nothing(weights: tuple[float, float]) -> None:
    """Each term by itself; also into more dimensions."""
    _, teacher = both()
    Q = rotation(9)[:6]  # orthonormal rows: from 6 into 9 dimensions
    reflected = teacher.clone()
    reflected[:, 0] *= -1
    one = loss(distance_weight=weights[0], angle_weight=weights[1])
    for student in (7.5 * teacher @ Q + 3, reflected):
        assert one.distill(student, teacher).item() == pytest.approx(0, abs=1e-20)
    stretched = teacher * torch.tensor([3.0, 1, 1, 1, 1, 1])
    assert one.distill(stretched, teacher).item() > 1e-3


def test_two_images_have_one_distance_and_no_angle() -> None:
    student, teacher = both(n=2)
    assert loss().distill(student, teacher).item() == pytest.approx(0, abs=1e-20)


def test_a_single_image_has_nothing_to_learn() -> None:
    student, teacher = both(n=1)
    student.requires_grad_()
    value = loss().distill(student, teacher)
    assert value.item() == 0
    assert torch.autograd.grad(value, student)[0].abs().max() == 0


def test_relative_distances_have_mean_1_and_angles_are_cosines() -> None:
    x, _ = both()
    squared = torch.cdist(x, x).square()
    phi, psi = relative(squared), angles(squared)
    assert phi[phi > 0].mean().item() == pytest.approx(1)
    assert phi.diagonal().abs().max() == 0
    expected = torch.nn.functional.cosine_similarity(x[1] - x[0], x[2] - x[0], dim=0)
    assert psi[0, 1, 2].item() == pytest.approx(expected.item())
    assert psi[0, 1, 1].item() == pytest.approx(1)
    assert (psi[0, 0] == 0).all()


def test_the_teacher_gets_no_gradient_and_labels_do_not_matter() -> None:
    student, teacher = both()
    teacher.requires_grad_()
    batch = Batch(torch.rand(7, 3, 2, 2), torch.arange(7), teacher=lambda images: teacher)
    student.requires_grad_()
    values = [loss().value(student, labels, batch) for labels in (torch.arange(7), torch.zeros(7).long())]
    assert torch.equal(*values)
    values[0].backward()
    assert student.grad is not None
    assert teacher.grad is None


def test_the_teacher_sees_the_same_images() -> None:
    student, teacher = both()
    images = torch.rand(7, 3, 2, 2)
    seen = []
    batch = Batch(images, torch.arange(7), teacher=lambda given: seen.append(given) or teacher)  # type: ignore[func-returns-value]
    loss().value(student, torch.arange(7), batch)
    assert len(seen) == 1
    assert seen[0] is images


def test_the_gradient_is_that_of_the_value() -> None:
    student, teacher = both(n=5)
    assert torch.autograd.gradcheck(lambda x: loss().distill(x, teacher), student.requires_grad_())


def test_near_images_far_from_the_origin_keep_their_angles_in_single_precision() -> None:
    """Raw embeddings may lie far from 0: the law of cosines would lose all digits in single precision."""
    student, teacher = both()
    moved = (1e-2 * student + 10).float()
    found = loss().distill(moved, teacher.float()).item()
    assert found == pytest.approx(reference(moved.double(), teacher.float().double()), rel=1e-6)
