"""Lloyd's iterations against scikit-learn's, from the same centres."""

import pytest
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from harness.evaluation import lloyd
from harness.spec import finish
from tests.evaluation.points import inertia, random_points


def scikit_learns(x: Tensor, centres: Tensor) -> KMeans:
    return KMeans(len(centres), init=centres.numpy(), n_init=1).fit(x.numpy())


def tolerance(x: Tensor) -> float:
    """1e-4 of the mean variance of a coordinate."""
    return 1e-4 * sum(float(column.var(correction=0)) for column in x.T) / x.shape[1]


@pytest.mark.parametrize("block", [1, 100, 2**22])
@pytest.mark.parametrize("seed", range(4))
def test_the_same_centres_lead_to_scikit_learns_clusters(
    seed: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comparing points only with the centres that moved changes nothing."""
    monkeypatch.setattr(lloyd, "BLOCK", block)
    x = random_points(seed, n=400, classes=40)[0].double()
    centres = x[torch.randperm(400, generator=torch.Generator().manual_seed(seed))[:30]]
    theirs = scikit_learns(x, centres)
    labels, found = finish(lloyd.iterate(x, centres, tolerance(x)))
    assert labels.tolist() == theirs.labels_.tolist()
    assert found == pytest.approx(theirs.inertia_, rel=1e-9)
    assert theirs.n_iter_ > 5  # else the comparison shows little


@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_it_ends_after_so_many_iterations_with_labels_that_fit_the_centres(
    iterations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lloyd, "ITERATIONS", iterations)
    x = random_points(1, n=400, classes=40)[0].double()
    theirs = KMeans(30, init=x[:30].numpy(), n_init=1, max_iter=iterations).fit(x.numpy())
    labels, found = finish(lloyd.iterate(x, x[:30], tolerance(x)))
    assert labels.tolist() == theirs.labels_.tolist()
    assert found == pytest.approx(theirs.inertia_, rel=1e-9)


def test_clusters_that_run_empty_start_again_where_scikit_learns_do() -> None:
    """Three centres at one place leave two clusters without a point."""
    x = random_points(6)[0].double()
    centres = torch.cat([x[:1].expand(3, -1), x[1:5]])
    labels, found = finish(lloyd.iterate(x, centres, tolerance(x)))
    assert len(labels.unique()) == 7
    assert found == pytest.approx(scikit_learns(x, centres).inertia_, rel=1e-9)


def test_the_inertia_is_that_of_the_labels() -> None:
    x = random_points(3, n=200)[0].double()
    labels, found = finish(lloyd.iterate(x, x[:9], 0.0))
    assert found == pytest.approx(inertia(x, labels), rel=1e-9)


def test_ten_starts_end_with_the_best_whether_they_are_found_together_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    x = random_points(2, n=300, classes=20)[0].double()
    theirs = KMeans(20, n_init=10, random_state=5).fit(x.numpy())
    for together in (1, 3 * 4 * 300, 2**25):  # one, three and all starts
        monkeypatch.setattr(lloyd, "SEEDING", together)
        labels = finish(lloyd.cluster(x, 20, seed=5))
        assert inertia(x, labels) == pytest.approx(theirs.inertia_, rel=1e-9)
