"""Results to draw."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import plan
from harness.analysis.queries import Queries
from harness.figures.groups import Group, groups
from harness.figures.registry import Sources
from harness.spec import ExperimentRecord, Result
from harness.storage import Storage
from harness.store import Store
from tests.factories import a_result, a_trial, an_experiment


def final(loss: str, score: float = 0.5, curve: Iterable[float] = (), title: str = "", **changes: Any) -> Result:
    """A run on test classes; `curve`: its Recall@1 after each epoch, that on training classes 0.1 above."""
    rows = [{"epoch": n, "loss": 1.0, "R@1": v, "train R@1": v + 0.1} for n, v in enumerate(curve, start=1)]
    result = a_result(a_trial(loss=loss, **{"knobs": {}, **changes}), **{"R@1": score})
    return replace(result, title=title or loss, curve=tuple(rows))


def searched(loss: str, score: float, **changes: Any) -> Result:
    """A trial of a random search."""
    return final(loss, score, **{"fold": "val0", **changes})


def cell(anchors: int, samples: int, score: float, **changes: Any) -> Result:
    """A cell of a grid over anchors and samples per class."""
    run = searched("group", score, knobs={"anchors": anchors}, samples_per_class=samples, **changes)
    return replace(run, provenance={"purpose": "grid"})


def joined(size: int, score: float, members: list[Result]) -> Result:
    ids = tuple(sorted(one.id for one in members))
    return replace(members[0], ensemble=size, members=ids, metrics={"R@1": score}, curve=())


def untrained(score: float, **changes: Any) -> Result:
    return final("none", score, title="Untrained network", **{**plan.IDLE, **changes})


def a_grid(runs: Iterable[Result], **changes: Any) -> ExperimentRecord:
    """The record of the experiment whose cells these are."""
    return an_experiment(grid=tuple(sorted(run.id for run in runs)), **changes)


def one_group(results: list[Result], experiments: Iterable[ExperimentRecord] = ()) -> Group:
    (found,) = groups(results, experiments)
    return found


def sources(folder: Path) -> Sources:
    return Sources(Storage(str(folder)), Queries(Store(folder)), folder)
