"""The recipes by which NMI can be computed: which k-means, started how, ended when. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass

KMEANS_SEED = 0  # part of every recipe: the same for every trial
STARTS = 10  # of `lloyd` and `sklearn`, of which the one with the lowest inertia counts
MANY_CLUSTERS = 1000  # above this number of clusters they start once
WORTH = 1e-3  # a sweep of `hartigan` that lowers the inertia by less than this share is the last
ROUNDS, SWEEPS, LLOYD_AFTER_SWEEPS = 32, 50, 100  # of `hartigan`: of its start, and at most of the others
FAISS_ITERATIONS = 20  # as in most released code that clusters with faiss

BEST_START = f"best inertia of {STARTS} starts up to {MANY_CLUSTERS:,} clusters and of 1 above"


@dataclass(frozen=True)
class Recipe:
    """How clusters are found: NMI depends on it."""

    name: str
    method: str

    def __str__(self) -> str:
        """What records state."""
        return f"{self.method}, arithmetic mean, seed {KMEANS_SEED}"


LLOYD = Recipe(
    "lloyd",
    "greedy k-means++ start, Lloyd until the assignments stop, the centres move less than scikit-learn's tolerance or "
    f"300 times, {BEST_START}",
)
HARTIGAN = Recipe(
    "hartigan",
    f"k-means++ start in {ROUNDS} rounds, Hartigan's moves while a sweep lowers the inertia by {WORTH:.1%} or {SWEEPS} "
    f"times, Lloyd until the assignments stop or {LLOYD_AFTER_SWEEPS} times, 1 start",
)
FAISS = Recipe("faiss", f"faiss.Kmeans, random start, {FAISS_ITERATIONS} iterations, 1 start")
SKLEARN = Recipe("sklearn", f"scikit-learn's KMeans, {BEST_START}")
RECIPES: Mapping[str, Recipe] = {recipe.name: recipe for recipe in (LLOYD, HARTIGAN, FAISS, SKLEARN)}


def recipe_of(conventions: Mapping[str, str]) -> str:
    """The name of the recipe that a record's conventions state. Empty if it has no NMI, or by none of today's recipes.

    Records call `hartigan` by what it does, so those from the time when it was named `ours` are recognised.
    """
    stated = conventions.get("NMI")
    return next((name for name, recipe in RECIPES.items() if str(recipe) == stated), "")


def starts(clusters: int) -> int:
    """How often `lloyd` and `sklearn` start."""
    return 1 if clusters > MANY_CLUSTERS else STARTS
