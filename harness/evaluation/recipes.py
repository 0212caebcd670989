"""The recipes by which NMI can be computed: which k-means, started how, ended when. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

KMEANS_SEED = 0  # part of every recipe: the same for every trial
WORTH = 1e-3  # a sweep that lowers the inertia by less than this share is the last


@dataclass(frozen=True)
class Recipe:
    """How clusters are found: NMI depends on it. Its text is what records state."""

    name: str
    start: Literal["rounds", "random", "scikit-learn"]
    iterations: int  # of Lloyd's algorithm, at most
    rounds: int = 1
    sweeps: int = 0  # of Hartigan's algorithm before Lloyd's, at most

    def __str__(self) -> str:
        how = {
            "rounds": f"k-means++ start in {self.rounds} rounds, Hartigan's moves while a sweep lowers the inertia by "
            f"{WORTH:.1%} or {self.sweeps} times, Lloyd until the assignments stop or {self.iterations} times",
            "random": f"random start, {self.iterations} iterations of Lloyd",
            "scikit-learn": f"scikit-learn's KMeans, Lloyd until its tolerance or {self.iterations} times",
        }[self.start]
        return f"{how}, 1 start, arithmetic mean"


OURS = Recipe("ours", "rounds", iterations=100, rounds=32, sweeps=50)
FAISS = Recipe("faiss", "random", iterations=20)
SKLEARN = Recipe("sklearn", "scikit-learn", iterations=300)
RECIPES: Mapping[str, Recipe] = {recipe.name: recipe for recipe in (OURS, FAISS, SKLEARN)}
