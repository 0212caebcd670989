"""What Tune runs next: a searcher that suggests the jobs that can start now."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import ray
from ray.tune.search import Searcher, SearchGenerator

import losses
from harness.spec import BASELINE, PRETRAINING, Job


class JobQueue(Searcher):
    """Gives Tune the jobs that can start now, those that start again first.

    Tune asks in every turn of its loop. The answer is a job; nothing, while only what is running can make another job
    ready; or the end. One queue serves several runs of Tune, where one falls.
    """

    def __init__(self, jobs: Iterable[Job | None], most: int | None = None) -> None:
        super().__init__()
        self.coming = iter(jobs)
        self.exhausted = False
        self.known: dict[str, Job] = {}  # all that were given out, by the names of their trials
        self.open: set[str] = set()  # those among them that have not ended
        self.in_tune: set[str] = set()  # those among them that Tune has and has not lost
        self.most = most  # that Tune has at a time; None: as many as there are
        self.again: deque[Job] = deque()
        self.unfit: set[str] = set()  # ids of nodes where no trial can run
        self.on_ask: Callable[[], None] = lambda: None  # is called whenever Tune asks
        self.ours = {BASELINE, PRETRAINING, *losses.shipped()}

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its searcher in order to resume; we do not resume from Tune

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]
        self.on_ask()
        if self.most is not None and len(self.in_tune) >= self.most:
            return None
        job = self.again.popleft() if self.again else self.following()
        if job is None:
            return Searcher.FINISHED if self.is_over else None
        name = job.work.name
        self.known[name] = job
        self.open.add(name)
        self.in_tune.add(name)
        # another's loss may do to its process what cannot be undone
        alone = not job.measurement and job.trial.loss not in self.ours
        return {"trial": name, "job": ray.put(job), "alone": alone, "avoid": sorted(self.unfit)}

    def following(self) -> Job | None:
        """The next job that can start now, if there is one."""
        if self.exhausted:
            return None
        try:
            return next(self.coming)
        except StopIteration:
            self.exhausted = True
            return None

    @property
    def is_over(self) -> bool:
        return self.exhausted and not self.open

    @property
    def may_give_more(self) -> bool:
        """Whether a job may follow, unless a process dies."""
        return not self.exhausted or not self.open <= self.in_tune

    def end(self, name: str) -> None:
        self.open.discard(name)
        self.in_tune.discard(name)

    def died(self, name: str) -> None:
        """Tune has given it up; it starts again, or is a failure."""
        self.in_tune.discard(name)

    def start_again(self, name: str) -> None:
        self.again.append(self.known[name])

    def start_all_again(self) -> None:
        """Tune has fallen: what has not ended starts again."""
        self.again = deque(self.known[name] for name in self.known if name in self.open)
        self.in_tune.clear()

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        """Nothing: TuneListener hears of it too, and knows more."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing."""

    def restore(self, checkpoint_path: str) -> None:
        raise NotImplementedError


class JobSearch(SearchGenerator):
    """The queue as Tune runs it. Tune lets go of every idle worker, and Ray then of its node, while a search is over.
    This one is over as soon as no job may follow, and goes on if a process dies."""

    def __init__(self, queue: JobQueue) -> None:
        super().__init__(queue)
        self.queue = queue

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles it in order to resume; we do not resume from Tune

    def is_finished(self) -> bool:
        return not self.queue.may_give_more
