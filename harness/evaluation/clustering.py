"""NMI: the agreement of classes and k-means clusters, by any of the recipes."""

from collections.abc import Generator

import torch
from torch import Tensor

from harness.evaluation import hartigan, lloyd
from harness.evaluation.step import Step
from harness.spec import UserError, finish
from harness.spec.recipes import FAISS, FAISS_ITERATIONS, HARTIGAN, LLOYD, SKLEARN, Recipe, starts


def nmi(embeddings: Tensor, labels: Tensor, seed: int, recipe: Recipe = LLOYD) -> float:
    """NMI of the classes and of a k-means clustering into as many clusters."""
    return mutual_information(labels, kmeans(embeddings, len(labels.unique()), seed, recipe))


def mutual_information(a: Tensor, b: Tensor) -> float:
    """Mutual information of two labelings over the arithmetic mean of their entropies; 1 if both are constant."""
    a, b = (labels.unique(return_inverse=True)[1].cpu() for labels in (a, b))
    n = len(a)
    width = int(b.max()) + 1
    cells, counts = (a * width + b).unique(return_counts=True)
    joint = counts.double() / n
    pa, pb = a.bincount().double() / n, b.bincount().double() / n
    information = (joint * (joint.log() - pa[cells // width].log() - pb[cells % width].log())).sum().item()
    entropies = -(pa * pa.log()).sum().item() - (pb * pb.log()).sum().item()
    return min(max(2 * information / entropies, 0.0), 1.0) if entropies > 0 else 1.0


def kmeans(x: Tensor, k: int, seed: int, recipe: Recipe = LLOYD) -> Tensor:
    """Cluster labels (n,) of the rows of x (n, d)."""
    return finish(cluster(x, k, seed, recipe))


def cluster(x: Tensor, k: int, seed: int, recipe: Recipe = LLOYD) -> Generator[Step, None, Tensor]:
    """The same, step by step. Deterministic given the seed."""
    if not 1 <= k <= len(x):
        raise ValueError(f"{k} clusters of {len(x)} points: must be 1 to {len(x)}")
    return METHODS[recipe.name](x, k, seed)


def with_scikit_learn(x: Tensor, k: int, seed: int) -> Generator[Step, None, Tensor]:
    from sklearn.cluster import KMeans

    yield Step("cluster", 0, 1)
    fitted = KMeans(k, n_init=starts(k), random_state=seed).fit(x.cpu().numpy())
    return torch.from_numpy(fitted.labels_).long().to(x.device)


def with_faiss(x: Tensor, k: int, seed: int) -> Generator[Step, None, Tensor]:
    try:
        import faiss
    except ImportError:
        raise UserError(
            "NMI by faiss: faiss is not installed; pip install 'metric-loss-harness[faiss]', or use another recipe"
        ) from None
    yield Step("cluster", 0, 1)
    points = x.float().cpu().numpy()
    # all points count, however many or few there are per cluster
    limits = {"min_points_per_centroid": 1, "max_points_per_centroid": len(points)}
    fitted = faiss.Kmeans(x.shape[1], k, niter=FAISS_ITERATIONS, seed=seed, **limits)
    fitted.train(points)
    return torch.from_numpy(fitted.index.search(points, 1)[1][:, 0]).to(x.device)


METHODS = {
    LLOYD.name: lloyd.cluster,
    HARTIGAN.name: hartigan.cluster,
    FAISS.name: with_faiss,
    SKLEARN.name: with_scikit_learn,
}
