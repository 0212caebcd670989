"""The stored values of each query, as the sums per class and seed that statistics are made from."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.analysis.statistics import Sums
from harness.spec import Result, recall_k
from harness.spec.queries import PerQuery
from harness.store import Store

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, eq=False)
class ClassSums:
    """The metrics of one run, summed over the queries of each class; queries without a match count for nothing."""

    totals: dict[str, "np.ndarray"]  # metric -> (C,)
    sizes: "np.ndarray"  # (C,)
    names: tuple[str, ...]  # (C,)
    queries: str  # which ones they are, as a checksum: only the same queries can be paired

    def mean(self, metric: str) -> float:
        return float(self.totals[metric].sum() / max(self.sizes.sum(), 1))

    @classmethod
    def of(cls, values: PerQuery, metrics: Sequence[str]) -> "ClassSums":
        import numpy as np

        counts = values.counts
        present, classes = np.unique(values.classes[counts], return_inverse=True)
        totals = {}
        for metric in metrics:
            of_queries = values.values(metric)
            if of_queries is not None:
                totals[metric] = np.bincount(classes, weights=of_queries[counts].astype(float))
        which = hashlib.sha256(values.classes.astype(np.int64).tobytes() + counts.tobytes()).hexdigest()
        return cls(totals, np.bincount(classes), tuple(values.names[place] for place in present), which)


class Queries:
    """The values of each query of stored results; every file is read once."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._read: dict[str, ClassSums | ValueError] = {}

    def of(self, result: Result) -> ClassSums:
        """The sums of one run; a ValueError says why there are none."""
        if result.id not in self._read:
            try:
                self._read[result.id] = ClassSums.of(self.store.per_query(result), list(result.metrics))
            except ValueError as error:
                self._read[result.id] = error
        found = self._read[result.id]
        if isinstance(found, ValueError):
            raise found
        return found

    def with_recalls(self, results: Sequence[Result], metrics: Sequence[str]) -> list[Result]:
        """The results with those R@K of `metrics` that they do not state but their stored values say."""
        wanted = [metric for metric in metrics if recall_k(metric) is not None]
        return [self._with_recalls(result, wanted) if result.trial.on_test else result for result in results]

    def _with_recalls(self, result: Result, wanted: Sequence[str]) -> Result:
        missing = [metric for metric in wanted if metric not in result.metrics]
        if not missing:
            return result
        try:
            values = ClassSums.of(self.store.per_query(result), [*result.metrics, *missing])
        except ValueError:
            return result
        self._read[result.id] = values
        found = {metric: values.mean(metric) for metric in missing if metric in values.totals}
        return replace(result, metrics={**result.metrics, **found})

    def sums(self, runs: Sequence[Result], metric: str) -> Sums:
        """A metric of the seeds of one configuration; a ValueError says why it cannot be tested."""
        import numpy as np

        parts = [self.of(run) for run in sorted(runs, key=lambda run: run.trial.seed)]
        if len({part.queries for part in parts}) > 1:
            raise ValueError("its runs answered different queries")
        if any(metric not in part.totals for part in parts):
            raise ValueError(f"the values of its queries do not say {metric}")
        if len(parts[0].sizes) < 2:
            raise ValueError("all its queries are of one class")
        seeds = tuple(sorted(run.trial.seed for run in runs))
        return Sums(np.stack([part.totals[metric] for part in parts]), parts[0].sizes, seeds, parts[0].queries)

    def problem(self, runs: Sequence[Result]) -> str:
        """Why the runs of a configuration cannot be tested; empty if they can."""
        try:
            self.sums(runs, "R@1")
        except ValueError as error:
            return str(error)
        return ""
