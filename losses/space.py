"""Where a knob may lie: what random search draws from."""

import math
import random
from dataclasses import dataclass
from typing import Annotated, Any


@dataclass(frozen=True)
class Range:
    """A number between low and high, uniform, or uniform in the logarithm."""

    low: float
    high: float
    log: bool = False

    def sample(self, rng: random.Random) -> float:
        if self.log:
            value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = rng.uniform(self.low, self.high)
        return float(f"{value:.6g}")  # six digits name a trial as well as sixteen, and read better

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{' (log)' if self.log else ''}"


@dataclass(frozen=True)
class AtLeast:
    """A limit of a knob's value: Annotated[int, AtLeast(0)]."""

    least: float


@dataclass(frozen=True)
class Above:
    """A limit of a knob's value: Annotated[float, Above(0)]."""

    more_than: float


@dataclass(frozen=True)
class AtMost:
    """A limit of a knob's value, beside another: Annotated[float, AtLeast(0), AtMost(1)]."""

    most: float


Positive = Annotated[float, Above(0)]
Count = Annotated[int, AtLeast(0)]


@dataclass(frozen=True, init=False)
class Choice:
    """One of a few values."""

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        object.__setattr__(self, "values", values)

    def sample(self, rng: random.Random) -> Any:
        return self.values[int(rng.random() * len(self.values))]

    def __str__(self) -> str:
        return " | ".join(str(value) for value in self.values)
