"""What can start now: the one account of it, for both executors."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator

from harness import plan
from harness.execution.account import Account
from harness.spec import Event, Failure, Progress, Work


class Agenda:
    """What is missing of a run, trials and measurements, each given out when it can start.

    It gives what can start now; None while only the end of what is running can make something else ready; and it ends
    when nothing can follow. `hear` is told of every event. The end of a trial frees what needs it, and the end of a
    loss's search names its final runs and their ensembles, whatever the other losses do.
    """

    def __init__(self, account: Account, work: Iterable[Work]) -> None:
        self.account = account
        self.work: dict[str, Work] = {}  # all that has to run, by id; what has ended too
        self.unfinished: set[str] = set()
        self.ready: deque[Work] = deque()
        self.needs: dict[str, set[str]] = {}  # id -> ids of the unfinished trials that it waits for
        self.dependents: dict[str, list[str]] = defaultdict(list)  # id of a trial -> ids of what waits for it
        self.failures: dict[str, Failure] = {}
        self.searches: dict[str, set[str]] = defaultdict(set)  # loss -> ids of its unfinished search trials
        self.add(work)
        for trial in account.search:
            if trial.id in self.unfinished:
                self.searches[trial.loss].add(trial.id)

    def __iter__(self) -> Iterator[Work | None]:
        while self.ready or self.needs or any(self.searches.values()):
            yield self.ready.popleft() if self.ready else None

    def add(self, work: Iterable[Work]) -> list[Failure]:
        """Take up what has to run of this, and first what it needs. Returns what cannot run, because what it needs has
        failed."""
        refused = []
        for one in self.account.pending(work):
            if one.id in self.work:
                continue
            needs = plan.needs(self.account.experiment, one)
            refused += self.add(needs)
            self.work[one.id] = one
            self.unfinished.add(one.id)
            failed = [self.failures[need.id] for need in needs if need.id in self.failures]
            waits_for = {need.id for need in needs if need.id in self.unfinished}
            if failed:
                refused.append(not_run(one, failed[0]))
            elif waits_for:
                self.needs[one.id] = waits_for
                for id in waits_for:
                    self.dependents[id].append(one.id)
            else:
                self.ready.append(one)
        return refused

    def hear(self, work: Work, event: Event) -> list[Failure]:
        """Take note of the end of something. Returns what cannot run any more, whose ends are to be heard too."""
        if isinstance(event, Progress) or work.id not in self.unfinished:
            return []
        self.unfinished.discard(work.id)
        refused = []
        if isinstance(event, Failure):
            self.failures[work.id] = event
        for id in self.dependents.pop(work.id, ()):
            waits_for = self.needs.get(id, set())
            waits_for.discard(work.id)
            if id in self.needs and isinstance(event, Failure):
                del self.needs[id]
                refused.append(not_run(self.work[id], event))
            elif id in self.needs and not waits_for:
                del self.needs[id]
                self.ready.append(self.work[id])
        return refused + self._end_search(work)

    def _end_search(self, work: Work) -> list[Failure]:
        unfinished = self.searches[work.loss]
        if work.id not in unfinished:
            return []
        unfinished.discard(work.id)
        if unfinished:
            return []
        self.account.choose([work.loss])
        return self.add([*self.account.final, *self.account.ensembles])


def not_run(work: Work, need: Failure) -> Failure:
    return Failure(work, f"not run: it needs {need.work.name}, which failed: {need.error}", "")
