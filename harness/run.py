"""From an experiment to its stored results: search, choose, final runs; only what is missing runs."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rich.console import Console

from harness import plan
from harness.progress import Display
from harness.spec import Experiment, Failure, Job, Progress, Result, Trial
from harness.store import Store

Executor = Callable[[Iterable[Job]], Iterator[tuple[Trial, Progress | Result | Failure]]]


@dataclass(frozen=True)
class Outcome:
    results: list[Result]  # of the final trials and the baselines
    failures: list[Failure]


def run(experiment: Experiment, store: Store, execute: Executor, console: Console, *, rerun: bool = False) -> Outcome:
    """Search on validation classes, then run the winners on test classes, storing each result as it ends."""
    failures: list[Failure] = []

    def pending(trials: list[Trial]) -> list[Trial]:
        return trials if rerun else store.missing(trials)

    def finish(trials: list[Trial], display: Display) -> list[Result]:
        """The results of these trials, stored or run now."""
        jobs = [Job(trial, experiment.dataset, str(store.artifacts)) for trial in pending(trials)]
        for trial, event in execute(jobs):
            if isinstance(event, Result):
                store.put(event, replace=rerun)
            elif isinstance(event, Failure):
                store.put_failure(event)
                failures.append(event)
            display.show(trial, event)
        return [result for result in map(store.get, trials) if result is not None]

    baselines = plan.baselines(experiment)
    searched = plan.search(experiment)
    with Display(console) as display:
        # the final trials are not known before the search ends, but their number is
        display.total = len(pending(searched)) + len(baselines) + len(experiment.losses) * experiment.seeds
        chosen = plan.best(finish(searched, display), experiment.protocol.select)
        last = [*baselines, *plan.final(experiment, chosen)]
        display.total = display.done + len(pending(last))
        results = finish(last, display)
    return Outcome(results, failures)
