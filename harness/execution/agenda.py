"""What can start now: the one account of it, for both executors."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator

from harness import plan
from harness.execution.account import Account
from harness.spec import Event, Failure, Progress, Trial


class Agenda:
    """The trials of a run that are missing, each given out when it can start.

    It gives a trial that can start now; None while only the end of a running one can make another one ready; and it
    ends when none can follow. `hear` is told of every event. The end of a trial frees those that need it, and the end
    of a loss's search names its final runs, whatever the other losses do.
    """

    def __init__(self, account: Account, trials: Iterable[Trial]) -> None:
        self.account = account
        self.trials: dict[str, Trial] = {}  # all that have to run, by id; those that have ended too
        self.unfinished: set[str] = set()
        self.ready: deque[Trial] = deque()
        self.needs: dict[str, set[str]] = {}  # id of a trial -> ids of the unfinished trials that it waits for
        self.dependents: dict[str, list[str]] = defaultdict(list)  # id of a trial -> ids of those that wait for it
        self.failures: dict[str, Failure] = {}
        self.searches: dict[str, set[str]] = defaultdict(set)  # loss -> ids of its unfinished search trials
        self.add(trials)
        for trial in account.search:
            if trial.id in self.unfinished:
                self.searches[trial.loss].add(trial.id)

    def __iter__(self) -> Iterator[Trial | None]:
        while self.ready or self.needs or any(self.searches.values()):
            yield self.ready.popleft() if self.ready else None

    def add(self, trials: Iterable[Trial]) -> list[Failure]:
        """Take up the trials among these that have to run, and first what they need. Returns those that cannot run,
        because what they need has failed."""
        refused = []
        for trial in self.account.pending(trials):
            if trial.id in self.trials:
                continue
            needs = plan.needs(self.account.experiment, trial)
            refused += self.add(needs)
            self.trials[trial.id] = trial
            self.unfinished.add(trial.id)
            failed = [self.failures[need.id] for need in needs if need.id in self.failures]
            waits_for = {need.id for need in needs if need.id in self.unfinished}
            if failed:
                refused.append(not_run(trial, failed[0]))
            elif waits_for:
                self.needs[trial.id] = waits_for
                for id in waits_for:
                    self.dependents[id].append(trial.id)
            else:
                self.ready.append(trial)
        return refused

    def hear(self, trial: Trial, event: Event) -> list[Failure]:
        """Take note of the end of a trial. Returns those that cannot run any more, whose ends are to be heard too."""
        if isinstance(event, Progress) or trial.id not in self.unfinished:
            return []
        self.unfinished.discard(trial.id)
        refused = []
        if isinstance(event, Failure):
            self.failures[trial.id] = event
        for id in self.dependents.pop(trial.id, ()):
            waits_for = self.needs.get(id, set())
            waits_for.discard(trial.id)
            if id in self.needs and isinstance(event, Failure):
                del self.needs[id]
                refused.append(not_run(self.trials[id], event))
            elif id in self.needs and not waits_for:
                del self.needs[id]
                self.ready.append(self.trials[id])
        return refused + self._end_search(trial)

    def _end_search(self, trial: Trial) -> list[Failure]:
        unfinished = self.searches[trial.loss]
        if trial.id not in unfinished:
            return []
        unfinished.discard(trial.id)
        if unfinished:
            return []
        self.account.choose([trial.loss])
        return self.add(self.account.final)


def not_run(trial: Trial, need: Failure) -> Failure:
    return Failure(trial, f"not run: it needs {need.trial.name}, which failed: {need.error}", "")
