"""What a knob may be set to (Limit), and what random search draws from (Range, Rates, Choice)."""

import math
import random
from dataclasses import dataclass
from typing import Annotated, Any


@dataclass(frozen=True)
class Limit:
    """The limits of a numeric knob, as part of its type: `Annotated[float, Limit(above=0, most=70)]`."""

    least: float | None = None
    above: float | None = None
    most: float | None = None

    def allows(self, number: float) -> bool:
        return (
            (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and (self.most is None or number <= self.most)
        )

    def __str__(self) -> str:
        """>= 0 and <= 1; empty without a limit."""
        bounds = {">=": self.least, ">": self.above, "<=": self.most}
        return " and ".join(f"{sign} {bound:g}" for sign, bound in bounds.items() if bound is not None)


Positive = Annotated[float, Limit(above=0)]
Count = Annotated[int, Limit(least=0)]


@dataclass(frozen=True)
class Range:
    """A number between low and high, drawn uniformly, or uniformly in its logarithm."""

    low: float
    high: float
    log: bool = False

    def sample(self, rng: random.Random) -> float:
        if self.log:
            value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = rng.uniform(self.low, self.high)
        return rounded(value)

    def __str__(self) -> str:
        """For the documentation: 0.02 to 0.5 (log)."""
        return f"{self.low:g} to {self.high:g}{' (log)' if self.log else ''}"


class Rates(Range):
    """Learning rates of what a loss owns, uniform in their logarithm, for its knob `lr_factor`: the rate that is drawn
    is divided by the head's, so the range means the same under every protocol."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__(low, high, log=True)

    def __str__(self) -> str:
        """For the documentation: 0.0001 to 1 (log), divided by the head's rate."""
        return f"{super().__str__()}, divided by the head's rate"


def rounded(value: float) -> float:
    """Six digits name a trial as well as sixteen, and read better."""
    return float(f"{value:.6g}")


@dataclass(frozen=True, init=False)
class Choice:
    """One of a few values."""

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        object.__setattr__(self, "values", values)

    def sample(self, rng: random.Random) -> Any:
        return self.values[int(rng.random() * len(self.values))]

    def __str__(self) -> str:
        """For the documentation: class | shared | fixed."""
        return " | ".join("none" if value is None else str(value) for value in self.values)
