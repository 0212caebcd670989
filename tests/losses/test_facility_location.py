"""Facility location against the two algorithms in plain loops, against all medoid sets, and by hand."""

import itertools
import math
from collections import Counter

import pytest
import torch
from torch import Tensor

import losses
from losses.base import distances
from losses.facility_location import disagreement
from tests.losses.factories import defaults, on_circle, random_batch, random_lengths, unit_rows

FacilityLocation = losses.get("facility_location")
Rows = list[list[float]]


def entropy(*labellings: list[int]) -> float:
    n = len(labellings[0])
    return -sum(c / n * math.log(c / n) for c in Counter(zip(*labellings, strict=True)).values())


def nmi(a: list[int], b: list[int]) -> float:
    if entropy(a) == 0 or entropy(b) == 0:
        return float(entropy(a) == entropy(b))
    return (entropy(a) + entropy(b) - entropy(a, b)) / math.sqrt(entropy(a) * entropy(b))


class Slow:
    """The paper's F, Delta, Algorithm 1 and Algorithm 2, a sample at a time."""

    def __init__(self, x: Tensor, labels: Tensor, gamma: float) -> None:
        self.rows = unit_rows(x)
        self.y, self.n, self.gamma = labels.tolist(), len(labels), gamma

    def apart(self, i: int, j: int) -> float:
        return math.dist(self.rows[i], self.rows[j])

    def clusters(self, S: list[int]) -> list[int]:
        """For each sample its medoid."""
        return [i if i in S else min(S, key=lambda j: self.apart(i, j)) for i in range(self.n)]

    def score(self, S: list[int]) -> float:
        return -sum(self.apart(i, j) for i, j in enumerate(self.clusters(S)))

    def augmented(self, S: list[int]) -> float:
        return self.score(S) + self.gamma * (1 - nmi(self.clusters(S), self.y))

    def truth(self) -> float:
        total = 0.0
        for label in set(self.y):
            members = [i for i in range(self.n) if self.y[i] == label]
            total += max(-sum(self.apart(i, j) for i in members) for j in members)
        return total

    def infer(self, passes: int) -> list[int]:
        S: list[int] = []
        for _ in set(self.y):
            S.append(max((i for i in range(self.n) if i not in S), key=lambda i: self.augmented([*S, i])))
        for _ in range(passes):
            clusters, medoids = self.clusters(S), list(S)
            for k, medoid in enumerate(medoids):
                members = [i for i in range(self.n) if clusters[i] == medoid]
                scores = {}
                for j in members:
                    swapped = [*S[:k], j, *S[k + 1 :]]
                    delta = 1 - nmi(self.clusters(swapped), self.y)
                    scores[j] = -sum(self.apart(i, j) for i in members) + self.gamma * delta
                S[k] = max(members, key=lambda j: scores[j])
        return S

    def loss(self, passes: int) -> float:
        return max(0.0, self.augmented(self.infer(passes)) - self.truth())


def chord(degrees: float) -> float:
    return 2 * math.sin(math.radians(degrees) / 2)


def test_defaults_are_the_published_ones() -> None:
    assert defaults("facility_location") == {"gamma": 1.0, "swaps": 5}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("gamma", "swaps"), [(1.0, 0), (1.0, 5), (0.1, 5), (20.0, 2)])
def test_equals_the_two_algorithms_in_loops(seed: int, gamma: float, swaps: int) -> None:
    x, y = random_batch(seed, n=14, classes=4)
    ours = FacilityLocation(4, 4, gamma=gamma, swaps=swaps)(x, y).item()
    assert ours == pytest.approx(Slow(x, y, gamma).loss(swaps), rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_never_exceeds_the_maximum_over_all_medoid_sets(seed: int) -> None:
    x, y = random_batch(seed, n=9)
    slow = Slow(x, y, 1.0)
    k = len(set(slow.y))
    best = max(slow.augmented(list(S)) for S in itertools.combinations(range(9), k)) - slow.truth()
    assert 0 < FacilityLocation(3, 4)(x, y).item() <= best + 1e-9


def test_nmi_is_scikit_learns_with_the_geometric_mean() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    x, y = random_batch(1, n=20, classes=4)
    D, S, candidates = distances(x), torch.tensor([3, 11]), torch.tensor([0, 5, 7])
    for j, ours in zip(candidates.tolist(), disagreement(D, y, S, candidates).tolist(), strict=True):
        clusters = D[torch.tensor([3, 11, j])].argmin(dim=0).tolist()
        theirs = sklearn.normalized_mutual_info_score(y.tolist(), clusters, average_method="geometric")
        assert ours == pytest.approx(1 - theirs)


def test_gradients_are_those_of_finite_differences() -> None:
    x, y = random_batch(1)
    assert torch.autograd.gradcheck(lambda x: FacilityLocation(3, 4)(x, y), (x.requires_grad_(),))


def test_classes_far_apart_cost_nothing() -> None:
    x, y = on_circle(0, 10, 180, 190), torch.tensor([0, 0, 1, 1])
    assert FacilityLocation(2, 2)(x, y).item() == pytest.approx(0, abs=1e-12)


def test_labels_across_two_clusters_by_hand() -> None:
    """The best S has a medoid at each end and tells nothing of the labels; the right clusters span the circle."""
    x, y = on_circle(0, 10, 180, 190), torch.tensor([0, 1, 0, 1])
    assert FacilityLocation(2, 2)(x, y).item() == pytest.approx(-2 * chord(10) + 1 + 2 * chord(180))
    assert FacilityLocation(2, 2, gamma=3.0)(x, y).item() == pytest.approx(-2 * chord(10) + 3 + 2 * chord(180))


def test_the_medoid_of_a_class_is_its_middle() -> None:
    """One class besides a lone image opposite: the loss compares the same medoids, so only the choice shows."""
    x, y = on_circle(0, 20, 60, 61), torch.tensor([0, 0, 0, 1])
    # S = {20, 60}: 0 and 61 travel 20 and 1 degrees, 60 and 61 together
    expected = -chord(20) - chord(1) + (1 - nmi([0, 0, 1, 1], y.tolist())) + chord(20) + chord(40)
    assert FacilityLocation(2, 2)(x, y).item() == pytest.approx(expected)


def test_the_length_of_an_embedding_does_not_matter() -> None:
    x, y = random_batch(2)
    lengths = random_lengths(len(x))
    torch.testing.assert_close(FacilityLocation(3, 4)(x, y), FacilityLocation(3, 4)(x * lengths, y))


def test_one_class_or_every_image_alone_cost_nothing() -> None:
    x, _ = random_batch(3)
    assert FacilityLocation(12, 4)(x, torch.zeros(12, dtype=torch.long)).item() == pytest.approx(0, abs=1e-12)
    assert FacilityLocation(12, 4)(x, torch.arange(12)).item() == pytest.approx(0, abs=1e-12)
