"""The Python interface: run() and load(), both giving Results. `harness` exports these names."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from dataclasses import fields as fields_of
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from harness.analysis.queries import Queries
from harness.spec import ExperimentRecord, Failure, Purpose, Result, UserError, unknown
from harness.tables.layout import Format, Kind, Options, Published

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

__all__ = ["Failure", "Result", "Results", "UserError", "load", "run"]


@dataclass(frozen=True)
class Results:
    """Stored results, to iterate over, to filter, and to see as a frame or as tables."""

    results: tuple[Result, ...]
    failures: tuple[Failure, ...] = ()  # of run: trials that failed; the next run tries them again
    problems: tuple[str, ...] = ()  # files of the store that are not results, and why
    searched: tuple[Result, ...] = field(default=(), repr=False)  # runs on validation classes, for captions
    experiments: tuple[ExperimentRecord, ...] = field(default=(), repr=False)  # what was requested, for captions too
    queries: Queries | None = field(default=None, repr=False, compare=False)  # the values of each query, for tests

    def __repr__(self) -> str:
        """How many there are, not all their values: a notebook prints it."""
        parts = {"results": self.results, "failures": self.failures, "problems": self.problems}
        return f"<harness.Results: {', '.join(f'{len(values)} {name}' for name, values in parts.items())}>"

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def filter(
        self,
        *,
        dataset: str | None = None,
        loss: str | None = None,
        protocol: str | None = None,
        backbone: str | None = None,
        fold: str | None = None,
        purpose: Purpose | None = None,
    ) -> "Results":
        """The results that have these values; the raw-pixel baseline goes with any backbone. A value that no result has
        is a UserError."""
        from harness.analysis.experiments import Purposes
        from harness.analysis.results import matching

        wanted = {"dataset": dataset, "loss": loss, "protocol": protocol, "backbone": backbone, "fold": fold}
        results = matching(self.results, **wanted)
        if purpose is not None:
            purposes = Purposes(self.experiments)
            results = [result for result in results if purpose in purposes.of(result)]
        return replace(self, results=tuple(results))

    def frame(self) -> "pd.DataFrame":
        """One row per result: the settings of its trial, each knob as knob.<name>, each metric as a column."""
        from harness.analysis.experiments import Purposes
        from harness.analysis.results import frame

        return frame(self.results, Purposes(self.experiments))

    def tables(
        self,
        kind: Kind | Literal["all"] = "losses",
        format: Format = "markdown",
        published: Published = "comparable",
        metrics: Sequence[str] = (),
    ) -> str:
        """The tables of `harness tables` as text, of one kind or of all. `published`: the paper's numbers beside ours
        where the settings are the paper's, beside ours everywhere, in rows of their own, or not at all. `metrics`: the
        columns; empty for Recall@K and NMI."""
        from harness.analysis.results import on_test, select
        from harness.tables.build import KINDS, build_all
        from harness.tables.render.data import csv
        from harness.tables.render.formats import BIBLIOGRAPHY, render

        if kind not in (*KINDS, "all"):
            raise unknown("kind of table", kind, (*KINDS, "all"))
        if format not in get_args(Format):
            raise unknown("format", format, get_args(Format))
        if format == "csv":
            return csv(on_test(select(self.results)), metrics, published=published != "none")
        kinds = tuple(KINDS) if kind == "all" else (kind,)
        options = Options(published, tuple(metrics))
        texts = render(build_all(self._with_searches(), kinds, options, self.experiments, self.queries), format)
        return "\n".join(text for name, text in texts.items() if name != BIBLIOGRAPHY)

    def embed(self, which: str, files: Sequence[str | Path], storage: str | None = None) -> "np.ndarray":
        """Embeddings (n, dim) of image files, as `harness embed` gives them: the images are prepared as in the run's
        evaluation, and the embeddings are what is compared at test time, of unit length unless the loss says otherwise.
        `which`: the id of a run, or its first digits; or the name of a loss, of which the first run whose weights are
        there is taken."""
        from harness import config
        from harness.storage import open_storage
        from harness.training import inference

        if self.queries is None:
            raise UserError("these results are of no folder: take them from harness.load or harness.run")
        artifacts = open_storage(storage, self.queries.store.artifacts)
        final = [result for result in self.results if result.is_final]
        named = [result for result in final if which == result.trial.loss]
        named = named or [result for result in self.results if which and result.id.startswith(which)]
        if not named:
            raise unknown("loss or id", which, sorted({result.trial.loss for result in final}))
        kept = [result for result in named if inference.is_there(result, artifacts)]
        result = inference.with_weights((kept or named)[0], self.results, artifacts)
        dataset = config.find_dataset(result.trial.dataset)
        embedded = dataset is not None and dataset.layout == "embedded"
        paths = [Path(file) for file in files]
        return inference.embed_files(result, paths, artifacts, embedded=embedded).numpy()

    def _with_searches(self) -> list[Result]:
        """These results and their searches, because captions state each loss's budget."""
        groups = {(result.trial.dataset, result.trial.protocol) for result in self.results}
        ids = {result.id for result in self.results}
        searches = [
            result
            for result in self.searched
            if result.id not in ids and (result.trial.dataset, result.trial.protocol) in groups
        ]
        return [*self.results, *searches]


def load(folder: str | Path = "results") -> Results:
    """The results that are stored in a folder."""
    from harness.store import open_existing

    store = open_existing(Path(folder))
    results, experiments, problems = store.everything()
    return Results(
        tuple(results),
        problems=tuple(problems),
        searched=_on_validation(results),
        experiments=tuple(experiments),
        queries=Queries(store),
    )


def run(losses: str | Sequence[str], dataset: str = "emoji", *, quiet: bool = False, **options: Any) -> Results:
    """Train losses on a dataset and return the final results; stored trials are not run again.

        harness.run(["group", "triplet"], "emoji", trials=8, seeds=3, set={"epochs": 4, "group.anchors": 1})

    The options are those of `harness run`: protocol, weights, data_root, skip_bad_images, trials, seeds, ensemble, set,
    grid, scheduler, keep_weights, curves, rerun, executor ("ray" or "local"), address, cpus_per_trial, gpus_per_trial,
    max_concurrent, max_failures, wait_for_nodes, storage, results and name. harness.request.Request has their types and
    defaults. A request that cannot be run is a UserError; a trial that fails is listed in `failures` of the results.
    `quiet` shows no progress on standard error.
    """
    from rich.console import Console

    from harness.execution.account import Account
    from harness.execution.display import Display
    from harness.execution.start import start
    from harness.request import Request, experiment
    from harness.storage import open_storage
    from harness.store import Store

    known = [item.name for item in fields_of(Request)]
    for name in options:
        if name not in known:
            raise unknown("option", name, known)
    request = Request(losses=losses, dataset=dataset, **options)
    console = Console(stderr=True, quiet=quiet)
    display = Display(console)
    planned = experiment(request, display.line)
    store = Store(Path(request.results).absolute())
    storage = open_storage(request.storage, store.artifacts)
    account = Account(planned, store, rerun=request.rerun, storage=storage)
    outcome = start(request, account, storage, display)
    stored, experiments, problems = store.everything()
    return Results(
        tuple(outcome.results),
        tuple(outcome.failures),
        (*problems, *store.stopped_problems()),
        _on_validation(stored),
        tuple(experiments),
        Queries(store),
    )


def _on_validation(results: Sequence[Result]) -> tuple[Result, ...]:
    return tuple(result for result in results if not result.trial.on_test)
