"""The listener that stores results, and the one that stops a run whose disk is full or read-only."""

from harness import sources, storage
from harness.execution.account import Account
from harness.spec import Event, Failure, Progress, Result, Stopped, UserError, Work


class Recorder:
    """Stores results and failures; only then removes the checkpoint and the heartbeat of a trial."""

    def __init__(self, account: Account, files: storage.Storage) -> None:
        self.account = account
        self.store = account.store
        self.files = files
        self.failures: list[Failure] = []
        self.ran: set[str] = set()  # ids of the trials that this run has finished

    def __call__(self, work: Work, event: Event) -> None:
        if isinstance(event, Progress):
            return
        if isinstance(event, Result):
            self.put(work, event)
            self.ran.add(work.id)
        else:
            self.store.note(event)
        if isinstance(event, Result | Stopped):
            self.files.remove(storage.checkpoint(work.id))
        else:
            self.failures.append(event)  # its checkpoint stays: the next run continues from there
        self.files.remove(storage.heartbeat(work.id))

    def put(self, work: Work, result: Result) -> None:
        """Store a result. Files that no record refers to any more are removed: those of the record it replaces; or its
        own, if another driver has stored the trial before."""
        before = self.account.store.get(work)
        sources.put(self.store, self.account.sources.get(work.loss, {}).values())
        stored = self.store.put(result, replace=self.account.replaces(work))
        kept = result if stored else self.store.get(work)
        unused = files_of(before) | files_of(result)
        for path in unused - files_of(kept):
            self.files.remove(path)


def files_of(result: Result | None) -> set[str]:
    """The files in the storage that a result refers to."""
    return {entry["path"] for entry in result.artifacts.values()} if result else set()


def stop_on_disk_error(work: Work, event: Event) -> None:
    """Every other trial would fail in the same way."""
    if isinstance(event, Failure) and event.disk_error:
        raise UserError(f"{work.name}: {event.error}; finished trials are stored, the same command continues")
