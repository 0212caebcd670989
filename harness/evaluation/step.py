"""How far a long computation has come."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    stage: str  # "rank" | "cluster"
    done: int
    total: int
    part: int = 1  # of several that each count from 0 to their total
    parts: int = 1
    subset: int = 1  # of the networks of an ensemble
    subsets: int = 1
