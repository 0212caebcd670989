"""The registry of metrics: their names, their order in tables, and which of them may select."""

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A metric, or a family of metrics that a pattern names."""

    pattern: str  # of its name in records
    words: str  # for error messages
    in_papers: bool = False  # a column of the paper's tables


# In the order of tables.
METRICS = (
    Metric(r"R@[1-9]\d{0,17}", "R@K with K = 1, 2, 4, ...", in_papers=True),
    Metric(r"MAP@R", "MAP@R"),
    Metric(r"NMI", "NMI", in_papers=True),
    Metric(r"RP", "RP"),
)


def known_metric(name: str) -> Metric | None:
    return next((metric for metric in METRICS if re.fullmatch(metric.pattern, name)), None)


def recall_k(name: str) -> int | None:
    """The K of R@K; None for another metric."""
    return int(name[2:]) if re.fullmatch(METRICS[0].pattern, name) else None


def metric_order(name: str) -> tuple[int, int, str]:
    """R@1, R@2, R@10, then the others in the registry's order, then what the registry does not know, by name."""
    metric = known_metric(name)
    return METRICS.index(metric) if metric else len(METRICS), recall_k(name) or 0, name


def papers_metrics(names: Iterable[str]) -> list[str]:
    """Recall@K and NMI: the columns of the paper's tables."""
    metrics = ((name, known_metric(name)) for name in set(names))
    return sorted((name for name, metric in metrics if metric and metric.in_papers), key=metric_order)


def percent(fraction: float) -> str:
    """As tables print a metric: 0.5 is 50.0, and there is no -0.0."""
    return f"{100 * fraction:z.1f}"


def allowed_metrics() -> str:
    return ", ".join(metric.words for metric in METRICS)
